//! Tensors: handles to nodes of the lazy graph.
use crate::graph::{Literal, Op};
use crate::plan::Meta;
use crate::{Buffer, DType, Device, Error, Label, Result, Shape, Slot};
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

pub(crate) type Inputs = SmallVec<[Tensor; 3]>;
pub(crate) type Outs = SmallVec<[Meta; 1]>;

/// A node: an operation on inputs. Never changes, but for values that evaluation keeps.
pub(crate) struct Node {
    pub(crate) op: Op,
    pub(crate) inputs: Inputs,
    pub(crate) outs: Outs,
    pub(crate) device: Option<Device>,
    pub(crate) label: Label,
    pub(crate) values: SmallVec<[OnceLock<Buffer>; 1]>,
    pub(crate) state: Option<(Slot, u64)>,
    pub(crate) error: Option<Error>,
}

impl Drop for Node {
    // Iterative: a graph may be a chain of a million nodes, a stack is not that deep.
    fn drop(&mut self) {
        // A mistake that nobody evaluated would go unnoticed.
        if cfg!(debug_assertions)
            && let Some(e) = &self.error
            && !e.report()
        {
            eprintln!("bimetal: an invalid tensor was dropped without having been evaluated: {e}");
        }
        let mut work = std::mem::take(&mut self.inputs);
        while let Some(t) = work.pop() {
            let mut node = t.node;
            match Arc::get_mut(&mut node) {
                // In place: a node is large, and taking it out would copy it.
                Some(node) => work.append(&mut node.inputs),
                // Of threads that drop the last handles at once, one gets the node.
                None => {
                    if let Some(mut node) = Arc::into_inner(node) {
                        work.append(&mut node.inputs);
                    }
                }
            }
        }
    }
}

/// The identity of a node within this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(usize);

/// A lazy multi-dimensional array: a handle to a node of the graph. Cheap to clone.
///
/// Building expressions never fails; a mistake makes an invalid tensor that carries the first error, and evaluation
/// ([`Tensor::to_vec`], [`crate::eval`], ...) or a query ([`Tensor::dims`]) reports it.
#[derive(Clone)]
#[must_use = "a tensor is an expression: nothing is computed until a value is asked for"]
pub struct Tensor {
    pub(crate) node: Arc<Node>,
    pub(crate) out: u32,
}

impl Tensor {
    /// A node with its outputs; the op's contract on inputs must have been checked.
    pub(crate) fn node(op: Op, inputs: Inputs, outs: Outs, label: Label) -> Tensor {
        for t in &inputs {
            if t.node.error.is_some() {
                return t.clone();
            }
        }
        let mut device: Option<&Device> = None;
        for t in &inputs {
            if let (Some(a), Some(b)) = (device, &t.node.device)
                && !a.same(b)
            {
                let (a, b) = (&a.info().name, &b.info().name);
                let detail = if a == b {
                    format!(
                        "operands are on two devices that were made separately (both {a}); make the device once and clone it, or \
                         move one operand with `to_device`"
                    )
                } else {
                    format!(
                        "operands are on different devices ({a} and {b}); move one with `to_device`"
                    )
                };
                return Tensor::invalid(Error::at(
                    op.name(),
                    crate::ErrorKind::Device { detail },
                    label,
                ));
            }
            device = device.or(t.node.device.as_ref());
        }
        let device = device.cloned();
        Tensor::raw(op, inputs, outs, device, label, None)
    }

    pub(crate) fn raw(
        op: Op,
        inputs: Inputs,
        outs: Outs,
        device: Option<Device>,
        label: Label,
        state: Option<(Slot, u64)>,
    ) -> Tensor {
        let values = outs.iter().map(|_| OnceLock::new()).collect();
        Tensor {
            node: Arc::new(Node {
                op,
                inputs,
                outs,
                device,
                label,
                values,
                state,
                error: None,
            }),
            out: 0,
        }
    }

    /// A single-output node.
    #[track_caller]
    pub(crate) fn single(op: Op, inputs: Inputs, shape: Shape, dtype: DType) -> Tensor {
        Tensor::node(
            op,
            inputs,
            SmallVec::from_buf([Meta { shape, dtype }]),
            Label::current(),
        )
    }

    /// A tensor that only carries an error; everything built on it carries the same.
    pub fn invalid(error: Error) -> Tensor {
        let label = error.label().cloned().unwrap_or_else(Label::current);
        let meta = Meta {
            shape: Shape::scalar(),
            dtype: DType::F32,
        };
        Tensor {
            node: Arc::new(Node {
                op: Op::Data,
                inputs: Inputs::new(),
                outs: SmallVec::from_buf([meta]),
                device: None,
                label,
                values: SmallVec::new(),
                state: None,
                error: Some(error),
            }),
            out: 0,
        }
    }

    /// A tensor from a fallible construction: where sizes are needed, use `?` inside.
    #[track_caller]
    pub fn build(f: impl FnOnce() -> Result<Tensor>) -> Tensor {
        f().unwrap_or_else(Tensor::invalid)
    }

    /// The error this tensor carries, if it is invalid.
    pub fn error(&self) -> Option<&Error> {
        self.node.error.as_ref()
    }

    /// Itself, or the error it carries.
    pub fn check(&self) -> Result<&Tensor> {
        match &self.node.error {
            Some(e) => {
                e.report();
                Err(e.clone())
            }
            None => Ok(self),
        }
    }

    /// As [`Tensor::check`], for building on: the error is passed on, not seen by anybody yet.
    pub(crate) fn valid(&self) -> Result<&Tensor> {
        match &self.node.error {
            Some(e) => Err(e.clone()),
            None => Ok(self),
        }
    }

    /// The shape.
    pub fn shape(&self) -> Result<Shape> {
        Ok(self.check()?.meta().shape)
    }

    /// The sizes of exactly `N` axes.
    #[track_caller]
    pub fn dims<const N: usize>(&self) -> Result<[usize; N]> {
        let s = self.shape()?;
        <[usize; N]>::try_from(&s[..])
            .map_err(|_| Error::shape("dims", &[s], format!("expected {N} axes")))
    }

    /// The number of axes.
    pub fn rank(&self) -> Result<usize> {
        Ok(self.shape()?.rank())
    }

    /// The number of elements.
    pub fn numel(&self) -> Result<usize> {
        Ok(self.shape()?.numel())
    }

    /// The dtype. An invalid tensor says F32.
    pub fn dtype(&self) -> DType {
        self.meta().dtype
    }

    /// The device; `None` for pure numbers, which follow their partner.
    pub fn device(&self) -> Option<&Device> {
        self.node.device.as_ref()
    }

    /// Where the node was built.
    pub fn label(&self) -> &Label {
        &self.node.label
    }

    /// The node's operation.
    pub fn op(&self) -> &Op {
        &self.node.op
    }

    /// The node's inputs.
    pub fn inputs(&self) -> &[Tensor] {
        &self.node.inputs
    }

    /// Which of the node's outputs this is.
    pub fn output_index(&self) -> usize {
        self.out as usize
    }

    /// The number of outputs of the node.
    pub fn output_count(&self) -> usize {
        self.node.outs.len()
    }

    /// Output number `i` of the same node; an `i` beyond the last is clamped to it.
    pub fn output(&self, i: usize) -> Tensor {
        Tensor {
            node: self.node.clone(),
            out: i.min(self.node.outs.len().saturating_sub(1)) as u32,
        }
    }

    /// The node's identity.
    pub fn id(&self) -> NodeId {
        NodeId(Arc::as_ptr(&self.node) as usize)
    }

    /// The state slot this node reads, if it is a read.
    pub fn slot(&self) -> Option<&Slot> {
        self.node.state.as_ref().map(|(s, _)| s)
    }

    /// Whether the value is there already.
    pub fn is_evaluated(&self) -> bool {
        self.value().is_some()
    }

    /// A node like this one on other inputs of the same shapes and dtypes, for passes that copy parts of a graph. Leaves are returned
    /// as they are.
    pub fn with_inputs(&self, inputs: &[Tensor]) -> Tensor {
        if self.node.inputs.is_empty() || self.node.inputs.len() != inputs.len() {
            return self.clone();
        }
        let label = self.node.label.inherit(Label::current);
        let mut t = Tensor::node(
            self.node.op.clone(),
            inputs.iter().cloned().collect(),
            self.node.outs.clone(),
            label,
        );
        if t.error().is_none() {
            t.out = self.out;
        }
        t
    }

    /// A node like this one on other inputs of the same shapes, where floats of 8 and 16 bits are f32: for passes that ask what a graph would give if
    /// nothing were rounded to them. Casts to those dtypes become casts to f32; leaves of those dtypes are cast.
    pub fn widened(&self, inputs: &[Tensor]) -> Tensor {
        let wide = |d: DType| match d {
            DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 => DType::F32,
            d => d,
        };
        let node = &self.node;
        if node.inputs.is_empty() || node.inputs.len() != inputs.len() {
            return match node.outs.iter().all(|m| m.dtype == wide(m.dtype)) {
                true => self.clone(),
                false => node.label.inherit(|| self.cast(wide(self.dtype()))),
            };
        }
        let mut t = node.label.inherit(|| match &node.op {
            Op::Cast(_) => inputs[0].cast(wide(self.dtype())),
            Op::Composite(c) => Tensor::composite(*c, &inputs.iter().collect::<Vec<_>>()),
            Op::Custom(c) => Tensor::custom(c.0.clone(), &inputs.iter().collect::<Vec<_>>()),
            op => {
                let outs = node.outs.iter().map(|m| Meta {
                    dtype: wide(m.dtype),
                    ..*m
                });
                let inputs = inputs.iter().cloned().collect();
                Tensor::node(op.clone(), inputs, outs.collect(), Label::current())
            }
        });
        if t.error().is_none() && t.output_count() > 1 {
            t.out = self.out;
        }
        t
    }

    pub(crate) fn value(&self) -> Option<&Buffer> {
        self.node.values.get(self.out as usize)?.get()
    }

    pub(crate) fn meta(&self) -> Meta {
        self.node.outs[self.out as usize]
    }

    /// Whether this is a bare number, which never changes a partner's dtype.
    pub(crate) fn is_scalar_literal(&self) -> bool {
        matches!(self.node.op, Op::Scalar(Literal::Value(_)))
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(e) = &self.node.error {
            return write!(f, "Tensor(invalid: {e})");
        }
        let m = self.meta();
        write!(
            f,
            "Tensor({}, {:?}, {})",
            self.node.op.name(),
            m.shape,
            m.dtype
        )
    }
}
