//! The one error type of this crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::StateMismatch;

/// Result of the operations of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the facts needed to put it right; one pointer wide.
#[derive(Debug)]
pub struct Error(Box<ErrorKind>);

/// The kinds of [`Error`].
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An operation on a file or folder failed.
    Io {
        /// What was being done, as a verb phrase: "write", "open", "rename".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// An output folder cannot be written; found out before training starts.
    Unwritable {
        /// The folder.
        dir: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file of a checkpoint is not what was written.
    Corrupt {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// A folder holds checkpoints, but none of them is whole.
    NoWholeCheckpoint {
        /// The folder that was searched.
        dir: PathBuf,
        /// Why each candidate was rejected, newest first.
        rejected: Vec<String>,
    },
    /// A checkpoint does not hold the parameters that the model has.
    StateMismatch(StateMismatch),
    /// An argument is not acceptable; the text says what was found and what was expected.
    Invalid(String),
    /// A tensor could not be computed: a mistake in the model or task, an index out of range, a device failure.
    Tensor(bimetal_tensor::Error),
    /// A batch could not be made.
    Data(bimetal_data::Error),
    /// A loss was NaN or infinite and a callback was told to treat that as an error.
    NonFiniteLoss {
        /// Where: "step 12" or "batch 3".
        at: String,
        /// The value found.
        loss: f64,
    },
}

/// What is wrong with one file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The file is not there.
    Missing,
    /// The file has another size than the manifest says.
    Size {
        /// Bytes according to the manifest.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The size is right and the content is not.
    Checksum {
        /// CRC-32C according to the manifest.
        expected: u32,
        /// CRC-32C of the content found.
        found: u32,
    },
    /// The file is not the JSON it should be.
    Json(String),
    /// The file was written in a format newer than this program reads.
    Format {
        /// Version found in the file.
        found: u32,
        /// Newest version that this program reads.
        supported: u32,
    },
    /// The content contradicts itself or the other files.
    Content(String),
}

impl Error {
    /// The kind of this error, with its facts.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// An argument that is not acceptable: say what was found, what was expected and what to do.
    pub fn invalid(what: impl Into<String>) -> Self {
        ErrorKind::Invalid(what.into()).into()
    }

    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        ErrorKind::Io {
            action,
            path,
            source,
        }
        .into()
    }

    pub(crate) fn unwritable(dir: impl AsRef<Path>, source: io::Error) -> Self {
        let dir = dir.as_ref().to_path_buf();
        ErrorKind::Unwritable { dir, source }.into()
    }

    pub(crate) fn corrupt(file: impl AsRef<Path>, problem: Problem) -> Self {
        let file = file.as_ref().to_path_buf();
        ErrorKind::Corrupt { file, problem }.into()
    }
}

impl From<bimetal_tensor::Error> for Error {
    fn from(error: bimetal_tensor::Error) -> Self {
        ErrorKind::Tensor(error).into()
    }
}

impl From<bimetal_data::Error> for Error {
    fn from(error: bimetal_data::Error) -> Self {
        ErrorKind::Data(error).into()
    }
}

impl From<bimetal_precision::PolicyError> for Error {
    fn from(error: bimetal_precision::PolicyError) -> Self {
        bimetal_tensor::Error::from(error).into()
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            ErrorKind::Io {
                action,
                path,
                source,
            } => {
                write!(f, "cannot {action} `{}`: {source}", path.display())
            }
            ErrorKind::Unwritable { dir, source } => write!(
                f,
                "output folder `{}` cannot be written: {source}; choose another folder or change its permissions",
                dir.display()
            ),
            ErrorKind::Corrupt { file, problem } => {
                write!(f, "checkpoint file `{}` {problem}", file.display())
            }
            ErrorKind::NoWholeCheckpoint { dir, rejected } => {
                write!(f, "no checkpoint in `{}` is whole:", dir.display())?;
                for why in rejected {
                    write!(f, "\n  {why}")?;
                }
                write!(f, "\nremove the folder to start afresh")
            }
            ErrorKind::StateMismatch(mismatch) => write!(f, "{mismatch}"),
            ErrorKind::Invalid(what) => f.write_str(what),
            ErrorKind::Tensor(error) => write!(f, "{error}"),
            ErrorKind::Data(error) => write!(f, "{error}"),
            ErrorKind::NonFiniteLoss { at, loss } => write!(
                f,
                "the loss at {at} is {loss}; lower the learning rate, clip the gradients, or switch numerics checks on to find the layer"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.kind() {
            ErrorKind::Io { source, .. } | ErrorKind::Unwritable { source, .. } => Some(source),
            ErrorKind::Tensor(error) => error.source(),
            ErrorKind::Data(error) => error.source(),
            _ => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing => write!(f, "is missing"),
            Problem::Size { expected, found } if found < expected => {
                write!(f, "is truncated: {found} bytes instead of {expected}")
            }
            Problem::Size { expected, found } => {
                write!(
                    f,
                    "is longer than written: {found} bytes instead of {expected}"
                )
            }
            Problem::Checksum { expected, found } => write!(
                f,
                "is damaged: its CRC-32C is {found:08x}, the manifest says {expected:08x}"
            ),
            Problem::Json(why) => write!(f, "is not valid JSON of its kind: {why}"),
            Problem::Format { found, supported } => write!(
                f,
                "has format version {found}; this program reads up to {supported}, use a newer one"
            ),
            Problem::Content(why) => write!(f, "is inconsistent: {why}"),
        }
    }
}
