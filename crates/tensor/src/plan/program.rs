//! Fused element-wise programs: straight-line code over typed registers.
use crate::CastMode;
use crate::graph::{Binary, Distribution, Unary};
use crate::{DType, Shape, Strides};

/// A buffer of a plan.
pub type BufId = u32;
/// A register: the number of the instruction that writes it.
pub type Reg = u16;

/// The most instructions of one program.
pub const MAX_INSTRUCTIONS: usize = 64;
/// The most buffers one program touches.
pub const MAX_BUFFERS: usize = 8;

/// Where the elements of a kernel's domain lie in a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The buffer.
    pub buf: BufId,
    /// Elements before the first.
    pub offset: usize,
    /// Elements from one index to the next along each axis of the domain.
    pub strides: Strides,
    /// The dtype stored in the buffer.
    pub dtype: DType,
}

impl Access {
    /// Whether the access walks a dense row-major array of shape `domain` from its first element.
    pub fn is_dense(&self, domain: &Shape) -> bool {
        let want = domain.strides();
        self.offset == 0 && (0..domain.rank()).all(|i| domain[i] == 1 || self.strides[i] == want[i])
    }
}

/// A number known when the plan is compiled, or read from the run-time scalar table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A constant.
    Const(f64),
    /// An entry of the scalar table.
    Table(u32),
}

/// One instruction; it writes the register of its own number. Register dtypes are F32, F64, I32, I64, U32 and Bool; 8- and
/// 16-bit floats and U8 live in F32 and I32 registers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Instr {
    /// The element of input number `input`, converted exactly to its register dtype.
    Load {
        /// Index into the kernel's inputs.
        input: u8,
    },
    /// The value the program is hung on: a matmul's or reduction's result, in its accumulator dtype.
    Acc {
        /// The accumulator's dtype.
        ty: DType,
    },
    /// A number.
    Number {
        /// The number.
        value: Number,
        /// The register's dtype.
        ty: DType,
    },
    /// The index along an axis of the domain (I32).
    Iota {
        /// The axis.
        axis: u8,
    },
    /// Random elements with the linear index of the domain as counter.
    Random {
        /// The distribution; Bits gives U32, the others F32.
        distribution: Distribution,
        /// First of three entries of the scalar table: stream low, stream high, micro-batch index (as bits of u32 in f64).
        key: u32,
        /// Register with the applied step (U32).
        step: Option<Reg>,
    },
    /// A function of one register.
    Unary {
        /// The function.
        op: Unary,
        /// The operand.
        a: Reg,
        /// The operand's register dtype.
        ty: DType,
    },
    /// A function of two registers of one dtype.
    Binary {
        /// The function.
        op: Binary,
        /// The left operand.
        a: Reg,
        /// The right operand.
        b: Reg,
        /// The operands' register dtype.
        ty: DType,
    },
    /// `c ? a : b`.
    Select {
        /// A Bool register.
        c: Reg,
        /// Where true.
        a: Reg,
        /// Where false.
        b: Reg,
        /// The register dtype.
        ty: DType,
    },
    /// `a * b + c` rounded once.
    Fma {
        /// A factor.
        a: Reg,
        /// A factor.
        b: Reg,
        /// The summand.
        c: Reg,
        /// The register dtype.
        ty: DType,
    },
    /// Conversion between register dtypes (rounding to nearest even; floats to integers truncate, saturate, NaN gives 0;
    /// integers wrap; to Bool is `!= 0`).
    Convert {
        /// The operand.
        a: Reg,
        /// From register dtype.
        from: DType,
        /// To register dtype.
        to: DType,
    },
    /// Rounds to the nearest value of a narrower dtype; the value stays in its register dtype. For floats from an F32 or F64
    /// register (from F64 the rounding is a single one and the result is an F32 register); U8 wraps an I32 register.
    Round {
        /// The operand.
        a: Reg,
        /// The operand's register dtype.
        from: DType,
        /// The dtype whose values are wanted.
        to: DType,
        /// What happens beyond the range.
        overflow: CastMode,
    },
    /// Rounds an F32 register to a neighbour in an 8- or 16-bit float dtype, away from zero where the noise is smaller than the way from the other neighbour; the
    /// value stays in an F32 register. See [`crate::round_stochastic_slice`].
    RoundStochastic {
        /// The operand.
        a: Reg,
        /// F32, in [0, 1).
        noise: Reg,
        /// The dtype whose values are wanted.
        to: DType,
    },
}

impl Instr {
    /// The dtype of the register this instruction writes; `inputs` are the kernel's inputs.
    pub fn dtype(&self, inputs: &[Access]) -> DType {
        match *self {
            Instr::Load { input } => register(inputs[input as usize].dtype),
            Instr::Acc { ty } | Instr::Number { ty, .. } => ty,
            Instr::Iota { .. } => DType::I32,
            Instr::Random { distribution, .. } => match distribution {
                Distribution::Bits => DType::U32,
                _ => DType::F32,
            },
            Instr::Unary { op, ty, .. } => match op {
                Unary::IsFinite | Unary::IsNan | Unary::Not => DType::Bool,
                _ => ty,
            },
            Instr::Binary { op, ty, .. } => {
                if op.is_comparison() {
                    DType::Bool
                } else {
                    ty
                }
            }
            Instr::Select { ty, .. } | Instr::Fma { ty, .. } => ty,
            Instr::Convert { to, .. } => to,
            Instr::Round { to, .. } | Instr::RoundStochastic { to, .. } => register(to),
        }
    }
}

/// The dtype in which element-wise programs compute on elements of `dtype`.
pub fn register(dtype: DType) -> DType {
    match dtype {
        DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        DType::U8 | DType::I32 => DType::I32,
        d => d,
    }
}

/// Straight-line code; output number `i` of the kernel is register `outputs[i]`, stored with one rounding to its buffer's
/// dtype (values have been rounded where their node says so, so that storing is exact).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Program {
    /// The instructions.
    pub instrs: Vec<Instr>,
    /// The registers stored.
    pub outputs: Vec<Reg>,
}
