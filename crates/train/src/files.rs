//! Writing to files without losing count.

use std::io::{self, Write};

/// Writes the whole buffer and empties it; after an error it holds what did not arrive, so that a second attempt
/// repeats nothing.
pub(crate) fn drain_into(out: &mut impl Write, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut done = 0;
    let result = loop {
        if done == buffer.len() {
            break Ok(());
        }
        match out.write(&buffer[done..]) {
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => break Err(e),
        }
    };
    buffer.drain(..done);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes three bytes at a time and fails every second time.
    struct Stubborn(Vec<u8>, u32);

    impl Write for Stubborn {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(2) {
                return Err(io::Error::other("full"));
            }
            let n = data.len().min(3);
            self.0.extend_from_slice(&data[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn attempts_add_up() {
        let mut out = Stubborn(Vec::new(), 0);
        let mut buffer = b"0123456789".to_vec();
        let attempts = (1..).find(|_| drain_into(&mut out, &mut buffer).is_ok());
        assert_eq!(attempts, Some(4));
        assert_eq!(out.0, b"0123456789");
        assert!(buffer.is_empty());
    }
}
