//! The crate's error: one boxed type whose kind carries the facts.

use std::fmt;
use std::path::{Path, PathBuf};

use bimetal_dtype::DType;

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong with a data set or a loader; [`Error::kind`] has the facts.
#[derive(Debug)]
pub struct Error(Box<ErrorKind>);

/// The kinds of [`Error`], each with the facts of its case.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file could not be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file that should be in a folder is not there.
    Missing {
        /// The folder.
        dir: PathBuf,
        /// The file names that would have been accepted.
        tried: Vec<String>,
    },
    /// A file does not begin as an IDX file does.
    IdxMagic {
        /// The file.
        path: PathBuf,
        /// Its first four bytes, after decompression.
        found: [u8; 4],
    },
    /// The dimensions in an IDX header are unusable.
    IdxDims {
        /// The file.
        path: PathBuf,
        /// The dimensions found.
        dims: Vec<usize>,
    },
    /// An IDX file has more or fewer bytes than its header announces.
    IdxLength {
        /// The file.
        path: PathBuf,
        /// Bytes that header and data should have, after decompression.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A gzip stream is truncated or corrupt.
    Gzip {
        /// The file.
        path: PathBuf,
        /// Bytes that decompressed before the damage was noticed.
        after: u64,
        /// What the decoder said.
        message: String,
    },
    /// A file holds an array other than the one its place asks for.
    WrongContent {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// Two files that belong together hold different numbers of samples.
    CountMismatch {
        /// The image file.
        images: PathBuf,
        /// Images in it.
        image_count: usize,
        /// The label file.
        labels: PathBuf,
        /// Labels in it.
        label_count: usize,
    },
    /// The data do not have as many elements or bytes as their shape says.
    Length {
        /// The shape.
        shape: Vec<usize>,
        /// What is counted: elements, or bytes where raw bytes were given.
        unit: &'static str,
        /// How many the shape asks for; `None` where that overflows.
        expected: Option<usize>,
        /// How many there are.
        found: usize,
    },
    /// An array has another element type than the operation needs.
    Type {
        /// What is accepted.
        expected: &'static str,
        /// What was found.
        found: DType,
    },
    /// A value does not fit the element type it is converted to.
    Value {
        /// The value.
        value: String,
        /// The type or rule it breaks.
        expected: &'static str,
    },
    /// Arrays or data sets that must agree do not.
    Mismatch {
        /// Where: an array's number, a field, an adapter.
        what: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A sample index is outside the data set.
    Index {
        /// The index.
        index: usize,
        /// Samples in the data set.
        len: usize,
    },
    /// A range of samples is outside the data set.
    Range {
        /// First sample.
        start: usize,
        /// One past the last sample.
        end: usize,
        /// Samples in the data set.
        len: usize,
    },
    /// The data set has no samples.
    Empty,
    /// A batch is larger than the data set while remainders are dropped, so no batch would ever come.
    BatchTooLarge {
        /// Rows asked for.
        batch: usize,
        /// Samples in the data set.
        samples: usize,
    },
    /// The loader's options contradict each other or are out of range.
    Options(String),
    /// A cursor does not belong to this loader.
    CursorRange {
        /// The cursor's batch index.
        index: u64,
        /// Batches in one epoch of this loader.
        batches: u64,
    },
    /// A character is not in the vocabulary.
    UnknownChar {
        /// The character.
        found: char,
        /// Its position in the text, in characters.
        position: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A token number is not in the vocabulary.
    UnknownToken {
        /// The number.
        found: i32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A text is shorter than one window.
    TextTooShort {
        /// Tokens in the text.
        tokens: usize,
        /// Tokens that a window needs: context + 1.
        needed: usize,
    },
    /// A batch could not be made; `source` says why.
    Batch {
        /// Epoch of the batch.
        epoch: u64,
        /// Index of the batch in its epoch.
        index: u64,
        /// The cause.
        source: Error,
    },
    /// A source or a map function panicked.
    Panic {
        /// The panic's message.
        message: String,
    },
    /// The prefetch thread could not be started, or ended on its own.
    Thread {
        /// What happened.
        message: String,
    },
    /// An error of a user's source or map function.
    Custom(String),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Error::new(ErrorKind::Io {
            path: path.to_path_buf(),
            source,
        })
    }

    /// An error with a message of your own, for sources and map functions.
    pub fn custom(message: impl fmt::Display) -> Self {
        Error::new(ErrorKind::Custom(message.to_string()))
    }

    /// The kind of the error, with its facts.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error::new(kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            ErrorKind::Io { path, source } => write!(f, "{}: {source}", path.display()),
            ErrorKind::Missing { dir, tried } => {
                write!(
                    f,
                    "{}: none of {} found; put one of them there or name another folder",
                    dir.display(),
                    tried.join(", ")
                )
            }
            ErrorKind::IdxMagic {
                path,
                found: [a, b, c, d],
            } => write!(
                f,
                "{}: neither a gzip stream nor an IDX file: it begins with {a:02x} {b:02x} {c:02x} {d:02x}, expected 00 00, \
                 a type (08, 09, 0b, 0c, 0d or 0e) and the number of dimensions; download it again",
                path.display()
            ),
            ErrorKind::IdxDims { path, dims } => write!(
                f,
                "{}: its IDX header has dimensions {dims:?}, expected at least one and a size that fits memory; \
                 the file is corrupt, download it again",
                path.display()
            ),
            ErrorKind::IdxLength {
                path,
                expected,
                found,
            } => write!(
                f,
                "{}: {}: its IDX header asks for {expected} bytes, found {found}; download it again",
                path.display(),
                if found < expected {
                    "truncated"
                } else {
                    "corrupt"
                }
            ),
            ErrorKind::Gzip {
                path,
                after,
                message,
            } => write!(
                f,
                "{}: the gzip stream is truncated or corrupt after {after} decompressed bytes ({message}); download it again",
                path.display()
            ),
            ErrorKind::WrongContent {
                path,
                expected,
                found,
            } => {
                write!(f, "{}: expected {expected}, found {found}", path.display())
            }
            ErrorKind::CountMismatch {
                images,
                image_count,
                labels,
                label_count,
            } => write!(
                f,
                "{} holds {image_count} images, but {} holds {label_count} labels; use two files of the same data set",
                images.display(),
                labels.display()
            ),
            ErrorKind::Length {
                shape,
                unit,
                expected: Some(expected),
                found,
            } => {
                write!(
                    f,
                    "shape {shape:?} asks for {expected} {unit}, but the data have {found}"
                )
            }
            ErrorKind::Length {
                shape,
                unit,
                expected: None,
                found,
            } => {
                write!(
                    f,
                    "shape {shape:?} asks for more {unit} than memory can hold; the data have {found}"
                )
            }
            ErrorKind::Type { expected, found } => {
                write!(f, "expected an array of {expected}, found {found:?}")
            }
            ErrorKind::Value { value, expected } => write!(f, "value {value} is not {expected}"),
            ErrorKind::Mismatch {
                what,
                expected,
                found,
            } => write!(f, "{what}: expected {expected}, found {found}"),
            ErrorKind::Index { index, len } => {
                write!(
                    f,
                    "sample {index} asked for, but the data set has {len} samples"
                )
            }
            ErrorKind::Range { start, end, len } => {
                write!(
                    f,
                    "samples {start}..{end} asked for, but the data set has {len} samples"
                )
            }
            ErrorKind::Empty => write!(
                f,
                "the data set is empty; a loader needs at least one sample"
            ),
            ErrorKind::BatchTooLarge { batch, samples } => write!(
                f,
                "a batch of {batch} is larger than the data set of {samples} samples and remainders are dropped, \
                 so no batch would ever come; use a batch of at most {samples} or drop_remainder(false)"
            ),
            ErrorKind::Options(message) | ErrorKind::Custom(message) => write!(f, "{message}"),
            ErrorKind::CursorRange { index, batches } => write!(
                f,
                "cannot restore batch {index}: an epoch of this loader has {batches} batches; \
                 the position was saved with other data, another batch size or other options"
            ),
            ErrorKind::UnknownChar {
                found,
                position,
                vocab,
            } => write!(
                f,
                "character {found:?} at position {position} is not in the vocabulary of {vocab} characters; \
                 build the vocabulary from a text that has it"
            ),
            ErrorKind::UnknownToken { found, vocab } => {
                write!(
                    f,
                    "token {found} is not in the vocabulary: expected 0 to {}",
                    vocab.saturating_sub(1)
                )
            }
            ErrorKind::TextTooShort { tokens, needed } => write!(
                f,
                "a text of {tokens} tokens is too short: one window needs {needed} (context + 1); \
                 use a longer text or a shorter context"
            ),
            ErrorKind::Batch {
                epoch,
                index,
                source,
            } => write!(f, "making batch {index} of epoch {epoch}: {source}"),
            ErrorKind::Panic { message } => {
                write!(f, "a source or map function panicked: {message}")
            }
            ErrorKind::Thread { message } => write!(
                f,
                "prefetching failed: {message}; prefetch(0) does without a thread"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.kind() {
            ErrorKind::Io { source, .. } => Some(source),
            ErrorKind::Batch { source, .. } => Some(source),
            _ => None,
        }
    }
}
