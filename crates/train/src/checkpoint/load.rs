//! Reading checkpoints.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::disk::{OLD, sibling};
use super::meta::{FORMAT, FileEntry, Manifest, Meta};
use super::{ArrayInfo, MANIFEST, META, STATE, state, step_of};
use crate::error::ErrorKind;
use crate::{Error, Problem, Result};

/// A checkpoint read and verified.
#[derive(Clone, Debug)]
#[must_use]
pub struct Checkpoint {
    folder: PathBuf,
    meta: Meta,
    warnings: Vec<String>,
    arrays: Vec<(ArrayInfo, Range<usize>)>,
    bytes: Vec<u8>,
}

impl Checkpoint {
    /// The folder it was read from.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Counters, scale, random numbers, data position and the rest.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// What the user should hear: newer folders that were passed over, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Name, dtype and shape of all arrays, by name, as [`compare_arrays`](super::compare_arrays) takes them.
    pub fn infos(&self) -> Vec<ArrayInfo> {
        self.arrays.iter().map(|(info, _)| info.clone()).collect()
    }

    /// All arrays by name, with their little-endian bytes.
    pub fn arrays(&self) -> impl ExactSizeIterator<Item = (&ArrayInfo, &[u8])> {
        self.arrays
            .iter()
            .map(|(info, range)| (info, &self.bytes[range.clone()]))
    }

    /// The array of that name.
    pub fn array(&self, name: &str) -> Option<(&ArrayInfo, &[u8])> {
        let i = self
            .arrays
            .binary_search_by(|(info, _)| info.name.as_str().cmp(name))
            .ok()?;
        let (info, range) = &self.arrays[i];
        Some((info, &self.bytes[range.clone()]))
    }
}

/// Reads one checkpoint folder and verifies every byte of it.
///
/// # Errors
/// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) names the file and what is wrong with it: missing, truncated,
/// damaged, bad JSON, too new.
pub fn load_checkpoint(folder: impl AsRef<Path>) -> Result<Checkpoint> {
    let folder = folder.as_ref();
    let old = sibling(folder, OLD)?;
    if !folder.exists() && old.exists() {
        // A kill between the two renames of a replacement: the previous content is whole under its other name.
        let mut checkpoint = read(&old)?;
        checkpoint.warnings.push(format!(
            "`{}` was being replaced when the program stopped; its previous content is used",
            folder.display()
        ));
        return Ok(checkpoint);
    }
    read(folder)
}

/// Reads the newest whole checkpoint of `dir`, `None` when it holds no checkpoint at all.
///
/// Newest means saved last. Newer folders that are not whole are passed over with a warning in the result.
///
/// # Errors
/// When there are checkpoints and none is whole.
pub fn load_latest_checkpoint(dir: impl AsRef<Path>) -> Result<Option<Checkpoint>> {
    let dir = dir.as_ref();
    let mut rejected = Vec::new();
    let mut candidates = Vec::new();
    for found in scan(dir)? {
        match found.manifest {
            Ok(manifest) => candidates.push((manifest.sequence, found.step, found.folder)),
            Err(error) => rejected.push((found.step, error.to_string())),
        }
    }
    if candidates.is_empty() && rejected.is_empty() {
        return Ok(None);
    }
    candidates.sort();
    for (_, step, folder) in candidates.into_iter().rev() {
        match read(&folder) {
            Ok(mut checkpoint) => {
                rejected.retain(|(other, _)| *other > step);
                checkpoint.warnings = warnings(rejected, &folder);
                return Ok(Some(checkpoint));
            }
            Err(error) => rejected.push((step, error.to_string())),
        }
    }
    rejected.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
    Err(ErrorKind::NoWholeCheckpoint {
        dir: dir.to_path_buf(),
        rejected: rejected.into_iter().map(|(_, why)| why).collect(),
    }
    .into())
}

fn warnings(mut rejected: Vec<(u64, String)>, used: &Path) -> Vec<String> {
    rejected.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
    let warn = |(_, why): (u64, String)| format!("{why}; `{}` is used instead", used.display());
    rejected.into_iter().map(warn).collect()
}

/// A folder that looks like a checkpoint of an output folder.
pub(super) struct Found {
    pub step: u64,
    pub folder: PathBuf,
    /// Whether its name says that it is on its way out.
    pub old: bool,
    pub manifest: Result<Manifest>,
}

/// All checkpoint folders of `dir`; one that was moved aside counts as long as nothing has taken its name.
pub(super) fn scan(dir: &Path) -> Result<Vec<Found>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| Error::io("read", dir, e))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io("read", dir, e))?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let (old, plain) = match name.strip_prefix(OLD) {
            Some(rest) => (true, rest),
            None => (false, name),
        };
        let Some(step) = step_of(plain) else { continue };
        if old && dir.join(plain).exists() {
            continue;
        }
        let folder = entry.path();
        let manifest = manifest(&folder);
        found.push(Found {
            step,
            folder,
            old,
            manifest,
        });
    }
    Ok(found)
}

fn manifest(folder: &Path) -> Result<Manifest> {
    let file = folder.join(MANIFEST);
    // Looked at alone first: a newer format may have other fields.
    #[derive(serde::Deserialize)]
    struct Version {
        format: u32,
    }
    let bytes = read_file(&file)?;
    let version: Version = json(&file, &bytes)?;
    if version.format > FORMAT {
        let problem = Problem::Format {
            found: version.format,
            supported: FORMAT,
        };
        return Err(Error::corrupt(&file, problem));
    }
    json(&file, &bytes)
}

fn read(folder: &Path) -> Result<Checkpoint> {
    if !folder.exists() {
        return Err(Error::corrupt(folder, Problem::Missing));
    }
    let manifest = manifest(folder)?;
    let verified = |name: &str| -> Result<(PathBuf, Vec<u8>)> {
        let Some(entry) = manifest.files.get(name) else {
            let problem = Problem::Content(format!("it does not list `{name}`"));
            return Err(Error::corrupt(folder.join(MANIFEST), problem));
        };
        let file = folder.join(name);
        let bytes = read_verified(&file, *entry)?;
        Ok((file, bytes))
    };
    let (file, bytes) = verified(META)?;
    let meta: Meta = json(&file, &bytes)?;
    if meta.attempted != manifest.step {
        let why = format!(
            "step {} here, {} in the manifest",
            meta.attempted, manifest.step
        );
        return Err(Error::corrupt(&file, Problem::Content(why)));
    }
    let (file, bytes) = verified(STATE)?;
    let arrays = state::parse(&file, &bytes)?;
    Ok(Checkpoint {
        folder: folder.to_path_buf(),
        meta,
        warnings: Vec::new(),
        arrays,
        bytes,
    })
}

fn read_verified(file: &Path, entry: FileEntry) -> Result<Vec<u8>> {
    // The size first: no need to read gigabytes to see that some are missing.
    let size = |found| {
        Error::corrupt(
            file,
            Problem::Size {
                expected: entry.bytes,
                found,
            },
        )
    };
    match fs::metadata(file) {
        Ok(metadata) if metadata.len() != entry.bytes => return Err(size(metadata.len())),
        _ => {}
    }
    let bytes = read_file(file)?;
    if bytes.len() as u64 != entry.bytes {
        return Err(size(bytes.len() as u64));
    }
    let found = crc32c::crc32c(&bytes);
    if found != entry.crc32c {
        let problem = Problem::Checksum {
            expected: entry.crc32c,
            found,
        };
        return Err(Error::corrupt(file, problem));
    }
    Ok(bytes)
}

fn read_file(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::corrupt(file, Problem::Missing),
        _ => Error::io("read", file, e),
    })
}

fn json<T: DeserializeOwned>(file: &Path, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::corrupt(file, Problem::Json(e.to_string())))
}
