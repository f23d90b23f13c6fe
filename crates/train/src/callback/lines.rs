//! Log files that a resumed run goes on with.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::files::drain_into;
use crate::{Error, Result};

/// A text file that grows by lines, held back until flushed.
#[derive(Debug)]
pub(super) struct LineFile {
    path: PathBuf,
    file: File,
    pending: Vec<u8>,
}

impl LineFile {
    /// Opens the file empty, with its folder.
    pub fn create(path: &Path) -> Result<Self> {
        Self::open(path, true)
    }

    /// Opens the file and keeps what is in it up to the first line that `keep` refuses or that was not finished.
    pub fn resume(path: &Path, mut keep: impl FnMut(&str) -> bool) -> Result<Self> {
        let mut lines = Self::open(path, false)?;
        let mut end = 0;
        let mut line = Vec::new();
        let mut reader = BufReader::new(&lines.file);
        loop {
            line.clear();
            let n = reader
                .read_until(b'\n', &mut line)
                .map_err(|e| Error::io("read", path, e))?;
            let text = line
                .strip_suffix(b"\n")
                .and_then(|line| std::str::from_utf8(line).ok());
            match text {
                Some(text) if keep(text.trim_end_matches('\r')) => end += n as u64,
                _ => break,
            }
        }
        lines
            .file
            .set_len(end)
            .map_err(|e| Error::io("truncate", path, e))?;
        lines
            .file
            .seek(SeekFrom::Start(end))
            .map_err(|e| Error::io("seek in", path, e))?;
        Ok(lines)
    }

    fn open(path: &Path, truncate: bool) -> Result<Self> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(|e| Error::unwritable(dir, e))?;
        }
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(truncate);
        let file = options.open(path).map_err(|e| Error::io("open", path, e))?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            pending: Vec::new(),
        })
    }

    pub fn push(&mut self, line: &str) {
        self.pending.extend_from_slice(line.as_bytes());
        self.pending.push(b'\n');
    }

    /// Hands the lines to the operating system.
    pub fn flush(&mut self) -> Result<()> {
        drain_into(&mut self.file, &mut self.pending).map_err(|e| Error::io("write", &self.path, e))
    }

    /// Flushes, and waits until the lines survive a power failure.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.file
            .sync_data()
            .map_err(|e| Error::io("sync", &self.path, e))
    }
}

impl Drop for LineFile {
    fn drop(&mut self) {
        // After an error or an early return of the training loop, what was logged should be there to look at.
        let _ = self.flush();
    }
}
