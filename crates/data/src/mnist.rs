//! MNIST and the data sets that come in its files.

use std::path::{Path, PathBuf};

use bimetal_dtype::DType;

use crate::{Array, Error, ErrorKind, InMemory, Result, read_idx};

/// The two parts of MNIST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// `train-images-idx3-ubyte` and its labels: 60,000 samples in the full set.
    Train,
    /// `t10k-images-idx3-ubyte` and its labels: 10,000 samples in the full set.
    Test,
}

/// MNIST (LeCun, Cortes, Burges) from a folder with its IDX files, each gzipped or not.
///
/// The fields are images, U8 `[28, 28]`, and labels, I32 `[]`. Fashion-MNIST, KMNIST and others in the same
/// files work too, with their own image sizes. A missing, truncated or corrupt file, and different numbers of images and labels, are errors
/// that name the files.
pub fn mnist(dir: impl AsRef<Path>, split: Split) -> Result<InMemory> {
    let dir = dir.as_ref();
    let part = match split {
        Split::Train => "train",
        Split::Test => "t10k",
    };
    let images_path = find(dir, part, "images", 3)?;
    let labels_path = find(dir, part, "labels", 1)?;
    let images = read(&images_path, 3, "images: u8 [n, height, width]")?;
    let labels = read(&labels_path, 1, "labels: u8 [n]")?;
    if images.rows() != labels.rows() {
        return Err(ErrorKind::CountMismatch {
            images: images_path,
            image_count: images.rows(),
            labels: labels_path,
            label_count: labels.rows(),
        }
        .into());
    }
    InMemory::new(vec![images, labels.to_i32()?])
}

fn find(dir: &Path, part: &str, what: &str, rank: usize) -> Result<PathBuf> {
    // Some mirrors write a dot where the original has a dash.
    let tried: Vec<String> = [("-", ".gz"), ("-", ""), (".", ".gz"), (".", "")]
        .iter()
        .map(|(dash, gz)| format!("{part}-{what}{dash}idx{rank}-ubyte{gz}"))
        .collect();
    for name in &tried {
        let path = dir.join(name);
        if path.try_exists().map_err(|e| Error::io(&path, e))? {
            return Ok(path);
        }
    }
    Err(ErrorKind::Missing {
        dir: dir.to_path_buf(),
        tried,
    }
    .into())
}

fn read(path: &Path, rank: usize, expected: &str) -> Result<Array> {
    let array = read_idx(path)?;
    if array.dtype() != DType::U8 || array.shape().len() != rank {
        return Err(ErrorKind::WrongContent {
            path: path.to_path_buf(),
            expected: expected.into(),
            found: format!("{:?} {:?}", array.dtype(), array.shape()),
        }
        .into());
    }
    Ok(array)
}
