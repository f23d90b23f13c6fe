//! TFRecord framing: `length: u64`, masked CRC-32C of the length, data, masked CRC-32C of the data, all
//! little-endian (format: TensorFlow's "TFRecord and tf.train.Example" guide).

/// CRC-32C of `data`, rotated right by 15 bits plus a constant: a checksum of data that holds checksums stays useful.
fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

/// Appends one record to `out`.
pub(super) fn append(out: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc32c(&length).to_le_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(&masked_crc32c(data).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_check_value() {
        // The check value of CRC-32C in the catalogue of parametrised CRC algorithms; the masked one is what the
        // `tensorboard` package computes for the same bytes.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc32c(b"123456789"), 0xc78a_b0e5);
    }

    #[test]
    fn layout() {
        let mut out = Vec::new();
        append(&mut out, b"abc");
        assert_eq!(out.len(), 8 + 4 + 3 + 4);
        assert_eq!(out[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&out[12..15], b"abc");
    }
}
