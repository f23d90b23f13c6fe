//! The names of element types.

use super::{DType, DTypeError};
use std::fmt;
use std::str::FromStr;

impl DType {
    /// The long name, as NumPy and `ml_dtypes` spell it.
    const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::U32 => "uint32",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F8E4M3 => "float8_e4m3fn",
            DType::F8E5M2 => "float8_e5m2",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
        }
    }
}

/// Prints the long name (`float32`, `bfloat16`, `float8_e4m3fn`); `FromStr` reads it back.
impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reads a long name (`float16`) or a short one (`f16`, `bf16`, `f8e4m3`, `i32`, `u8`).
///
/// Any other string is a [`DTypeError::UnknownName`], which lists the valid names.
impl FromStr for DType {
    type Err = DTypeError;

    fn from_str(name: &str) -> Result<DType, DTypeError> {
        Ok(match name {
            "bool" => DType::Bool,
            "uint8" | "u8" => DType::U8,
            "uint32" | "u32" => DType::U32,
            "int32" | "i32" => DType::I32,
            "int64" | "i64" => DType::I64,
            "float8_e4m3fn" | "f8e4m3" => DType::F8E4M3,
            "float8_e5m2" | "f8e5m2" => DType::F8E5M2,
            "float16" | "f16" => DType::F16,
            "bfloat16" | "bf16" => DType::BF16,
            "float32" | "f32" => DType::F32,
            "float64" | "f64" => DType::F64,
            _ => {
                return Err(DTypeError::UnknownName {
                    found: name.to_owned(),
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        let short = [
            "bool", "u8", "u32", "i32", "i64", "f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64",
        ];
        for (name, dtype) in short.into_iter().zip(DType::ALL) {
            assert_eq!(name.parse(), Ok(dtype));
        }
        assert_eq!(format!("{:>8}", DType::Bool), "    bool");
    }

    #[test]
    fn unknown_names_list_the_valid_ones() {
        let message = "float12".parse::<DType>().unwrap_err().to_string();
        assert!(message.contains("\"float12\""), "{message}");
        for dtype in DType::ALL {
            assert!(message.contains(&dtype.to_string()), "{message}");
        }
        assert!("".parse::<DType>().is_err());
        assert!("F32".parse::<DType>().is_err());
    }
}
