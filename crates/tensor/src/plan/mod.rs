//! Plans: what a backend executes. A small closed set of kernels over numbered buffers.
mod program;

pub use program::{
    Access, BufId, Instr, MAX_BUFFERS, MAX_INSTRUCTIONS, Number, Program, Reg, register,
};

use crate::graph::{
    ArgOp, Composite, Conv2d, CustomHandle, MatmulPrecision, Pool2d, RandomKey, ReduceOp,
};
use crate::{DType, Label, Shape};

/// Where a buffer of a plan lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Leaf number `n` of the bindings: read only.
    Leaf(u32),
    /// State slot number `n` of the bindings: read, and written last.
    Slot(u32),
    /// Output number `n` of the bindings: written.
    Output(u32),
    /// Bytes from this offset of the arena, 256-byte aligned; shared in time.
    Arena(usize),
}

/// A buffer of a plan: dense and row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct BufDesc {
    /// Where it lives.
    pub place: Place,
    /// Number of elements.
    pub numel: usize,
    /// The dtype.
    pub dtype: DType,
}

impl BufDesc {
    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.numel * self.dtype.size()
    }
}

/// A program with the buffers it reads and writes.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Fused {
    /// The code.
    pub program: Program,
    /// What `Load` reads.
    pub inputs: Vec<Access>,
    /// What the program's outputs are stored to.
    pub outputs: Vec<Access>,
}

/// An operand of a matrix multiplication.
#[derive(Clone, Debug, PartialEq)]
pub struct MatOperand {
    /// Where the elements lie: strides over the batch axes, then rows, then columns.
    pub access: Access,
    /// A dtype to whose values the elements are rounded while they are loaded (a folded cast), or the stored one.
    pub compute: DType,
}

/// A dense operand of any kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// The buffer.
    pub buf: BufId,
    /// The shape.
    pub shape: Shape,
    /// The stored dtype.
    pub dtype: DType,
}

/// An operand whose elements may lie apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Strided {
    /// Where the elements lie: strides over the axes of the shape.
    pub access: Access,
    /// The shape.
    pub shape: Shape,
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What to do.
    pub kernel: Kernel,
    /// The number of the node (in the graph's walk order) whose label stands for the kernel.
    pub node: u32,
}

/// What a backend can do. Operand dtypes are those of the buffers; arithmetic contracts are those of the operations.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// An element-wise program over a domain.
    Map {
        /// The domain.
        domain: Shape,
        /// The program.
        fused: Fused,
    },
    /// A reduction of an element-wise program over the trailing axes of a domain.
    Reduce {
        /// Kept axes first.
        domain: Shape,
        /// How many leading axes are kept.
        kept: usize,
        /// The value to be reduced: one output register, no stores.
        prologue: Fused,
        /// The function.
        op: ReduceOp,
        /// The accumulator's dtype (F32 for 8- and 16-bit floats).
        acc: DType,
        /// Runs over the kept axes; `Acc` is the reduced value (not yet rounded to the node's dtype).
        epilogue: Fused,
    },
    /// The index of an extreme element along the last axis of a domain `[kept.., n]`.
    ArgReduce {
        /// The domain, reduced axis last.
        domain: Shape,
        /// The operand over the domain.
        input: Access,
        /// The function.
        op: ArgOp,
        /// I32, dense.
        output: BufId,
    },
    /// A batched matrix multiplication `[batch.., m, k] x [batch.., k, n]`.
    Matmul {
        /// The batch axes.
        batch: Shape,
        /// Rows, columns, inner size.
        m: usize,
        /// Columns.
        n: usize,
        /// The inner size.
        k: usize,
        /// The left operand.
        a: MatOperand,
        /// The right operand.
        b: MatOperand,
        /// How f32 operands are multiplied.
        precision: MatmulPrecision,
        /// The accumulator's dtype: F32 or F64 (integers: I32, I64).
        acc: DType,
        /// Runs over `[batch.., m, n]`; `Acc` is the product (not yet rounded to the node's dtype).
        epilogue: Fused,
    },
    /// A convolution; the epilogue runs over `[n, o, h, w]`.
    Conv2d {
        /// The attributes.
        conv: Conv2d,
        /// `[n, c, h, w]`.
        input: Dense,
        /// `[o, c / groups, kh, kw]`.
        weight: Dense,
        /// The dtype the weight is rounded to while it is loaded.
        weight_compute: DType,
        /// `[n, o, oh, ow]`.
        shape: Shape,
        /// Runs over the output; `Acc` is the result (not yet rounded).
        epilogue: Fused,
    },
    /// Gradient of a convolution with respect to its input.
    Conv2dGradInput {
        /// The attributes.
        conv: Conv2d,
        /// The weight.
        weight: Dense,
        /// The dtype the weight is rounded to while it is loaded.
        weight_compute: DType,
        /// The gradient of the output.
        grad: Dense,
        /// The gradient of the input.
        output: Dense,
    },
    /// Gradient of a convolution with respect to its weight.
    Conv2dGradWeight {
        /// The attributes.
        conv: Conv2d,
        /// The input.
        input: Dense,
        /// The gradient of the output.
        grad: Dense,
        /// The gradient of the weight.
        output: Dense,
    },
    /// Largest elements of windows.
    MaxPool2d {
        /// The attributes.
        pool: Pool2d,
        /// `[n, c, h, w]`.
        input: Dense,
        /// The values, if wanted.
        values: Option<Dense>,
        /// The I32 indices, if wanted.
        indices: Option<Dense>,
    },
    /// Its gradient.
    MaxPool2dGrad {
        /// The attributes.
        pool: Pool2d,
        /// I32 indices.
        indices: Dense,
        /// The gradient of the values.
        grad: Dense,
        /// The gradient of the input.
        output: Dense,
    },
    /// Means of windows.
    AvgPool2d {
        /// The attributes.
        pool: Pool2d,
        /// `[n, c, h, w]`.
        input: Dense,
        /// The means.
        output: Dense,
    },
    /// Its gradient.
    AvgPool2dGrad {
        /// The attributes.
        pool: Pool2d,
        /// The gradient of the means.
        grad: Dense,
        /// The gradient of the input.
        output: Dense,
    },
    /// `Op::Take`: `[outer, n, inner]` with index `[i]` gives `[outer, i, inner]`.
    Take {
        /// Product of the axes before.
        outer: usize,
        /// Product of the axes behind.
        inner: usize,
        /// The size of the axis.
        size: usize,
        /// The operand.
        input: Dense,
        /// I32 or I64.
        index: Dense,
        /// The result.
        output: Dense,
    },
    /// `Op::TakeGrad`: adds `[outer, i, inner]` into zeros `[outer, n, inner]`, f32 accumulation, one rounding.
    TakeGrad {
        /// Product of the axes before.
        outer: usize,
        /// Product of the axes behind.
        inner: usize,
        /// The size of the axis.
        size: usize,
        /// I32 or I64.
        index: Dense,
        /// What is added.
        update: Dense,
        /// The result.
        output: Dense,
    },
    /// `Op::GatherAlong`.
    GatherAlong {
        /// The axis.
        axis: usize,
        /// The operand.
        input: Dense,
        /// I32 or I64.
        index: Dense,
        /// The result, of the index's shape.
        output: Dense,
    },
    /// `Op::ScatterAlong`.
    ScatterAlong {
        /// The axis.
        axis: usize,
        /// I32 or I64.
        index: Dense,
        /// What is added.
        update: Dense,
        /// The result.
        output: Dense,
    },
    /// The running sum along an axis: `[outer, n, inner]`.
    CumSum {
        /// Product of the axes before.
        outer: usize,
        /// The size of the axis.
        size: usize,
        /// Product of the axes behind.
        inner: usize,
        /// From the end.
        reverse: bool,
        /// The operand.
        input: Dense,
        /// The result.
        output: Dense,
    },
    /// The last axis in order.
    Sort {
        /// Largest first.
        descending: bool,
        /// The operand.
        input: Dense,
        /// The first `k` values, if wanted.
        values: Option<Dense>,
        /// Their I32 indices, if wanted.
        indices: Option<Dense>,
    },
    /// Zeros in a whole buffer.
    Zero {
        /// The buffer.
        output: BufId,
    },
    /// The sum over all ranks.
    AllReduce {
        /// The place in the chain.
        sequence: u32,
        /// The operand.
        input: Dense,
        /// The result.
        output: Dense,
    },
    /// A composite that the backend said it runs natively. An output may share its buffer with the input it replaces
    /// (`OptimUpdate`). All operands are dense, but those of attention: queries, keys, values and their gradients may lie apart,
    /// with their last axis together.
    Composite {
        /// The operation.
        composite: Composite,
        /// First of three scalar-table entries of its random key, if it draws.
        random: Option<u32>,
        /// The inputs.
        inputs: Vec<Strided>,
        /// The outputs; `None` where nobody asks.
        outputs: Vec<Option<Strided>>,
    },
    /// An operation of a user's crate that runs on the host.
    Custom {
        /// The operation.
        custom: CustomHandle,
        /// The inputs.
        inputs: Vec<Dense>,
        /// The outputs.
        outputs: Vec<Dense>,
    },
}

/// The shape and dtype of one operand, for [`crate::Backend::native`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meta {
    /// The shape.
    pub shape: Shape,
    /// The dtype.
    pub dtype: DType,
}

/// What a backend compiles: buffers, kernels in order, and the size of the arena.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The buffers.
    pub buffers: Vec<BufDesc>,
    /// The kernels, in order; those that write state come last.
    pub steps: Vec<Step>,
    /// From this step on state is written: all checks come before.
    pub first_write: usize,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Entries of the run-time scalar table.
    pub scalars: usize,
    /// Number of leaves, slots and outputs in the bindings.
    pub leaves: usize,
    /// Number of slots.
    pub slots: usize,
    /// Number of outputs.
    pub outputs: usize,
    /// Bytes written by forward nodes and read by backward nodes; leaves and state excluded.
    pub saved_bytes: usize,
    /// Labels of the nodes when the plan was compiled, by node number; for compile-time messages.
    pub labels: Vec<Label>,
}

/// The stream and micro-batch index of a key as three scalar-table entries.
pub fn random_entries(key: &RandomKey) -> [f64; 3] {
    match *key {
        RandomKey::Value { stream, micro } => [
            (stream as u32) as f64,
            ((stream >> 32) as u32) as f64,
            micro as f64,
        ],
        RandomKey::Table(_) => [0.0; 3],
    }
}

impl Kernel {
    /// The kernel's name in errors and profiles.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Map { .. } => "map",
            Kernel::Reduce { .. } => "reduce",
            Kernel::ArgReduce { .. } => "arg_reduce",
            Kernel::Matmul { .. } => "matmul",
            Kernel::Conv2d { .. } => "conv2d",
            Kernel::Conv2dGradInput { .. } => "conv2d_grad_input",
            Kernel::Conv2dGradWeight { .. } => "conv2d_grad_weight",
            Kernel::MaxPool2d { .. } => "max_pool2d",
            Kernel::MaxPool2dGrad { .. } => "max_pool2d_grad",
            Kernel::AvgPool2d { .. } => "avg_pool2d",
            Kernel::AvgPool2dGrad { .. } => "avg_pool2d_grad",
            Kernel::Take { .. } => "take",
            Kernel::TakeGrad { .. } => "take_grad",
            Kernel::GatherAlong { .. } => "gather",
            Kernel::ScatterAlong { .. } => "scatter_add",
            Kernel::CumSum { .. } => "cumsum",
            Kernel::Sort { .. } => "sort",
            Kernel::Zero { .. } => "zero",
            Kernel::AllReduce { .. } => "all_reduce",
            Kernel::Composite { composite, .. } => composite.name(),
            Kernel::Custom { custom, .. } => custom.name(),
        }
    }
}
