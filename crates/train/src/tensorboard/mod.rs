//! Event files that TensorBoard reads.
//!
//! An event file is a sequence of TFRecords ([`record`]), each holding one protocol buffer message `Event`
//! ([`proto`]). The few messages needed are encoded by hand: a protobuf library with its build step would
//! weigh more than these hundred lines.

mod histogram;
mod proto;
mod record;
mod writer;

pub use histogram::Histogram;
pub use writer::EventWriter;
