//! The IDX format of the MNIST family: 00 00, type, number of dimensions, dimensions as big-endian u32, data big-endian.
//! <http://yann.lecun.com/exdb/mnist/> describes it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use bimetal_dtype::DType;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use crate::array::elements;
use crate::{Array, Error, ErrorKind, Result};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads an IDX file, gzipped or not (its first bytes tell, not its name).
///
/// u8 data stay U8, f32 F32 and f64 F64; i8, i16 and i32 become I32. An error names the file and says what is
/// wrong: no IDX header, unusable dimensions, fewer or more bytes than announced (expected and found), a damaged gzip stream.
pub fn read_idx(path: impl AsRef<Path>) -> Result<Array> {
    let path = path.as_ref();
    let io = |e| Error::io(path, e);
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    if file.fill_buf().map_err(io)?.starts_with(&GZIP_MAGIC) {
        Idx {
            path,
            gzip: true,
            reader: MultiGzDecoder::new(file),
            read: 0,
        }
        .parse()
    } else {
        Idx {
            path,
            gzip: false,
            reader: file,
            read: 0,
        }
        .parse()
    }
}

struct Idx<'a, R> {
    path: &'a Path,
    gzip: bool,
    reader: R,
    read: u64,
}

impl<R: Read> Idx<'_, R> {
    fn parse(mut self) -> Result<Array> {
        let path = self.path.to_path_buf();
        let magic = self.bytes(4, 4)?;
        let (kind, rank) = match magic[..] {
            [0, 0, kind @ (0x08 | 0x09 | 0x0b..=0x0e), rank] => (kind, rank),
            [a, b, c, d] => {
                return Err(ErrorKind::IdxMagic {
                    path,
                    found: [a, b, c, d],
                }
                .into());
            }
            _ => return Err(self.length(4)),
        };
        let header = 4 + 4 * u64::from(rank);
        let shape: Vec<usize> = self
            .bytes(4 * usize::from(rank), header)?
            .chunks_exact(4)
            .map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]]) as usize)
            .collect();
        let width = match kind {
            0x08 | 0x09 => 1,
            0x0b => 2,
            0x0e => 8,
            _ => 4,
        };
        // The widest element an integer or float of the file can become is 8 bytes: nothing below overflows.
        let count =
            elements(&shape).filter(|n| n.checked_mul(8).is_some_and(|b| b <= isize::MAX as usize));
        let Some(count) = count.filter(|_| rank > 0) else {
            return Err(ErrorKind::IdxDims { path, dims: shape }.into());
        };
        let expected = header + (count * width) as u64;
        let data = self.bytes(count * width, expected)?;
        self.finish(expected)?;

        let array = |v: Vec<i32>| Array::from_vec(v, &shape);
        match kind {
            0x08 => Array::from_bytes(DType::U8, &shape, data),
            0x09 => array(data.iter().map(|b| i32::from(*b as i8)).collect()),
            0x0b => array(
                data.chunks_exact(2)
                    .map(|c| i32::from(i16::from_be_bytes([c[0], c[1]])))
                    .collect(),
            ),
            0x0c => array(
                data.chunks_exact(4)
                    .map(|c| i32::from_be_bytes([c[0], c[1], c[2], c[3]]))
                    .collect(),
            ),
            0x0d => Array::from_bytes(DType::F32, &shape, swap::<4>(data)),
            _ => Array::from_bytes(DType::F64, &shape, swap::<8>(data)),
        }
    }

    /// Exactly `n` bytes, or the error that the file ends before `expected`, all bytes asked for so far.
    fn bytes(&mut self, n: usize, expected: u64) -> Result<Vec<u8>> {
        // Grows with what is there, so a corrupt header cannot ask for more memory than the file fills.
        let mut bytes = Vec::new();
        let outcome = self.reader.by_ref().take(n as u64).read_to_end(&mut bytes);
        self.read += bytes.len() as u64;
        outcome.map_err(|e| self.damage(e))?;
        if bytes.len() < n {
            Err(self.length(expected))
        } else {
            Ok(bytes)
        }
    }

    /// Reads to the end, which also verifies the gzip checksum; an error if anything is left.
    fn finish(&mut self, expected: u64) -> Result<()> {
        let mut block = [0; 8192];
        loop {
            match self.reader.read(&mut block) {
                Ok(0) => break,
                Ok(n) => self.read += n as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.damage(e)),
            }
        }
        if self.read == expected {
            Ok(())
        } else {
            Err(self.length(expected))
        }
    }

    fn length(&self, expected: u64) -> Error {
        ErrorKind::IdxLength {
            path: self.path.to_path_buf(),
            expected,
            found: self.read,
        }
        .into()
    }

    fn damage(&self, e: io::Error) -> Error {
        if self.gzip {
            ErrorKind::Gzip {
                path: self.path.to_path_buf(),
                after: self.read,
                message: e.to_string(),
            }
            .into()
        } else {
            Error::io(self.path, e)
        }
    }
}

/// Big-endian elements of `N` bytes to native order, or back.
fn swap<const N: usize>(mut bytes: Vec<u8>) -> Vec<u8> {
    if cfg!(target_endian = "little") {
        bytes.chunks_exact_mut(N).for_each(<[u8]>::reverse);
    }
    bytes
}

/// Writes an array as an IDX file, gzipped if the name ends in `.gz`.
///
/// U8, I32, F32 and F64 arrays with 1 to 255 dimensions; an error for others and for a file that cannot be written.
/// Equal arrays give equal files.
pub fn write_idx(path: impl AsRef<Path>, array: &Array) -> Result<()> {
    let path = path.as_ref();
    let (kind, data) = match array.dtype() {
        DType::U8 => (0x08, array.bytes().to_vec()),
        DType::I32 => (0x0c, swap::<4>(array.bytes().to_vec())),
        DType::F32 => (0x0d, swap::<4>(array.bytes().to_vec())),
        DType::F64 => (0x0e, swap::<8>(array.bytes().to_vec())),
        found => {
            return Err(ErrorKind::Type {
                expected: "u8, i32, f32 or f64",
                found,
            }
            .into());
        }
    };
    let unfit = || ErrorKind::IdxDims {
        path: path.to_path_buf(),
        dims: array.shape().to_vec(),
    };
    let rank = u8::try_from(array.shape().len())
        .ok()
        .filter(|r| *r > 0)
        .ok_or_else(unfit)?;
    let mut content = vec![0, 0, kind, rank];
    for dim in array.shape() {
        content.extend(u32::try_from(*dim).map_err(|_| unfit())?.to_be_bytes());
    }
    content.extend(data);
    let write = || -> io::Result<()> {
        let mut file = File::create(path)?;
        if path.extension().is_some_and(|e| e == "gz") {
            let mut encoder = GzEncoder::new(file, Compression::best());
            encoder.write_all(&content)?;
            encoder.finish()?.flush()
        } else {
            file.write_all(&content)
        }
    };
    write().map_err(|e| Error::io(path, e))
}
