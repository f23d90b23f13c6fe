//! Writing checkpoints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::disk::{Disk, OLD, TEMPORARY, Written, parent, sibling};
use super::load::scan;
use super::meta::{FORMAT, FileEntry, Manifest, Meta};
use super::state::Layout;
use super::{
    Array, BEST, Checkpoint, LATEST, MANIFEST, META, STATE, folder_name, load_checkpoint, step_of,
};
use crate::{Error, Result};

/// An output folder of checkpoints `step-00001200/`, of which the last few are kept.
///
/// Each is written beside its place, synced and renamed into it; then the small files `latest` and `best` are
/// replaced by rename; then expired folders go. A program killed at any point leaves a folder that
/// [`load_latest_checkpoint`](crate::load_latest_checkpoint) reads. One process writes to a folder at a time.
///
/// ```
/// # fn main() -> bimetal_train::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("bimetal-doc-checkpoints-{}", std::process::id()));
/// use bimetal_tensor::DType;
/// use bimetal_train::{Array, Checkpoints, Meta, load_latest_checkpoint};
///
/// let mut checkpoints = Checkpoints::open(&dir)?.keep(2);
/// let bytes = 1.5f32.to_le_bytes();
/// let weight = Array::new("head.weight", DType::F32, [1], &bytes[..]);
/// checkpoints.save(&[weight], &Meta { attempted: 1200, ..Meta::default() })?;
///
/// let loaded = load_latest_checkpoint(&dir)?.expect("one was saved");
/// assert_eq!(loaded.meta().attempted, 1200);
/// assert_eq!(loaded.array("head.weight").map(|(_, data)| data), Some(&bytes[..]));
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    keep: usize,
    /// Of the next save.
    sequence: u64,
    disk: Disk,
}

impl Checkpoints {
    /// Opens `dir` for writing, creates it if need be and clears what an interrupted save left behind.
    ///
    /// # Errors
    /// [`ErrorKind::Unwritable`](crate::ErrorKind::Unwritable) when nothing can be written there: call this before
    /// training starts.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self> {
        Self::open_on(dir.into(), Disk::default())
    }

    pub(super) fn open_on(dir: PathBuf, disk: Disk) -> Result<Self> {
        probe(&dir).map_err(|e| Error::unwritable(&dir, e))?;
        let mut checkpoints = Self {
            dir,
            keep: 3,
            sequence: 1,
            disk,
        };
        checkpoints.recover()?;
        Ok(checkpoints)
    }

    /// Sets how many folders stay, at least one; default 3. The best one stays in any case.
    pub fn keep(mut self, folders: usize) -> Self {
        self.keep = folders.max(1);
        self
    }

    /// The output folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes the state as `step-<meta.attempted>`, points `latest` to it and removes expired folders.
    ///
    /// # Errors
    /// Unsuitable arrays (bytes that do not match the shape, a name twice) and failed file operations; what was
    /// saved before stays loadable.
    pub fn save(&mut self, arrays: &[Array<'_>], meta: &Meta) -> Result<PathBuf> {
        self.save_as(arrays, meta, false)
    }

    /// As [`Checkpoints::save`], and points `best` to it, which keeps it from expiring until the next best.
    ///
    /// # Errors
    /// As [`Checkpoints::save`].
    pub fn save_best(&mut self, arrays: &[Array<'_>], meta: &Meta) -> Result<PathBuf> {
        self.save_as(arrays, meta, true)
    }

    /// Reads the folder that `best` points to, `None` when nothing was saved as best.
    ///
    /// # Errors
    /// As [`load_checkpoint`].
    pub fn load_best(&self) -> Result<Option<Checkpoint>> {
        self.best()?.map(load_checkpoint).transpose()
    }

    fn save_as(&mut self, arrays: &[Array<'_>], meta: &Meta, best: bool) -> Result<PathBuf> {
        let name = folder_name(meta.attempted);
        let folder = self.dir.join(&name);
        write_folder(&self.disk, &folder, arrays, meta, self.sequence)?;
        self.sequence += 1;
        self.disk
            .replace_file(&self.dir.join(LATEST), &format!("{name}\n"))?;
        if best {
            self.disk
                .replace_file(&self.dir.join(BEST), &format!("{name}\n"))?;
        }
        self.expire(&folder)?;
        Ok(folder)
    }

    /// Removes all but the newest `keep` folders, the best one and the one just written.
    fn expire(&self, current: &Path) -> Result<()> {
        let best = self.best()?;
        let mut found = scan(&self.dir)?;
        // Unreadable ones count as oldest: they help nobody.
        found.sort_by_key(|f| std::cmp::Reverse(f.manifest.as_ref().map_or(0, |m| m.sequence)));
        for expired in found.into_iter().skip(self.keep) {
            let folder = expired.folder;
            if folder == current || Some(&folder) == best.as_ref() {
                continue;
            }
            if expired.old {
                self.disk.remove_dir(&folder)?;
                continue;
            }
            // Renamed first, so that no half-removed folder carries the name of a checkpoint.
            let old = sibling(&folder, OLD)?;
            self.disk.remove_dir(&old)?;
            self.disk.rename(&folder, &old)?;
            self.disk.remove_dir(&old)?;
        }
        Ok(())
    }

    fn best(&self) -> Result<Option<PathBuf>> {
        let file = self.dir.join(BEST);
        match fs::read_to_string(&file) {
            Ok(name) => Ok(Some(self.dir.join(name.trim()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("read", &file, e)),
        }
    }

    /// Clears what an interrupted save left, and finds the next sequence number.
    fn recover(&mut self) -> Result<()> {
        let sequence_of = |found: &super::load::Found| match &found.manifest {
            Ok(manifest) => manifest.sequence,
            Err(_) => 0,
        };
        let found = scan(&self.dir)?;
        let newest = found.iter().map(sequence_of).max().unwrap_or(0);
        self.sequence = newest + 1;
        for aside in found.iter().filter(|f| f.old) {
            // Moved aside by a replacement that did not get to its second rename: still the newest there is.
            if newest > 0 && sequence_of(aside) == newest {
                let back = self.dir.join(folder_name(aside.step));
                self.disk.rename(&aside.folder, &back)?;
            }
        }
        let entries = fs::read_dir(&self.dir).map_err(|e| Error::io("read", &self.dir, e))?;
        for entry in entries {
            let path = entry.map_err(|e| Error::io("read", &self.dir, e))?.path();
            match path.file_name().and_then(|name| name.to_str()) {
                Some(name) if is_leftover_folder(name) => self.disk.remove_dir(&path)?,
                Some(name) if is_leftover_file(name) => self.disk.remove_file(&path)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn is_leftover_folder(name: &str) -> bool {
    let without = |prefix| name.strip_prefix(prefix).and_then(step_of);
    without(TEMPORARY).or_else(|| without(OLD)).is_some()
}

fn is_leftover_file(name: &str) -> bool {
    let pointer = name.strip_prefix(TEMPORARY);
    pointer.is_some_and(|name| name == LATEST || name == BEST)
}

/// Writes one checkpoint as `folder`, replacing what is there, so that a reader finds the old or the new one.
///
/// # Errors
/// Unsuitable arrays and failed file operations, as [`Checkpoints::save`].
pub fn save_checkpoint(folder: impl AsRef<Path>, arrays: &[Array<'_>], meta: &Meta) -> Result<()> {
    let folder = folder.as_ref();
    let above = parent(folder);
    fs::create_dir_all(above).map_err(|e| Error::unwritable(above, e))?;
    write_folder(&Disk::default(), folder, arrays, meta, 0)
}

pub(super) fn write_folder(
    disk: &Disk,
    folder: &Path,
    arrays: &[Array<'_>],
    meta: &Meta,
    sequence: u64,
) -> Result<()> {
    let layout = Layout::new(arrays)?;
    let temporary = sibling(folder, TEMPORARY)?;
    let written = fill(disk, &temporary, &layout, meta, sequence)
        .and_then(|()| publish(disk, &temporary, folder));
    if written.is_err() {
        // Best effort: a full disk should not stay full because of a checkpoint that failed.
        let _ = disk.remove_dir(&temporary);
    }
    written
}

fn fill(
    disk: &Disk,
    temporary: &Path,
    layout: &Layout<'_>,
    meta: &Meta,
    sequence: u64,
) -> Result<()> {
    disk.remove_dir(temporary)?;
    disk.create_dir(temporary)?;
    let state = disk.write_file(&temporary.join(STATE), |out| layout.write(out))?;
    let meta_json = write_json(disk, &temporary.join(META), meta)?;
    let entry = |w: Written| FileEntry {
        bytes: w.bytes,
        crc32c: w.crc,
    };
    let files = [(STATE, state), (META, meta_json)];
    let manifest = Manifest {
        format: FORMAT,
        step: meta.attempted,
        sequence,
        files: files
            .into_iter()
            .map(|(name, w)| (name.to_string(), entry(w)))
            .collect(),
    };
    write_json(disk, &temporary.join(MANIFEST), &manifest)?;
    disk.sync_dir(temporary)
}

/// Puts a complete temporary folder in its place.
fn publish(disk: &Disk, temporary: &Path, folder: &Path) -> Result<()> {
    let old = sibling(folder, OLD)?;
    if folder.exists() {
        disk.remove_dir(&old)?;
        disk.rename(folder, &old)?;
    }
    disk.rename(temporary, folder)?;
    disk.sync_dir(parent(folder))?;
    disk.remove_dir(&old)
}

fn write_json(disk: &Disk, path: &Path, value: &impl Serialize) -> Result<Written> {
    disk.write_file(path, |out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

/// Whether files can be written below `dir`, found out without creating it.
pub(crate) fn writable(dir: &Path) -> io::Result<()> {
    let exists = |at: &&Path| at.as_os_str().is_empty() || at.exists();
    match dir.ancestors().find(exists) {
        Some(at) if !at.as_os_str().is_empty() => probe(at),
        _ => probe(Path::new(".")),
    }
}

/// Whether a file can be written in `dir`, which is created if need be.
fn probe(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    // Two threads may try one folder at the same time.
    static TRIES: AtomicU64 = AtomicU64::new(0);
    let (process, n) = (std::process::id(), TRIES.fetch_add(1, Ordering::Relaxed));
    let probe = dir.join(format!("{TEMPORARY}probe-{process}-{n}"));
    fs::write(&probe, b"probe")?;
    fs::remove_file(&probe)
}
