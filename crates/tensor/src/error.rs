//! The error of tensors, graphs and devices.
use crate::{DType, Label, Shape};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The result of everything that evaluates.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the facts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes do not fit the operation.
    Shape {
        /// What is wrong and what was expected.
        detail: String,
        /// The shapes found, in the order of the operands.
        found: Vec<Shape>,
    },
    /// Element types do not fit the operation.
    DType {
        /// What is wrong and what was expected.
        detail: String,
        /// The element types found, in the order of the operands.
        found: Vec<DType>,
    },
    /// An argument is out of its range.
    Argument {
        /// What was found and what was expected.
        detail: String,
    },
    /// Tensors of different devices meet, or a device lacks something.
    Device {
        /// What was found and what was expected.
        detail: String,
    },
    /// An index points outside its axis.
    IndexOutOfRange {
        /// The index found.
        index: i64,
        /// The size of the axis; valid indices are `0..size`.
        size: usize,
    },
    /// A node reads a state whose value has been replaced by a later step.
    StateMoved {
        /// The name of the state.
        param: String,
        /// The number of commits the state has seen.
        step: u64,
    },
    /// There is no derivative.
    NoGradient {
        /// For what, and why.
        detail: String,
    },
    /// A state is unusable after a device error during its update.
    Poisoned {
        /// What happened.
        detail: String,
    },
    /// Anything else a layer above reports through this type.
    Other {
        /// The message.
        detail: String,
    },
}

/// An error with the operation, layer path and source line where it arose. Cheap to clone: an invalid
/// node shares it with everything built on it.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    op: &'static str,
    label: Option<Label>,
    reported: AtomicBool,
}

impl Error {
    /// An error of operation `op` at the current layer path and the caller's line.
    #[track_caller]
    pub fn new(op: &'static str, kind: ErrorKind) -> Error {
        Error::at(op, kind, Label::current())
    }

    /// An error at a known label.
    pub fn at(op: &'static str, kind: ErrorKind, label: Label) -> Error {
        Error(Arc::new(Inner {
            kind,
            op,
            label: Some(label),
            reported: AtomicBool::new(false),
        }))
    }

    /// Sizes do not fit: see [`ErrorKind::Shape`].
    #[track_caller]
    pub fn shape(op: &'static str, found: &[Shape], detail: impl Into<String>) -> Error {
        Error::new(
            op,
            ErrorKind::Shape {
                detail: detail.into(),
                found: found.to_vec(),
            },
        )
    }

    /// Element types do not fit: see [`ErrorKind::DType`].
    #[track_caller]
    pub fn dtype(op: &'static str, found: &[DType], detail: impl Into<String>) -> Error {
        Error::new(
            op,
            ErrorKind::DType {
                detail: detail.into(),
                found: found.to_vec(),
            },
        )
    }

    /// An argument is wrong: see [`ErrorKind::Argument`].
    #[track_caller]
    pub fn argument(op: &'static str, detail: impl Into<String>) -> Error {
        Error::new(
            op,
            ErrorKind::Argument {
                detail: detail.into(),
            },
        )
    }

    /// A setting is wrong: see [`ErrorKind::Argument`]. It says what was set, not where in the program that was noticed.
    pub fn setting(op: &'static str, detail: impl Into<String>) -> Error {
        let detail = detail.into();
        Error(Arc::new(Inner {
            kind: ErrorKind::Argument { detail },
            op,
            label: None,
            reported: AtomicBool::new(false),
        }))
    }

    /// A device problem: see [`ErrorKind::Device`].
    #[track_caller]
    pub fn device(op: &'static str, detail: impl Into<String>) -> Error {
        Error::new(
            op,
            ErrorKind::Device {
                detail: detail.into(),
            },
        )
    }

    /// Anything else: see [`ErrorKind::Other`].
    #[track_caller]
    pub fn other(op: &'static str, detail: impl Into<String>) -> Error {
        Error::new(
            op,
            ErrorKind::Other {
                detail: detail.into(),
            },
        )
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Marks the error as seen by somebody; says whether it was before.
    pub(crate) fn report(&self) -> bool {
        self.0.reported.swap(true, Ordering::Relaxed)
    }

    /// The operation that failed.
    pub fn op(&self) -> &'static str {
        self.0.op
    }

    /// Where the failing operation was built: layer path and source line.
    pub fn label(&self) -> Option<&Label> {
        self.0.label.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.0.op)?;
        match &self.0.kind {
            ErrorKind::Shape { detail, found } => {
                write!(f, "{detail}; found shapes ")?;
                list(f, found)?;
            }
            ErrorKind::DType { detail, found } => {
                write!(f, "{detail}; found dtypes ")?;
                list(f, found)?;
            }
            ErrorKind::Argument { detail }
            | ErrorKind::Device { detail }
            | ErrorKind::NoGradient { detail }
            | ErrorKind::Poisoned { detail }
            | ErrorKind::Other { detail } => write!(f, "{detail}")?,
            ErrorKind::IndexOutOfRange { index, size } => {
                write!(f, "index {index} is outside of its axis of size {size}; ")?;
                match size {
                    0 => write!(f, "an empty axis has no valid index")?,
                    _ => write!(f, "valid indices are 0 to {}", size - 1)?,
                }
            }
            ErrorKind::StateMoved { param, step } => write!(
                f,
                "`{param}` has been updated (commit {step}) since this value was built; take a \
                 snapshot before the step, or pass the value to the step"
            )?,
        }
        if let Some(l) = &self.0.label {
            write!(f, " (at {l})")?;
        }
        Ok(())
    }
}

fn list<T: fmt::Debug>(f: &mut fmt::Formatter<'_>, v: &[T]) -> fmt::Result {
    for (i, x) in v.iter().enumerate() {
        write!(f, "{}{x:?}", if i > 0 { ", " } else { "" })?;
    }
    Ok(())
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
