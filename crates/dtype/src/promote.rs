//! Which type an operation on given types computes in and results in.

use super::DType;

impl DType {
    /// The type in which element-wise programs compute values of this type.
    ///
    /// Floats of 8, 16 and 32 bits compute in `F32`, `U8` and `I32` in `I32`; every other type in
    /// itself. Each value of a type is exact in its register type.
    pub const fn register(self) -> DType {
        match self {
            DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 | DType::F32 => DType::F32,
            DType::U8 | DType::I32 => DType::I32,
            DType::Bool | DType::U32 | DType::I64 | DType::F64 => self,
        }
    }

    /// The result type of an operation on operands of types `a` and `b`; the order is irrelevant.
    ///
    /// `Bool` gives way to integers and integers to floats, whatever their widths. Integers
    /// promote to the narrowest type here that holds both (`U32` with `I32` is `I64`, `U32` with
    /// `U8` is `U32`). Floats promote to the wider one; two different floats of equal width give
    /// `F32`, since neither holds the other's values. Scalars take no part in promotion.
    pub const fn promote(a: DType, b: DType) -> DType {
        use DType::*;
        // Declaration order is rank order, so the later one wins except where neither type holds
        // the other's values.
        match (a, b) {
            (U32, I32) | (I32, U32) => I64,
            (F8E4M3, F8E5M2) | (F8E5M2, F8E4M3) | (F16, BF16) | (BF16, F16) => F32,
            _ if a as u8 >= b as u8 => a,
            _ => b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DType::{self, *};

    /// The whole table, row and column order as declared.
    #[test]
    fn promotion_table() {
        #[rustfmt::skip]
        let table = [
            [Bool,   U8,     U32,    I32,    I64,    F8E4M3, F8E5M2, F16,  BF16, F32, F64],
            [U8,     U8,     U32,    I32,    I64,    F8E4M3, F8E5M2, F16,  BF16, F32, F64],
            [U32,    U32,    U32,    I64,    I64,    F8E4M3, F8E5M2, F16,  BF16, F32, F64],
            [I32,    I32,    I64,    I32,    I64,    F8E4M3, F8E5M2, F16,  BF16, F32, F64],
            [I64,    I64,    I64,    I64,    I64,    F8E4M3, F8E5M2, F16,  BF16, F32, F64],
            [F8E4M3, F8E4M3, F8E4M3, F8E4M3, F8E4M3, F8E4M3, F32,    F16,  BF16, F32, F64],
            [F8E5M2, F8E5M2, F8E5M2, F8E5M2, F8E5M2, F32,    F8E5M2, F16,  BF16, F32, F64],
            [F16,    F16,    F16,    F16,    F16,    F16,    F16,    F16,  F32,  F32, F64],
            [BF16,   BF16,   BF16,   BF16,   BF16,   BF16,   BF16,   F32,  BF16, F32, F64],
            [F32,    F32,    F32,    F32,    F32,    F32,    F32,    F32,  F32,  F32, F64],
            [F64,    F64,    F64,    F64,    F64,    F64,    F64,    F64,  F64,  F64, F64],
        ];
        for (row, a) in table.into_iter().zip(DType::ALL) {
            for (expected, b) in row.into_iter().zip(DType::ALL) {
                assert_eq!(DType::promote(a, b), expected, "{a} with {b}");
            }
        }
    }

    #[test]
    fn registers() {
        let expected = [Bool, I32, U32, I32, I64, F32, F32, F32, F32, F32, F64];
        for (dtype, register) in DType::ALL.into_iter().zip(expected) {
            assert_eq!(dtype.register(), register, "{dtype}");
        }
    }
}
