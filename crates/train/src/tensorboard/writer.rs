//! The event file itself.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::proto::Event;
use super::{Histogram, record};
use crate::files::drain_into;
use crate::{Error, Result};

/// Bytes held back at most.
const BUFFER: usize = 64 * 1024;

/// Writes one TensorBoard event file, `events.out.tfevents.<seconds>.<host>.<pid>`, in a folder of its own run.
///
/// Records are handed to the operating system after 10 seconds ([`EventWriter::flush_every`]), after 64 KiB,
/// on [`EventWriter::flush`] and when the writer is dropped; a record is never split between two writes.
///
/// ```
/// # fn main() -> bimetal_train::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("bimetal-doc-{}", std::process::id()));
/// use bimetal_train::{EventWriter, Histogram};
/// let mut writer = EventWriter::create(&dir)?;
/// writer.scalar("loss", 0.25, 1)?;
/// writer.histogram("head/weight", &Histogram::new([0.5, -0.5]), 1)?;
/// writer.flush()?;
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    interval: Duration,
    flushed: Instant,
}

impl EventWriter {
    /// Opens a new event file in `dir`, which is created if need be; files already there stay.
    ///
    /// # Errors
    /// [`ErrorKind::Unwritable`](crate::ErrorKind::Unwritable) when the folder or the file cannot be made.
    pub fn create(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        fs::create_dir_all(dir).map_err(|e| Error::unwritable(dir, e))?;
        let first = !holds_event_files(dir);
        let mut writer = Self::open(dir)?;
        if first {
            // Readers take the first START of a folder as the beginning and only later ones as restarts.
            writer.append(Event::SessionStart, 0)?;
        }
        writer.flush()?;
        Ok(writer)
    }

    /// Opens a new event file in `dir` for a run that goes on at `step`: what older files of the folder say about
    /// this step and later ones is forgotten by TensorBoard (`SessionLog.START`).
    ///
    /// # Errors
    /// As [`EventWriter::create`].
    pub fn resume(dir: impl AsRef<Path>, step: u64) -> Result<Self> {
        let dir = dir.as_ref();
        fs::create_dir_all(dir).map_err(|e| Error::unwritable(dir, e))?;
        let mut writer = Self::open(dir)?;
        writer.append(Event::SessionStart, step)?;
        writer.flush()?;
        Ok(writer)
    }

    fn open(dir: &Path) -> Result<Self> {
        let (file, path) = new_file(dir).map_err(|e| Error::unwritable(dir, e))?;
        let mut writer = Self {
            file,
            path,
            buffer: Vec::new(),
            interval: Duration::from_secs(10),
            flushed: Instant::now(),
        };
        writer.append(Event::FileVersion, 0)?;
        Ok(writer)
    }

    /// Sets how long records are held back at most while others arrive; default 10 seconds.
    pub fn flush_every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// The event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends one number, stored as f32 as TensorBoard does.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn scalar(&mut self, tag: &str, value: f64, step: u64) -> Result<()> {
        self.append(
            Event::Scalar {
                tag,
                value: value as f32,
            },
            step,
        )
    }

    /// Appends one histogram.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn histogram(&mut self, tag: &str, value: &Histogram, step: u64) -> Result<()> {
        self.append(Event::Histogram { tag, value }, step)
    }

    /// Appends one text, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn text(&mut self, tag: &str, value: &str, step: u64) -> Result<()> {
        self.append(Event::Text { tag, value }, step)
    }

    /// Appends a page of the custom scalars dashboard: its title, and charts of a title and a regular expression of tags each. A run has one; the last wins.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn layout(&mut self, title: &str, charts: &[(&str, &str)]) -> Result<()> {
        self.append(Event::Layout { title, charts }, 0)
    }

    /// Hands everything to the operating system.
    ///
    /// # Errors
    /// When the file cannot be written; what was not written is kept for the next attempt.
    pub fn flush(&mut self) -> Result<()> {
        drain_into(&mut self.file, &mut self.buffer)
            .map_err(|e| Error::io("write", &self.path, e))?;
        self.flushed = Instant::now();
        Ok(())
    }

    fn append(&mut self, event: Event<'_>, step: u64) -> Result<()> {
        let wall_time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |t| t.as_secs_f64());
        record::append(&mut self.buffer, &event.encode(wall_time, step));
        if self.buffer.len() >= BUFFER || self.flushed.elapsed() >= self.interval {
            self.flush()?;
        }
        Ok(())
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        // Nobody is left to tell; `flush` is for those who want to know.
        let _ = self.flush();
    }
}

fn holds_event_files(dir: &Path) -> bool {
    let is_event_file = |entry: fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().contains("tfevents")
    };
    fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(is_event_file))
}

/// Creates a file whose name no other writer has; TensorBoard reads the files of a folder in the order of their names.
fn new_file(dir: &Path) -> io::Result<(File, PathBuf)> {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_secs());
    let stem = format!(
        "events.out.tfevents.{seconds:010}.{}.{}",
        host_name(),
        std::process::id()
    );
    for n in 0..10_000 {
        let name = if n == 0 {
            stem.clone()
        } else {
            format!("{stem}.{n:04}")
        };
        let path = dir.join(name);
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            opened => return opened.map(|file| (file, path)),
        }
    }
    Err(io::Error::other(format!(
        "10,000 files named `{stem}` exist already"
    )))
}

/// The machine's name with nothing but letters, digits, `-`, `_` and `.`, or `localhost` where it is not known.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| fs::read_to_string("/etc/hostname"))
        .or_else(|_| std::env::var("HOSTNAME"))
        .or_else(|_| std::env::var("COMPUTERNAME"))
        .unwrap_or_default();
    let name: String = name
        .trim()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect();
    if name.is_empty() {
        "localhost".into()
    } else {
        name
    }
}
