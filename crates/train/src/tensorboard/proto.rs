//! The messages of an event file, encoded by hand.
//!
//! Field numbers are those of TensorBoard's `event.proto`, `summary.proto`, `histogram.proto` and
//! `tensor.proto`; the wire format is that of the Protocol Buffers encoding guide.

use super::Histogram;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

/// `DT_STRING` of `types.proto`.
const DT_STRING: u64 = 7;
/// `DATA_CLASS_TENSOR` of `summary.proto`.
const DATA_CLASS_TENSOR: u64 = 2;
/// `SessionLog.START` of `event.proto`.
const SESSION_START: u64 = 1;

/// A protocol buffer message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire: u32) {
        self.raw_varint(u64::from(field << 3 | wire));
    }

    fn varint(mut self, field: u32, value: u64) -> Self {
        self.key(field, VARINT);
        self.raw_varint(value);
        self
    }

    fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, FIXED32);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.key(field, BYTES);
        self.raw_varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn string(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    fn message(self, field: u32, value: Message) -> Self {
        self.bytes(field, &value.0)
    }

    fn doubles(self, field: u32, values: &[f64]) -> Self {
        let packed: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(field, &packed)
    }
}

/// What one `Event` carries.
pub(super) enum Event<'a> {
    /// The first event of a file.
    FileVersion,
    /// Tells readers to forget what older files say about this step and later ones.
    SessionStart,
    /// One number.
    Scalar { tag: &'a str, value: f32 },
    /// One histogram.
    Histogram { tag: &'a str, value: &'a Histogram },
    /// One Markdown text.
    Text { tag: &'a str, value: &'a str },
    /// A page of the custom scalars dashboard: its title, and charts of a title and a pattern of tags each.
    Layout {
        title: &'a str,
        charts: &'a [(&'a str, &'a str)],
    },
}

impl Event<'_> {
    /// The encoded `Event` message.
    pub(super) fn encode(&self, wall_time: f64, step: u64) -> Vec<u8> {
        let event = Message::default().double(1, wall_time).varint(2, step);
        match self {
            Event::FileVersion => event.string(3, "brain.Event:2"),
            Event::SessionStart => event.message(7, Message::default().varint(1, SESSION_START)),
            Event::Scalar { tag, value } => {
                event.summary(Message::default().string(1, tag).float(2, *value))
            }
            Event::Histogram { tag, value } => event.summary(
                Message::default()
                    .string(1, tag)
                    .message(5, histogram(value)),
            ),
            Event::Text { tag, value } => event.summary(
                Message::default()
                    .string(1, tag)
                    .message(9, metadata("text"))
                    .message(8, string_tensor(value)),
            ),
            Event::Layout { title, charts } => {
                let layout = layout(title, charts);
                let tensor = Message::default()
                    .varint(1, DT_STRING)
                    .message(2, Message::default())
                    .bytes(8, &layout.0);
                event.summary(
                    Message::default()
                        .string(1, "custom_scalars__config__")
                        .message(9, metadata("custom_scalars"))
                        .message(8, tensor),
                )
            }
        }
        .0
    }
}

impl Message {
    /// Wraps a `Summary.Value` into `Summary` and that into this `Event`.
    fn summary(self, value: Message) -> Self {
        self.message(5, Message::default().message(1, value))
    }
}

fn histogram(h: &Histogram) -> Message {
    Message::default()
        .double(1, h.min)
        .double(2, h.max)
        .double(3, h.count as f64)
        .double(4, h.sum)
        .double(5, h.sum_squares)
        .doubles(6, &h.limits)
        .doubles(7, &h.counts)
}

fn metadata(plugin: &str) -> Message {
    Message::default()
        .message(1, Message::default().string(1, plugin))
        .varint(4, DATA_CLASS_TENSOR)
}

/// A `Layout` of one `Category` (`layout.proto` of the custom scalars plugin).
fn layout(title: &str, charts: &[(&str, &str)]) -> Message {
    let category = charts
        .iter()
        .fold(Message::default().string(1, title), |all, (title, tags)| {
            let multiline = Message::default().string(1, tags);
            all.message(2, Message::default().string(1, title).message(2, multiline))
        });
    Message::default().message(2, category)
}

/// A `TensorProto` of one string, shape `[1]`.
fn string_tensor(value: &str) -> Message {
    let shape = Message::default().message(2, Message::default().varint(1, 1));
    Message::default()
        .varint(1, DT_STRING)
        .message(2, shape)
        .string(8, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints() {
        // 150 is the example of the encoding guide; the maximum takes ten bytes.
        assert_eq!(Message::default().varint(1, 150).0, [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().varint(1, u64::MAX).0.len(), 11);
    }

    #[test]
    fn scalar_event() {
        let event = Event::Scalar {
            tag: "a",
            value: 1.0,
        }
        .encode(2.0, 3);
        let expected = [
            0x09, 0, 0, 0, 0, 0, 0, 0, 0x40, // wall_time = 2.0
            0x10, 3, // step = 3
            0x2a, 10, 0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0x80, 0x3f,
        ];
        assert_eq!(event, expected);
    }
}
