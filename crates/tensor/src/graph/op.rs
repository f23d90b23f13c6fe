//! The operations of the graph: plain data, no behaviour. What an operation means is said here; shapes and
//! dtypes are inferred by the builders in `ops`, derivatives live in `bimetal-autodiff`, and the lowering to
//! kernels in `lower`.
use super::{Composite, CustomHandle};
use crate::CastMode;
use crate::shape::MAX_RANK;

/// A 64-bit float compared and hashed by its bits, for attributes that take part in the plan key.
#[derive(Clone, Copy, Debug)]
pub struct Attr(pub f64);

impl PartialEq for Attr {
    fn eq(&self, o: &Attr) -> bool {
        self.0.to_bits() == o.0.to_bits()
    }
}
impl Eq for Attr {}
impl std::hash::Hash for Attr {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.0.to_bits().hash(h);
    }
}

/// A host number inside a graph: part of the key if it is one of 0, ±1, ±2, ±0.5, otherwise an entry of the
/// run-time scalar table, so that a value that changes from step to step compiles nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Literal {
    /// A value.
    Value(Attr),
    /// An entry of the plan's run-time scalar table (only inside plans).
    Table(u32),
}

/// The key of a random stream: hash of (seed, layer path, call number), and the global micro-batch index.
/// It is a run-time scalar, never part of the plan key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RandomKey {
    /// The key itself.
    Value {
        /// The Philox key.
        stream: u64,
        /// The global micro-batch index.
        micro: u32,
    },
    /// First of three entries (stream low, stream high, micro) in the run-time scalar table (only inside plans).
    Table(u32),
}

impl RandomKey {
    /// The stream of a seed.
    pub fn seed(seed: u64) -> RandomKey {
        RandomKey::Value {
            stream: seed,
            micro: 0,
        }
    }
}

/// The distribution of random elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Distribution {
    /// 32 random bits (U32).
    Bits,
    /// Uniform in [0, 1): 24 random bits times 2^-24.
    Uniform,
    /// Standard normal (Box-Muller).
    Normal,
}

/// Element-wise functions of one operand. Floats of 8 and 16 bits compute in f32 and round once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are the functions
pub enum Unary {
    Neg,
    Abs,
    Sign,
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
    /// `x Phi(x)` with the exact normal distribution function.
    Gelu,
    /// The tanh approximation (Hendrycks and Gimpel 2016).
    GeluTanh,
    Softplus,
    Floor,
    Ceil,
    /// To the nearest integer, ties to even.
    Round,
    Trunc,
    Square,
    /// The derivative of `Gelu` at x.
    GeluGrad,
    /// The derivative of `GeluTanh` at x.
    GeluTanhGrad,
    /// The derivative of `Silu` at x.
    SiluGrad,
    /// Logical negation (Bool).
    Not,
    /// Whether x is neither infinite nor NaN (Bool).
    IsFinite,
    /// Whether x is NaN (Bool).
    IsNan,
}

/// Element-wise functions of two operands of one dtype.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are the functions
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// NaN if either operand is NaN.
    Max,
    /// NaN if either operand is NaN.
    Min,
    Pow,
    /// The remainder with the divisor's sign, as Python's `%`.
    Rem,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Xor,
}

impl Binary {
    /// Whether the result is Bool.
    pub fn is_comparison(self) -> bool {
        use Binary::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }

    /// Whether the operation is logical: Bool to Bool.
    pub fn is_logical(self) -> bool {
        matches!(self, Binary::And | Binary::Or | Binary::Xor)
    }
}

/// How reductions combine. 8- and 16-bit floats accumulate in f32 and round once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are the functions
pub enum ReduceOp {
    Sum,
    /// The sum divided by the count in the accumulator's type, then rounded.
    Mean,
    Prod,
    /// NaN if any element is NaN.
    Max,
    /// NaN if any element is NaN.
    Min,
}

/// Which index an index reduction returns; the first of equals.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are the functions
pub enum ArgOp {
    Max,
    Min,
}

/// How f32 operands are multiplied; other operands are multiplied as they are. A device that has no such units rounds the operands and multiplies in f32, so that
/// the error can be seen anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MatmulPrecision {
    /// Full f32.
    #[default]
    Exact,
    /// Operands rounded to TF32 (10 mantissa bits, to nearest even), f32 accumulation.
    Tf32,
    /// Each operand as the sum of two bf16 values, three products (that of both rests is left out), f32 accumulation: about 16 bits.
    Bf16x3,
}

/// A permutation of axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Axes {
    /// Axis `i` of the result is axis `map[i]` of the operand.
    pub map: [u8; MAX_RANK],
}

/// A set of axes: bit `i` stands for axis `i`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AxisSet(pub u8);

impl AxisSet {
    /// Whether `axis` is in the set.
    pub fn contains(self, axis: usize) -> bool {
        self.0 >> axis & 1 == 1
    }
}

/// Attributes of a two-dimensional convolution: input `[n, c, h, w]`, weight `[o, c / groups, kh, kw]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conv2d {
    /// Step along height and width.
    pub stride: [u32; 2],
    /// Zeros added at top, bottom, left, right.
    pub padding: [u32; 4],
    /// Distance between taps along height and width.
    pub dilation: [u32; 2],
    /// Number of groups.
    pub groups: u32,
}

/// Attributes of a two-dimensional pooling.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pool2d {
    /// Window height and width.
    pub kernel: [u32; 2],
    /// Step along height and width.
    pub stride: [u32; 2],
    /// Padding at top, bottom, left, right (minus infinity for max, zero for mean).
    pub padding: [u32; 4],
    /// Whether padding counts in a mean.
    pub count_include_pad: bool,
}

/// An operation. Inputs, shapes and dtypes belong to the node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A value given by the user.
    Data,
    /// The present value of a state slot.
    Read,
    /// Input number `n` of a decomposition.
    Placeholder(u32),
    /// A number; takes the register dtype of its partner and never changes a result's dtype.
    Scalar(Literal),
    /// The index along an axis (I32).
    Iota {
        /// The axis.
        axis: u8,
    },
    /// Random elements; the optional input is a U32 scalar (the applied step) that enters the counter.
    Random {
        /// The distribution.
        distribution: Distribution,
        /// The stream.
        key: RandomKey,
    },
    /// An element-wise function.
    Unary(Unary),
    /// An element-wise function of two operands.
    Binary(Binary),
    /// `inputs[0] ? inputs[1] : inputs[2]`, all of one shape.
    Select,
    /// `inputs[0] * inputs[1] + inputs[2]`, rounded once.
    Fma,
    /// Conversion to the node's dtype.
    Cast(CastMode),
    /// `inputs[0]` (F32) rounded at random to a neighbour in the node's dtype, an 8- or 16-bit float: away from zero where `inputs[1]` (F32, uniform in [0, 1))
    /// is smaller than the way from the other neighbour.
    CastStochastic,
    /// The same elements in row-major order under another shape (a view).
    Reshape,
    /// Axes in another order (a view).
    Permute(Axes),
    /// Axes of size 1, or missing in front, repeated (a view).
    Broadcast,
    /// Every `step`-th element along one axis; a negative step walks backwards from `start` (a view).
    Slice {
        /// The axis.
        axis: u8,
        /// The first index.
        start: usize,
        /// The step, not 0.
        step: isize,
    },
    /// Zeros put before and after along one axis.
    Pad {
        /// The axis.
        axis: u8,
        /// Zeros before.
        before: usize,
        /// Zeros after.
        after: usize,
    },
    /// Operands joined along one axis.
    Concat {
        /// The axis.
        axis: u8,
    },
    /// A reduction over a set of axes, which stay with size 1.
    Reduce {
        /// The function.
        op: ReduceOp,
        /// The axes.
        axes: AxisSet,
    },
    /// The index (I32) of an extreme element along one axis, which stays with size 1.
    ArgReduce {
        /// The function.
        op: ArgOp,
        /// The axis.
        axis: u8,
    },
    /// `[.., m, k] x [.., k, n]` with equal batch axes.
    Matmul(MatmulPrecision),
    /// Convolution: input, weight.
    Conv2d(Conv2d),
    /// Gradient with respect to the input: weight, output gradient.
    Conv2dGradInput(Conv2d),
    /// Gradient with respect to the weight: input, output gradient.
    Conv2dGradWeight(Conv2d),
    /// Largest element of each window: values, and I32 indices into the `[h, w]` plane.
    MaxPool2d(Pool2d),
    /// Gradient: indices, output gradient.
    MaxPool2dGrad(Pool2d),
    /// Mean of each window.
    AvgPool2d(Pool2d),
    /// Gradient: output gradient.
    AvgPool2dGrad(Pool2d),
    /// `x[.., index, ..]` along one axis, as NumPy's `take`: the index's axes replace the axis.
    Take {
        /// The axis.
        axis: u8,
    },
    /// The adjoint of `Take`: index, update; adds into zeros, f32 accumulation.
    TakeGrad {
        /// The axis.
        axis: u8,
    },
    /// `take_along_axis`: x, index of the same rank.
    GatherAlong {
        /// The axis.
        axis: u8,
    },
    /// The adjoint of `GatherAlong`: index, update; adds into zeros, f32 accumulation.
    ScatterAlong {
        /// The axis.
        axis: u8,
    },
    /// The running sum along one axis.
    CumSum {
        /// The axis.
        axis: u8,
        /// From the end.
        reverse: bool,
    },
    /// The last axis in order (stable): values, I32 indices; keeps the first `k`.
    Sort {
        /// Largest first.
        descending: bool,
    },
    /// The input, cut off from its history: no gradient passes (a view).
    Detach,
    /// The first `results` inputs, unchanged; the others are the inputs of the segment that computed them, which the backward pass
    /// computes again instead of keeping its values (a view).
    Checkpoint {
        /// The number of results.
        results: u8,
    },
    /// The inputs but the last, unchanged; depends on the last. Nothing is merged, hoisted or fused across.
    Barrier,
    /// The sum over all ranks of a process group.
    AllReduce {
        /// The place in the one ordered chain of collectives.
        sequence: u32,
    },
    /// An operation with a decomposition into the others.
    Composite(Composite),
    /// An operation of a user's crate.
    Custom(CustomHandle),
}

impl Op {
    /// The name used in errors, reports and profiles.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Data => "data",
            Op::Read => "read",
            Op::Placeholder(_) => "placeholder",
            Op::Scalar(_) => "scalar",
            Op::Iota { .. } => "arange",
            Op::Random { .. } => "random",
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
            Op::Select => "select",
            Op::Fma => "fma",
            Op::Cast(_) => "cast",
            Op::CastStochastic => "cast_stochastic",
            Op::Reshape => "reshape",
            Op::Permute(_) => "permute",
            Op::Broadcast => "broadcast",
            Op::Slice { .. } => "slice",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::Reduce { op, .. } => match op {
                ReduceOp::Sum => "sum",
                ReduceOp::Mean => "mean",
                ReduceOp::Prod => "prod",
                ReduceOp::Max => "max",
                ReduceOp::Min => "min",
            },
            Op::ArgReduce { op, .. } => match op {
                ArgOp::Max => "argmax",
                ArgOp::Min => "argmin",
            },
            Op::Matmul(_) => "matmul",
            Op::Conv2d(_) => "conv2d",
            Op::Conv2dGradInput(_) => "conv2d_grad_input",
            Op::Conv2dGradWeight(_) => "conv2d_grad_weight",
            Op::MaxPool2d(_) => "max_pool2d",
            Op::MaxPool2dGrad(_) => "max_pool2d_grad",
            Op::AvgPool2d(_) => "avg_pool2d",
            Op::AvgPool2dGrad(_) => "avg_pool2d_grad",
            Op::Take { .. } => "take",
            Op::TakeGrad { .. } => "take_grad",
            Op::GatherAlong { .. } => "gather",
            Op::ScatterAlong { .. } => "scatter_add",
            Op::CumSum { .. } => "cumsum",
            Op::Sort { .. } => "sort",
            Op::Detach => "detach",
            Op::Checkpoint { .. } => "checkpoint",
            Op::Barrier => "barrier",
            Op::AllReduce { .. } => "all_reduce",
            Op::Composite(c) => c.name(),
            Op::Custom(c) => c.name(),
        }
    }

    /// Whether the node is computed element by element from operands of its own shape.
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Op::Scalar(_)
                | Op::Iota { .. }
                | Op::Random { .. }
                | Op::Unary(_)
                | Op::Binary(_)
                | Op::Select
                | Op::Fma
                | Op::Cast(_)
                | Op::CastStochastic
        )
    }

    /// Whether the node only renames elements of its operand.
    pub fn is_view(&self) -> bool {
        matches!(
            self,
            Op::Reshape | Op::Permute(_) | Op::Broadcast | Op::Slice { .. } | Op::Detach
        )
    }
}

impl Unary {
    /// The function's name.
    pub fn name(self) -> &'static str {
        use Unary::*;
        match self {
            Neg => "neg",
            Abs => "abs",
            Sign => "sign",
            Sqrt => "sqrt",
            Rsqrt => "rsqrt",
            Recip => "recip",
            Exp => "exp",
            Expm1 => "expm1",
            Log => "log",
            Log1p => "log1p",
            Sin => "sin",
            Cos => "cos",
            Tanh => "tanh",
            Sigmoid => "sigmoid",
            Erf => "erf",
            Relu => "relu",
            Silu => "silu",
            Gelu => "gelu",
            GeluTanh => "gelu_tanh",
            Softplus => "softplus",
            Floor => "floor",
            Ceil => "ceil",
            Round => "round",
            Trunc => "trunc",
            Square => "square",
            GeluGrad => "gelu_grad",
            GeluTanhGrad => "gelu_tanh_grad",
            SiluGrad => "silu_grad",
            Not => "logical_not",
            IsFinite => "is_finite",
            IsNan => "is_nan",
        }
    }
}

impl Binary {
    /// The function's name.
    pub fn name(self) -> &'static str {
        use Binary::*;
        match self {
            Add => "add",
            Sub => "sub",
            Mul => "mul",
            Div => "div",
            Max => "maximum",
            Min => "minimum",
            Pow => "pow",
            Rem => "remainder",
            Eq => "eq",
            Ne => "ne",
            Lt => "lt",
            Le => "le",
            Gt => "gt",
            Ge => "ge",
            And => "logical_and",
            Or => "logical_or",
            Xor => "logical_xor",
        }
    }
}
