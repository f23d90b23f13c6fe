//! IDX files: round trips, damage of every kind, the shipped MNIST and the full one.

use std::path::{Path, PathBuf};

use bimetal_data::{Array, ErrorKind, Source, Split, mnist, read_idx, write_idx};
use bimetal_dtype::DType;

/// A folder of its own for a test, empty at the start.
fn folder(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn pixels(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    Array::from_vec((0..n).map(|i| (i * 37 % 251) as u8).collect(), shape).unwrap()
}

#[test]
fn round_trips_gzipped_or_not() {
    let dir = folder("round_trips");
    let arrays = [
        pixels(&[5, 4, 3]),
        Array::from_vec(vec![i32::MIN, -1, 0, i32::MAX], &[2, 2]).unwrap(),
        Array::from(vec![1.5f32, f32::NEG_INFINITY, 1e-40]),
        Array::from(vec![std::f64::consts::PI, -0.0]),
        pixels(&[0, 7]),
    ];
    for array in &arrays {
        for name in ["a.idx", "a.idx.gz"] {
            let path = dir.join(name);
            write_idx(&path, array).unwrap();
            assert_eq!(&read_idx(&path).unwrap(), array, "{name}");
            assert_eq!(
                std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]),
                name.ends_with("gz")
            );
        }
        // The content decides, not the name.
        std::fs::rename(dir.join("a.idx.gz"), dir.join("b.idx")).unwrap();
        assert_eq!(&read_idx(dir.join("b.idx")).unwrap(), array);
    }
    assert!(write_idx(dir.join("c"), &Array::from(vec![true])).is_err());
    assert!(write_idx(dir.join("c"), &Array::from_vec(vec![1u8], &[]).unwrap()).is_err());
    assert!(
        write_idx(dir.join("no/such/folder"), &arrays[0])
            .unwrap_err()
            .to_string()
            .contains("no/such/folder")
    );
}

/// Files written out byte by byte, as the format's description has them.
#[test]
fn reads_every_type_of_the_format() {
    let dir = folder("every_type");
    let read = |bytes: &[u8]| {
        std::fs::write(dir.join("f"), bytes).unwrap();
        read_idx(dir.join("f")).unwrap()
    };
    let a = read(&[0, 0, 0x08, 1, 0, 0, 0, 2, 7, 255]);
    assert_eq!(
        (a.dtype(), a.to_vec::<u8>().unwrap()),
        (DType::U8, vec![7, 255])
    );
    let a = read(&[0, 0, 0x09, 1, 0, 0, 0, 2, 7, 255]);
    assert_eq!(
        (a.dtype(), a.to_vec::<i32>().unwrap()),
        (DType::I32, vec![7, -1])
    );
    let a = read(&[0, 0, 0x0b, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0xff, 0xfe]);
    assert_eq!(
        (a.shape(), a.to_vec::<i32>().unwrap()),
        (&[1, 2][..], vec![256, -2])
    );
    let a = read(&[0, 0, 0x0c, 1, 0, 0, 0, 1, 0x80, 0, 0, 1]);
    assert_eq!(a.to_vec::<i32>().unwrap(), [i32::MIN + 1]);
    let a = read(&[0, 0, 0x0d, 1, 0, 0, 0, 1, 0x3f, 0xc0, 0, 0]);
    assert_eq!(a.to_vec::<f32>().unwrap(), [1.5]);
    let a = read(&[0, 0, 0x0e, 1, 0, 0, 0, 1, 0xc0, 0x04, 0, 0, 0, 0, 0, 0]);
    assert_eq!(a.to_vec::<f64>().unwrap(), [-2.5]);
}

#[test]
fn every_truncation_is_one_error_that_names_the_file() {
    let dir = folder("truncation");
    let array = pixels(&[6, 5, 4]);
    for name in ["whole.idx", "whole.idx.gz"] {
        let whole = dir.join(name);
        write_idx(&whole, &array).unwrap();
        let bytes = std::fs::read(&whole).unwrap();
        let cut_path = dir.join(format!("cut-{name}"));
        for keep in 0..bytes.len() {
            std::fs::write(&cut_path, &bytes[..keep]).unwrap();
            let e = read_idx(&cut_path).unwrap_err();
            assert!(e.to_string().contains(&format!("cut-{name}")), "{e}");
            match e.kind() {
                ErrorKind::IdxLength {
                    expected, found, ..
                } => {
                    assert_eq!(*found, keep as u64);
                    assert_eq!(
                        *expected,
                        if keep < 4 {
                            4
                        } else if keep < 16 {
                            16
                        } else {
                            136
                        }
                    );
                    assert!(e.to_string().contains("truncated"), "{e}");
                }
                ErrorKind::Gzip { after, .. } => assert!(name.ends_with("gz") && *after <= 136),
                other => panic!("cut to {keep}: {other:?}"),
            }
        }
    }
}

#[test]
fn every_flipped_byte_of_a_gzip_file_is_an_error_or_harmless() {
    let dir = folder("flips");
    let array = pixels(&[6, 5, 4]);
    let path = dir.join("f.idx.gz");
    write_idx(&path, &array).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let mut harmless = Vec::new();
    for at in 0..bytes.len() {
        for bit in [0x01, 0x10, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= bit;
            std::fs::write(&path, &damaged).unwrap();
            match read_idx(&path) {
                Ok(read) => {
                    assert_eq!(
                        read, array,
                        "byte {at} ^ {bit:#x} changed the data unnoticed"
                    );
                    harmless.push(at);
                }
                Err(e) => assert!(e.to_string().contains("f.idx.gz"), "{e}"),
            }
        }
    }
    // Time stamp, flags and system in the gzip header do not matter, nor do spare codes in the first deflate header.
    assert!(
        harmless.iter().all(|at| (3..12).contains(at)),
        "{harmless:?}"
    );
}

#[test]
fn damaged_headers_and_lengths() {
    let dir = folder("headers");
    let path = dir.join("f");
    let error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let e = read_idx(&path).unwrap_err();
        assert!(
            e.to_string().starts_with(&path.display().to_string()),
            "{e}"
        );
        e
    };
    let good: Vec<u8> = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6].into();
    for at in 0..3 {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        let e = error(&bad);
        assert!(
            matches!(e.kind(), ErrorKind::IdxMagic { found, .. } if found[at] == bad[at]),
            "{e}"
        );
    }
    assert!(matches!(
        error(b"<html>404</html>").kind(),
        ErrorKind::IdxMagic {
            found: [b'<', b'h', b't', b'm'],
            ..
        }
    ));
    for at in 3..12 {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        let e = error(&bad);
        assert!(
            matches!(e.kind(), ErrorKind::IdxLength { expected, .. } if *expected > 18),
            "byte {at}: {e}"
        );
    }
    let mut long = good.clone();
    long.extend([0; 5]);
    let e = error(&long);
    assert!(
        matches!(
            e.kind(),
            ErrorKind::IdxLength {
                expected: 18,
                found: 23,
                ..
            }
        ),
        "{e}"
    );
    assert!(e.to_string().contains("18") && e.to_string().contains("23"));
    // Dimensions whose product overflows, and none at all.
    let mut huge = vec![0, 0, 8, 3];
    huge.extend([0xff; 12]);
    assert!(matches!(error(&huge).kind(), ErrorKind::IdxDims { .. }));
    assert!(matches!(
        error(&[0, 0, 8, 0, 1]).kind(),
        ErrorKind::IdxDims { .. }
    ));
    assert!(matches!(
        error(&[]).kind(),
        ErrorKind::IdxLength {
            expected: 4,
            found: 0,
            ..
        }
    ));
    let e = read_idx(dir.join("absent")).unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::Io { .. }) && e.to_string().contains("absent"),
        "{e}"
    );
}

#[test]
fn rubbish_after_the_gzip_stream_is_an_error() {
    let dir = folder("rubbish");
    let path = dir.join("f.gz");
    write_idx(&path, &pixels(&[3, 3])).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend(b"rubbish");
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(
        read_idx(&path).unwrap_err().kind(),
        ErrorKind::Gzip { after: 21, .. }
    ));
}

#[test]
fn mnist_files_that_do_not_belong_together_are_errors() {
    let dir = folder("mnist_errors");
    let e = mnist(&dir, Split::Test).unwrap_err();
    assert!(e.to_string().contains("t10k-images-idx3-ubyte.gz"), "{e}");
    write_idx(dir.join("t10k-images-idx3-ubyte.gz"), &pixels(&[5, 2, 2])).unwrap();
    write_idx(dir.join("t10k-labels-idx1-ubyte"), &pixels(&[4])).unwrap();
    let e = mnist(&dir, Split::Test).unwrap_err();
    assert!(
        matches!(
            e.kind(),
            ErrorKind::CountMismatch {
                image_count: 5,
                label_count: 4,
                ..
            }
        ),
        "{e}"
    );
    write_idx(dir.join("t10k-labels-idx1-ubyte"), &pixels(&[5])).unwrap();
    let data = mnist(&dir, Split::Test).unwrap();
    assert_eq!(
        data.gather(&[4]).unwrap()[1].to_vec::<i32>().unwrap(),
        [148]
    );
    write_idx(dir.join("t10k-labels-idx1-ubyte"), &pixels(&[5, 1])).unwrap();
    assert!(matches!(
        mnist(&dir, Split::Test).unwrap_err().kind(),
        ErrorKind::WrongContent { .. }
    ));
    write_idx(
        dir.join("t10k-labels-idx1-ubyte"),
        &Array::from(vec![0i32; 5]),
    )
    .unwrap();
    assert!(
        mnist(&dir, Split::Test)
            .unwrap_err()
            .to_string()
            .contains("found I32 [5]")
    );
}

/// Folder of the shared test data, or `None` with a note.
fn shared() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let dir = std::env::var_os("BIMETAL_SHARED")
        .map_or(default, PathBuf::from)
        .join("data/mnist");
    if !dir.exists() {
        println!(
            "skipped: no full MNIST at {}; set BIMETAL_SHARED to the folder that holds data/mnist",
            dir.display()
        );
        return None;
    }
    Some(dir)
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/mnist")
}

#[test]
fn the_shipped_mnist_is_whole() {
    for (split, n) in [(Split::Train, 6000), (Split::Test, 2000)] {
        let data = mnist(shipped(), split).unwrap();
        assert_eq!(data.len(), n);
        assert_eq!(data.arrays()[0].shape(), [n, 28, 28]);
        let mut counts = [0; 10];
        data.arrays()[1]
            .to_vec::<i32>()
            .unwrap()
            .iter()
            .for_each(|l| counts[*l as usize] += 1);
        assert!(
            counts.iter().all(|c| *c > n / 12 && *c < n / 8),
            "{counts:?}"
        );
    }
}

#[test]
fn the_full_mnist_has_its_known_statistics() {
    let Some(dir) = shared() else { return };
    let (train, test) = (
        mnist(&dir, Split::Train).unwrap(),
        mnist(&dir, Split::Test).unwrap(),
    );
    assert_eq!((train.len(), test.len()), (60_000, 10_000));
    // Every MNIST tutorial normalises by these: mean 0.1307, standard deviation 0.3081.
    let bytes = train.arrays()[0].bytes();
    let (mut sum, mut squares) = (0u64, 0u64);
    for b in bytes {
        sum += u64::from(*b);
        squares += u64::from(*b) * u64::from(*b);
    }
    let n = bytes.len() as f64;
    let mean = sum as f64 / n;
    let std = (squares as f64 / n - mean * mean).sqrt();
    assert!((mean / 255.0 - 0.1307).abs() < 5e-5, "{mean}");
    assert!((std / 255.0 - 0.3081).abs() < 5e-5, "{std}");
    let labels = train.arrays()[1].to_vec::<i32>().unwrap();
    assert_eq!(labels[..10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]);
    assert_eq!(
        test.arrays()[1].to_vec::<i32>().unwrap()[..10],
        [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    );
    // What the repository ships is the beginning of it.
    for (full, split) in [(train, Split::Train), (test, Split::Test)] {
        let part = mnist(shipped(), split).unwrap();
        for (full, part) in full.arrays().iter().zip(part.arrays()) {
            assert!(full.bytes().starts_with(part.bytes()));
        }
    }
}
