//! Batches made ahead on a background thread.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};

use crate::loader::{Recipe, next_epoch};
use crate::{Batch, Cursor, ErrorKind, Result};

/// A thread that makes batches in order and waits once `depth` of them are ahead.
pub(crate) struct Prefetcher {
    // Both are `Some` until the drop, which must let go of the channel before it can join.
    receiver: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetcher {
    /// Starts at a cursor and goes on through the epochs until an error; `depth` is at least 1.
    pub(crate) fn start(recipe: Recipe, mut cursor: Cursor, depth: usize) -> Result<Prefetcher> {
        let batches = recipe.check()?;
        // One batch more waits in the hands of the blocked thread.
        let (sender, receiver) = sync_channel(depth.saturating_sub(1));
        let run = move || {
            loop {
                if cursor.index >= batches {
                    cursor = next_epoch(cursor);
                }
                let outcome = recipe.make(cursor);
                let failed = outcome.is_err();
                // An error of `send` means that the loader is gone.
                if sender.send(outcome).is_err() || failed {
                    return;
                }
                cursor.index += 1;
            }
        };
        let thread = Builder::new()
            .name("bimetal-prefetch".into())
            .spawn(run)
            .map_err(|e| ErrorKind::Thread {
                message: format!("the thread cannot start: {e}"),
            })?;
        Ok(Prefetcher {
            receiver: Some(receiver),
            thread: Some(thread),
        })
    }

    /// Waits for the next batch.
    pub(crate) fn next(&self) -> Result<Batch> {
        let received = self.receiver.as_ref().and_then(|r| r.recv().ok());
        received.unwrap_or_else(|| {
            Err(ErrorKind::Thread {
                message: "the thread ended".into(),
            }
            .into())
        })
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        drop(self.receiver.take());
        if let Some(thread) = self.thread.take() {
            // The thread catches panics of user code, so nothing is lost here.
            let _ = thread.join();
        }
    }
}
