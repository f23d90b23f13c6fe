//! Names of the instructions.

/// A function of one value of a register type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the functions
pub enum UnaryOp {
    Neg,
    Abs,
    /// -1, 0 or 1; NaN stays NaN and -0 stays -0.
    Sign,
    Square,
    Sqrt,
    /// `1 / sqrt(x)`, both operations correctly rounded.
    Rsqrt,
    Recip,
    Exp,
    Expm1,
    Log,
    Log1p,
    Sin,
    Cos,
    Tanh,
    Sigmoid,
    Erf,
    Relu,
    Silu,
    SiluGrad,
    /// `x * Phi(x)` with the normal distribution function Phi.
    Gelu,
    GeluGrad,
    /// The tanh form of GELU (Hendrycks and Gimpel 2016).
    GeluTanh,
    GeluTanhGrad,
    /// `log(1 + exp(x))`.
    Softplus,
    Floor,
    Ceil,
    /// To the nearest integer, half to even.
    Round,
    Trunc,
}

impl UnaryOp {
    /// All of them.
    pub const ALL: [UnaryOp; 28] = {
        use UnaryOp::*;
        [
            Neg,
            Abs,
            Sign,
            Square,
            Sqrt,
            Rsqrt,
            Recip,
            Exp,
            Expm1,
            Log,
            Log1p,
            Sin,
            Cos,
            Tanh,
            Sigmoid,
            Erf,
            Relu,
            Silu,
            SiluGrad,
            Gelu,
            GeluGrad,
            GeluTanh,
            GeluTanhGrad,
            Softplus,
            Floor,
            Ceil,
            Round,
            Trunc,
        ]
    };
}

/// A function of two values of one register type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the functions
pub enum BinaryOp {
    /// Integers wrap around.
    Add,
    Sub,
    Mul,
    /// Integers truncate towards zero; dividing by zero gives 0.
    Div,
    /// NaN if either operand is (as `torch.maximum`).
    Max,
    Min,
    /// Integers wrap around; a negative exponent gives the truncated real result.
    Pow,
    /// The remainder of the floored quotient, with the sign of the divisor (as `%` in Python);
    /// integers modulo zero give 0.
    Rem,
}

impl BinaryOp {
    /// All of them.
    pub const ALL: [BinaryOp; 8] = {
        use BinaryOp::*;
        [Add, Sub, Mul, Div, Max, Min, Pow, Rem]
    };
}

/// A comparison; with a NaN operand only `Ne` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the functions
pub enum CmpOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A function of two booleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the functions
pub enum LogicOp {
    And,
    Or,
    Xor,
}
