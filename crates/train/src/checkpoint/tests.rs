//! What a checkpoint folder must survive.

mod kill;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bimetal_tensor::DType;

use super::*;
use crate::{ErrorKind, Problem};

/// A folder of its own that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("bimetal-checkpoint-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A state that depends on the step in every part.
fn state(step: u64) -> (Vec<Array<'static>>, Meta) {
    let weights: Vec<u8> = (0..6u64)
        .flat_map(|i| ((step * 10 + i) as f32).to_le_bytes())
        .collect();
    let arrays = vec![
        Array::new("flag", DType::Bool, [1], vec![1]),
        Array::new("net.weight", DType::F32, [2, 3], weights),
        Array::new(
            "count",
            DType::U32,
            [],
            (step as u32).to_le_bytes().to_vec(),
        ),
    ];
    let mut meta = Meta {
        attempted: step,
        applied: step / 2,
        ..Meta::default()
    };
    meta.cursor = Cursor {
        epoch: 1,
        index: step * 32,
    };
    (arrays, meta)
}

fn save(checkpoints: &mut Checkpoints, step: u64) -> crate::Result<PathBuf> {
    let (arrays, meta) = state(step);
    checkpoints.save(&arrays, &meta)
}

fn assert_is(checkpoint: &Checkpoint, step: u64) {
    let (arrays, meta) = state(step);
    assert_eq!(checkpoint.meta(), &meta);
    assert_eq!(checkpoint.arrays().len(), arrays.len());
    for array in &arrays {
        let (info, data) = checkpoint.array(&array.info.name).unwrap();
        assert_eq!((info, data), (&array.info, &array.data[..]));
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_dtype_and_every_field_comes_back_bit_exact() {
    let scratch = Scratch::new();
    let dtypes = [
        DType::Bool,
        DType::U8,
        DType::U32,
        DType::I32,
        DType::I64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];
    let mut arrays: Vec<_> = dtypes
        .iter()
        .enumerate()
        .map(|(i, &dtype)| {
            let data: Vec<u8> = (0..3 * dtype.size()).map(|b| (b * 37 + i) as u8).collect();
            Array::new(format!("a/{dtype:?}"), dtype, [3, 1], data)
        })
        .collect();
    arrays.push(Array::new("empty", DType::F32, [0, 5], vec![]));
    let meta = Meta {
        attempted: u64::MAX - 1,
        applied: 7,
        cursor: Cursor {
            epoch: 3,
            index: 123_456_789_012,
        },
        scale: Some(ScaleState {
            scale: 0.1,
            good_steps: 1999,
            hysteresis: 1,
        }),
        rng: RngState { seed: u64::MAX },
        instruction_set: "x86-64 avx2".into(),
        extra: [("best".to_string(), serde_json::json!(0.1 + 0.2))].into(),
    };
    let folder = scratch.0.join("ckpt");
    save_checkpoint(&folder, &arrays, &meta).unwrap();
    let loaded = load_checkpoint(&folder).unwrap();
    assert_eq!(loaded.meta(), &meta);
    assert_eq!(loaded.arrays().len(), arrays.len());
    for array in &arrays {
        let (info, data) = loaded.array(&array.info.name).unwrap();
        assert_eq!((info, data), (&array.info, &array.data[..]));
    }
    let infos: Vec<_> = arrays.iter().map(|a| a.info.clone()).collect();
    compare_arrays(&infos, &loaded.infos()).unwrap();
    // The file is one that the format's own reader accepts.
    let bytes = fs::read(folder.join("state.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("a/F64").unwrap().data(), &*arrays[10].data);
}

#[test]
fn the_newest_stay_and_so_does_the_best() {
    let scratch = Scratch::new();
    let mut checkpoints = Checkpoints::open(&scratch.0).unwrap().keep(2);
    save(&mut checkpoints, 9).unwrap();
    let (arrays, meta) = state(100);
    checkpoints.save_best(&arrays, &meta).unwrap();
    for step in [200, 1000, 99_999_999, 100_000_000] {
        save(&mut checkpoints, step).unwrap();
    }
    let expected = [
        "best",
        "latest",
        "step-00000100",
        "step-100000000",
        "step-99999999",
    ];
    assert_eq!(names(&scratch.0), expected);
    assert_eq!(
        fs::read_to_string(scratch.0.join("latest")).unwrap(),
        "step-100000000\n"
    );
    assert_is(
        &load_latest_checkpoint(&scratch.0).unwrap().unwrap(),
        100_000_000,
    );
    assert_is(&checkpoints.load_best().unwrap().unwrap(), 100);
}

#[test]
fn the_newest_is_the_one_saved_last_also_after_going_back() {
    let scratch = Scratch::new();
    let mut checkpoints = Checkpoints::open(&scratch.0).unwrap();
    save(&mut checkpoints, 10).unwrap();
    save(&mut checkpoints, 30).unwrap();
    // A user resumed from step 10 and the program was started anew.
    let mut checkpoints = Checkpoints::open(&scratch.0).unwrap();
    save(&mut checkpoints, 20).unwrap();
    assert_is(&load_latest_checkpoint(&scratch.0).unwrap().unwrap(), 20);
}

#[test]
fn nothing_there_is_not_an_error() {
    let scratch = Scratch::new();
    assert!(load_latest_checkpoint(&scratch.0).unwrap().is_none());
    let checkpoints = Checkpoints::open(&scratch.0).unwrap();
    assert!(load_latest_checkpoint(&scratch.0).unwrap().is_none());
    assert!(checkpoints.load_best().unwrap().is_none());
    assert!(names(&scratch.0).is_empty());
}

/// Damages a folder, and says what the error must be and name.
type Damage = (&'static str, fn(&Path), fn(&Problem) -> bool);

#[test]
fn damage_is_named_and_passed_over() {
    let damages: [Damage; 8] = [
        (
            "state.safetensors",
            |f| truncate(&f.join(STATE)),
            |p| matches!(p, Problem::Size { expected, found } if found < expected),
        ),
        (
            "state.safetensors",
            |f| flip(&f.join(STATE)),
            |p| matches!(p, Problem::Checksum { .. }),
        ),
        (
            "state.safetensors",
            |f| fs::remove_file(f.join(STATE)).unwrap(),
            |p| *p == Problem::Missing,
        ),
        (
            "meta.json",
            |f| truncate(&f.join(META)),
            |p| matches!(p, Problem::Size { .. }),
        ),
        (
            "meta.json",
            |f| fs::remove_file(f.join(META)).unwrap(),
            |p| *p == Problem::Missing,
        ),
        (
            "manifest.json",
            |f| truncate(&f.join(MANIFEST)),
            |p| matches!(p, Problem::Json(_)),
        ),
        (
            "manifest.json",
            |f| fs::remove_file(f.join(MANIFEST)).unwrap(),
            |p| *p == Problem::Missing,
        ),
        (
            "manifest.json",
            |f| fs::write(f.join(MANIFEST), "{\"format\": 2, \"new\": 1}").unwrap(),
            |p| {
                *p == Problem::Format {
                    found: 2,
                    supported: 1,
                }
            },
        ),
    ];
    for (file, damage, is_right) in damages {
        let scratch = Scratch::new();
        let mut checkpoints = Checkpoints::open(&scratch.0).unwrap();
        save(&mut checkpoints, 10).unwrap();
        let newest = save(&mut checkpoints, 20).unwrap();
        damage(&newest);

        let error = load_checkpoint(&newest).unwrap_err();
        let ErrorKind::Corrupt {
            file: named,
            problem,
        } = error.kind()
        else {
            panic!("{error}")
        };
        assert_eq!(named, &newest.join(file));
        assert!(is_right(problem), "{file}: {problem:?}");

        let loaded = load_latest_checkpoint(&scratch.0).unwrap().unwrap();
        assert_is(&loaded, 10);
        let [warning] = loaded.warnings() else {
            panic!("{:?}", loaded.warnings())
        };
        assert!(
            warning.contains(file) && warning.contains("step-00000010"),
            "{warning}"
        );

        damage(&scratch.0.join("step-00000010"));
        let error = load_latest_checkpoint(&scratch.0).unwrap_err();
        let ErrorKind::NoWholeCheckpoint { rejected, .. } = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(rejected.len(), 2);
        assert!(
            rejected[0].contains("step-00000020"),
            "newest first: {rejected:?}"
        );

        // Training that goes on from there replaces the damaged folder of the same step.
        save(&mut checkpoints, 20).unwrap();
        assert_is(&load_latest_checkpoint(&scratch.0).unwrap().unwrap(), 20);
    }
}

fn truncate(file: &Path) {
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() - 5]).unwrap();
}

fn flip(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(file, bytes).unwrap();
}

#[test]
fn unwritable_folder_is_told_at_open() {
    let scratch = Scratch::new();
    fs::create_dir_all(&scratch.0).unwrap();
    let file = scratch.0.join("file");
    fs::write(&file, "in the way").unwrap();
    for dir in [file.clone(), file.join("below")] {
        let error = Checkpoints::open(&dir).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unwritable { dir: named, .. } if *named == dir));
        assert!(error.to_string().contains("cannot be written"), "{error}");
    }
}

#[test]
fn unsuitable_arrays_are_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let mut checkpoints = Checkpoints::open(&scratch.0).unwrap();
    let short = Array::new("w", DType::F32, [2, 2], vec![0u8; 15]);
    let huge = Array::new("w", DType::F32, [usize::MAX, 2], vec![]);
    let twice = Array::new("w", DType::U8, [1], vec![0u8]);
    for (arrays, part) in [
        (
            vec![short],
            "w float32 [2, 2] comes with 15 bytes, its shape and dtype take 16",
        ),
        (vec![huge], "more than fit memory"),
        (vec![twice.clone(), twice], "`w` is there twice"),
        (
            vec![Array::new("__metadata__", DType::U8, [1], vec![0u8])],
            "reserved",
        ),
    ] {
        let error = checkpoints.save(&arrays, &Meta::default()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(names(&scratch.0).is_empty());
}
