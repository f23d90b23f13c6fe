//! The file operations that checkpoints are made of, one method each.
//!
//! All writing goes through [`Disk`], so that a test can stop it before any single operation and look at what a
//! killed process would have left.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Size and CRC-32C of a file as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub bytes: u64,
    pub crc: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    pub faults: Option<std::sync::Arc<faults::Faults>>,
}

impl Disk {
    /// Asked before each operation; fails only where a test wants it to.
    fn tick(&self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            return faults.tick();
        }
        Ok(())
    }

    fn run(
        &self,
        action: &'static str,
        path: &Path,
        operation: impl FnOnce() -> io::Result<()>,
    ) -> Result<()> {
        self.tick()
            .and_then(|()| operation())
            .map_err(|e| Error::io(action, path, e))
    }

    pub fn create_dir(&self, dir: &Path) -> Result<()> {
        self.run("create", dir, || fs::create_dir(dir))
    }

    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.run("rename", from, || fs::rename(from, to))
    }

    /// Makes the entries of a folder (new names, renames, removals) survive a power failure.
    pub fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.run("sync", dir, || {
            // Elsewhere a folder cannot be opened as a file, and the file system does without.
            if cfg!(unix) {
                File::open(dir)?.sync_all()?;
            }
            Ok(())
        })
    }

    /// Creates a file with what `fill` writes and makes it survive a power failure.
    pub fn write_file(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Written> {
        let mut summed = None;
        self.run("create", path, || {
            let file = File::create(path)?;
            summed = Some(Summed {
                file,
                disk: self,
                bytes: 0,
                crc: 0,
            });
            Ok(())
        })?;
        let Some(mut summed) = summed else {
            return Err(Error::io("create", path, io::ErrorKind::Other.into()));
        };
        let mut out = BufWriter::with_capacity(1 << 20, &mut summed);
        let filled = fill(&mut out).and_then(|()| out.flush());
        // Not dropped: after a failure its destructor would try to write once more.
        let _ = out.into_parts();
        filled.map_err(|e| Error::io("write", path, e))?;
        self.run("sync", path, || summed.file.sync_all())?;
        Ok(Written {
            bytes: summed.bytes,
            crc: summed.crc,
        })
    }

    pub fn remove_file(&self, file: &Path) -> Result<()> {
        self.run("remove", file, || fs::remove_file(file))
    }

    /// Removes a folder with all it holds; nothing happens when it is not there.
    pub fn remove_dir(&self, dir: &Path) -> Result<()> {
        let entries = match fs::read_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|e| Error::io("read", dir, e))?,
        };
        for entry in entries {
            let path = entry.map_err(|e| Error::io("read", dir, e))?.path();
            self.run("remove", &path, || {
                if fs::symlink_metadata(&path)?.is_dir() {
                    fs::remove_dir_all(&path)
                } else {
                    fs::remove_file(&path)
                }
            })?;
        }
        self.run("remove", dir, || fs::remove_dir(dir))
    }

    /// Writes a small file so that readers see the old text or the new one, nothing between.
    pub fn replace_file(&self, path: &Path, text: &str) -> Result<()> {
        let temporary = sibling(path, TEMPORARY)?;
        self.write_file(&temporary, |out| out.write_all(text.as_bytes()))?;
        self.rename(&temporary, path)?;
        self.sync_dir(parent(path))
    }
}

/// Prefix of what is being written.
pub(super) const TEMPORARY: &str = ".tmp-";
/// Prefix of what was replaced or expired and is about to be removed.
pub(super) const OLD: &str = ".old-";

/// The folder that holds `path`.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The path beside `path` whose name has `prefix` in front.
pub(super) fn sibling(path: &Path, prefix: &str) -> Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(Error::invalid(format!(
            "a checkpoint needs a folder with a name of its own, found `{}`",
            path.display()
        )));
    };
    let mut prefixed = std::ffi::OsString::from(prefix);
    prefixed.push(name);
    Ok(path.with_file_name(prefixed))
}

/// A file that sums up what goes through it.
struct Summed<'a> {
    file: File,
    disk: &'a Disk,
    bytes: u64,
    crc: u32,
}

impl Write for Summed<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if let Err(e) = self.disk.tick() {
            // A killed process leaves part of a write behind.
            let _ = self.file.write(&data[..data.len() / 2]);
            return Err(e);
        }
        let n = self.file.write(data)?;
        self.crc = crc32c::crc32c_append(self.crc, &data[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
pub(super) mod faults {
    use std::io;
    use std::sync::atomic::{AtomicI64, Ordering};

    /// Counts operations down; the one at zero fails.
    #[derive(Debug)]
    pub struct Faults {
        left: AtomicI64,
        /// Whether everything after the failed operation fails too, as after `kill -9`.
        killed: bool,
    }

    impl Faults {
        pub fn after(operations: i64, killed: bool) -> Self {
            Self {
                left: AtomicI64::new(operations),
                killed,
            }
        }

        pub fn tick(&self) -> io::Result<()> {
            let left = self.left.fetch_sub(1, Ordering::Relaxed);
            if left == 0 || (left < 0 && self.killed) {
                return Err(io::Error::other("injected fault"));
            }
            Ok(())
        }

        /// Whether the fault was reached.
        pub fn fired(&self) -> bool {
            self.left.load(Ordering::Relaxed) < 0
        }
    }
}
