//! Handles to parameters.
use bimetal_tensor::{DType, Result, Shape, Slot, Tensor};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle to a parameter, or to a buffer: state that is kept but not trained. Cheap to clone.
///
/// What a mistake broke (a path that was taken, for instance) carries its error, and so does everything computed from it.
#[derive(Clone)]
pub struct Param {
    shared: Arc<Shared>,
    compute: DType,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Parameter,
    Buffer,
    /// State of how a layer computes, which is saved but is no part of the model.
    Scaling,
}

struct Shared {
    path: Arc<str>,
    slot: Result<Slot>,
    kind: Kind,
    shape: Shape,
    dtype: DType,
    trainable: AtomicBool,
    built: &'static Location<'static>,
}

impl Param {
    #[track_caller]
    pub(crate) fn new(
        path: Arc<str>,
        slot: Result<Slot>,
        kind: Kind,
        shape: Shape,
        dtype: DType,
        compute: DType,
    ) -> Param {
        let shared = Shared {
            path,
            slot,
            kind,
            shape,
            dtype,
            trainable: AtomicBool::new(kind == Kind::Parameter),
            built: Location::caller(),
        };
        Param {
            shared: Arc::new(shared),
            compute,
        }
    }

    /// The same parameter, read in another compute dtype.
    pub(crate) fn computing_in(&self, compute: DType) -> Param {
        Param {
            shared: self.shared.clone(),
            compute,
        }
    }

    /// The state slot that holds the value, or the mistake that kept it from being made.
    pub fn slot(&self) -> Result<&Slot> {
        self.shared.slot.as_ref().map_err(Clone::clone)
    }

    /// The path, which is also the name in checkpoints. A tied parameter has that of its first use.
    pub fn path(&self) -> &str {
        &self.shared.path
    }

    /// The value in a graph, in the dtype it is stored in; valid until the next step.
    pub fn read(&self) -> Tensor {
        match &self.shared.slot {
            Ok(slot) => slot.read(),
            Err(e) => Tensor::invalid(e.clone()),
        }
    }

    /// The value in a graph, cast to the compute dtype of the layer; valid until the next step. Its gradient arrives in the dtype it is stored in.
    pub fn compute(&self) -> Tensor {
        self.read().cast(self.compute)
    }

    /// Whether training changes the parameter; never true of a buffer.
    pub fn trainable(&self) -> bool {
        self.shared.trainable.load(Ordering::Relaxed)
    }

    /// Freezes (`false`) or thaws the parameter, under all its names. A buffer stays what it is.
    pub fn set_trainable(&self, trainable: bool) {
        let trainable = trainable && self.shared.kind == Kind::Parameter;
        self.shared.trainable.store(trainable, Ordering::Relaxed);
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shared.shape
    }

    /// The dtype the value is stored in.
    pub fn dtype(&self) -> DType {
        self.shared.dtype
    }

    /// Replaces the value by `value`, of the same shape, cast to the dtype it is stored in.
    ///
    /// Error: another shape.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        self.slot()?.set(&value.cast(self.shared.dtype))
    }

    /// The dtype [`Param::compute`] gives.
    pub(crate) fn compute_dtype(&self) -> DType {
        self.compute
    }

    pub(crate) fn kind(&self) -> Kind {
        self.shared.kind
    }

    pub(crate) fn built(&self) -> &'static Location<'static> {
        self.shared.built
    }
}

impl std::fmt::Debug for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shared {
            path, shape, dtype, ..
        } = &*self.shared;
        let frozen = match (self.shared.kind, self.trainable()) {
            (Kind::Buffer | Kind::Scaling, _) => ", buffer",
            (Kind::Parameter, true) => "",
            (Kind::Parameter, false) => ", frozen",
        };
        let broken = if self.slot().is_err() { ", broken" } else { "" };
        write!(f, "{path}: {dtype} {shape:?}{frozen}{broken}")
    }
}
