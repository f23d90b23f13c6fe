//! Batches from a source: shuffled, mapped, prefetched, sharded.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::prefetch::Prefetcher;
use crate::source::check_gathered;
use crate::{Batch, Cursor, Dataset, ErrorKind, Field, Permutation, Result, Source};

type BatchFn = Arc<dyn Fn(Batch) -> Result<Batch> + Send + Sync>;

/// Everything that determines the batches: a pure function from a cursor to a batch.
#[derive(Clone)]
pub(crate) struct Recipe {
    data: Dataset,
    batch: usize,
    shuffle: Option<u64>,
    drop_remainder: bool,
    pad: bool,
    maps: Vec<BatchFn>,
    shard: (usize, usize),
}

impl Recipe {
    /// Batches in an epoch, at least 1; or what is wrong with the data or the options.
    pub(crate) fn check(&self) -> Result<u64> {
        let option = |message: String| Err(ErrorKind::Options(message).into());
        let (samples, batch, (rank, ranks)) = (self.data.len(), self.batch, self.shard);
        if batch == 0 {
            return option("a batch of 0 rows asked for, expected at least 1".into());
        }
        if rank >= ranks {
            return option(format!(
                "shard {rank} of {ranks} asked for, expected shard 0 to {}",
                ranks.saturating_sub(1)
            ));
        }
        if batch % ranks != 0 {
            return option(format!(
                "a global batch of {batch} rows cannot be divided among {ranks} shards; use a multiple of {ranks}"
            ));
        }
        if self.drop_remainder && self.pad {
            return option(
                "drop_remainder and pad_and_mask are both set; choose one for the last batch"
                    .into(),
            );
        }
        if samples == 0 {
            return Err(ErrorKind::Empty.into());
        }
        if self.drop_remainder && batch > samples {
            return Err(ErrorKind::BatchTooLarge { batch, samples }.into());
        }
        if ranks > 1 && samples % batch != 0 && !self.drop_remainder && !self.pad {
            return option(format!(
                "the last of {samples} samples in batches of {batch} cannot be divided among {ranks} shards; \
                 set pad_and_mask(true) or drop_remainder(true)"
            ));
        }
        Ok(if self.drop_remainder {
            samples / batch
        } else {
            samples.div_ceil(batch)
        } as u64)
    }

    /// The batch at a cursor whose index is below `check()`.
    pub(crate) fn make(&self, at: Cursor) -> Result<Batch> {
        // A panic in user code must reach the training loop as an error from whichever thread it happens on.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.gather(at))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
            let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(ErrorKind::Panic {
                message: message.unwrap_or_else(|| "no message".into()),
            }
            .into())
        });
        outcome.map_err(|source| {
            ErrorKind::Batch {
                epoch: at.epoch,
                index: at.index,
                source,
            }
            .into()
        })
    }

    fn gather(&self, at: Cursor) -> Result<Batch> {
        let samples = self.data.len();
        let first = (at.index as usize).saturating_mul(self.batch);
        let rows = self.batch.min(samples.saturating_sub(first));
        let (rank, ranks) = self.shard;
        let (skip, size) = if self.pad || ranks > 1 {
            (rank * (self.batch / ranks), self.batch / ranks)
        } else {
            (0, rows)
        };
        let valid = rows.saturating_sub(skip).min(size);
        let order = self
            .shuffle
            .map(|seed| Permutation::new(samples, seed, at.epoch));
        let indices = (skip..skip + size)
            .map(|row| {
                // Padding repeats the global batch's last sample: ordinary data, so nothing non-finite can come of it.
                let position = first + row.min(rows.saturating_sub(1));
                match &order {
                    None => Ok(position),
                    Some(order) => order.get(position).ok_or_else(|| {
                        ErrorKind::Index {
                            index: position,
                            len: samples,
                        }
                        .into()
                    }),
                }
            })
            .collect::<Result<Vec<usize>>>()?;
        let arrays = self.data.gather(&indices)?;
        check_gathered("the data set", &arrays, self.data.fields(), size)?;
        let mut batch = Batch {
            arrays,
            size,
            valid,
            index: at.index,
            epoch: at.epoch,
        };
        for map in &self.maps {
            batch = map(batch)?;
            let keeps = batch.size == size
                && (batch.valid, batch.index, batch.epoch) == (valid, at.index, at.epoch);
            if !keeps
                || batch
                    .arrays
                    .iter()
                    .any(|a| a.shape().is_empty() || a.rows() != size)
            {
                return Err(ErrorKind::Mismatch {
                    what: "a mapped batch".into(),
                    expected: format!(
                        "arrays of {size} rows, and size, valid, index and epoch unchanged"
                    ),
                    found: format!(
                        "shapes {:?}",
                        batch.arrays.iter().map(|a| a.shape()).collect::<Vec<_>>()
                    ),
                }
                .into());
            }
        }
        Ok(batch)
    }
}

/// Batches of a [`Source`], in an order and to a depth of prefetching of your choice.
///
/// Mistakes in the options surface at [`check`](Loader::check) and at the first batch.
///
/// Without options: batches of 32 in the source's order, the last one smaller, made on the calling thread.
pub struct Loader {
    recipe: Recipe,
    depth: usize,
    cursor: Cursor,
    prefetcher: Option<Prefetcher>,
}

impl Loader {
    /// A loader over a source, at the start of epoch 0.
    pub fn new(source: impl Source + 'static) -> Loader {
        let recipe = Recipe {
            data: source.dataset(),
            batch: 32,
            shuffle: None,
            drop_remainder: false,
            pad: false,
            maps: Vec::new(),
            shard: (0, 1),
        };
        Loader {
            recipe,
            depth: 0,
            cursor: Cursor::default(),
            prefetcher: None,
        }
    }

    fn set(mut self, edit: impl FnOnce(&mut Recipe)) -> Loader {
        self.prefetcher = None;
        edit(&mut self.recipe);
        self
    }

    /// Rows of a batch over all shards (default 32).
    pub fn batch(self, rows: usize) -> Loader {
        self.set(|r| r.batch = rows)
    }

    /// Each epoch in its own random order, a pure function of (seed, epoch): see [`Permutation`].
    pub fn shuffle(self, seed: u64) -> Loader {
        self.set(|r| r.shuffle = Some(seed))
    }

    /// Whether to leave out the last batch of an epoch when it is not full (default false); then a batch larger
    /// than the data set is an error.
    pub fn drop_remainder(self, drop: bool) -> Loader {
        self.set(|r| r.drop_remainder = drop)
    }

    /// Whether to fill the last batch of an epoch to full size by repeating a sample (default false);
    /// [`Batch::valid`] and [`Batch::mask`] tell the samples from the padding.
    pub fn pad_and_mask(self, pad: bool) -> Loader {
        self.set(|r| r.pad = pad)
    }

    /// Sends every batch through `f`, after earlier maps and on the prefetch thread if there is one.
    ///
    /// `f` may replace the arrays, but must keep their number of rows and the batch's other fields. It must be a pure
    /// function of the batch: random augmentation derives its numbers from the batch's epoch and index.
    pub fn map(self, f: impl Fn(Batch) -> Result<Batch> + Send + Sync + 'static) -> Loader {
        self.set(|r| r.maps.push(Arc::new(f)))
    }

    /// Makes up to `depth` batches ahead on a background thread (default 0: none). Never changes the data.
    pub fn prefetch(mut self, depth: usize) -> Loader {
        self.prefetcher = None;
        self.depth = depth;
        self
    }

    /// Hands out only part `rank` of `of` equal parts of every batch, so that all ranks together see the batches
    /// of one loader; `batch` must be a multiple of `of`, and the last batch padded, dropped or full.
    pub fn shard(self, rank: usize, of: usize) -> Loader {
        self.set(|r| r.shard = (rank, of))
    }

    /// Whether data and options fit together; the error that the first batch would give.
    pub fn check(&self) -> Result<()> {
        self.recipe.check().map(|_| ())
    }

    /// The arrays of a sample as the source has them, before [`map`](Loader::map).
    pub fn fields(&self) -> &[Field] {
        self.recipe.data.fields()
    }

    /// Samples in the source.
    pub fn samples(&self) -> usize {
        self.recipe.data.len()
    }

    /// Rows of a full batch over all shards.
    pub fn batch_size(&self) -> usize {
        self.recipe.batch
    }

    /// The seed of the random order, `None` without [`shuffle`](Loader::shuffle).
    pub fn shuffle_seed(&self) -> Option<u64> {
        self.recipe.shuffle
    }

    /// Batches in an epoch, at least 1; an error if data and options do not fit together.
    pub fn batches_per_epoch(&self) -> Result<u64> {
        self.recipe.check()
    }

    /// The position: the batch that comes next. Batches that were prefetched but not handed out do not count.
    pub fn state(&self) -> Cursor {
        self.cursor
    }

    /// Continues at a position; an error if an epoch of this loader has fewer batches.
    pub fn restore(&mut self, cursor: Cursor) -> Result<()> {
        let batches = self.recipe.check()?;
        if cursor.index > batches {
            return Err(ErrorKind::CursorRange {
                index: cursor.index,
                batches,
            }
            .into());
        }
        self.prefetcher = None;
        self.cursor = cursor;
        Ok(())
    }

    /// The next batch of the epoch; `None` once at its end, after which the next epoch begins.
    ///
    /// An error leaves the position where it is: the same batch is tried again by the next call.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        let batches = self.recipe.check()?;
        if self.cursor.index >= batches {
            self.cursor = next_epoch(self.cursor);
            return Ok(None);
        }
        let outcome = self.produce();
        match outcome {
            Ok(batch) => {
                self.cursor.index += 1;
                Ok(Some(batch))
            }
            Err(e) => {
                self.prefetcher = None;
                Err(e)
            }
        }
    }

    fn produce(&mut self) -> Result<Batch> {
        if self.depth == 0 {
            return self.recipe.make(self.cursor);
        }
        let prefetcher = match self.prefetcher.take() {
            Some(running) => running,
            None => Prefetcher::start(self.recipe.clone(), self.cursor, self.depth)?,
        };
        self.prefetcher.insert(prefetcher).next()
    }

    /// The next batch, going on into the next epoch at the end of one: for training by steps.
    pub fn next_in_cycle(&mut self) -> Result<Batch> {
        loop {
            if let Some(batch) = self.next_batch()? {
                return Ok(batch);
            }
        }
    }

    /// The rest of the current epoch; ends after an error.
    pub fn epoch(&mut self) -> impl Iterator<Item = Result<Batch>> + '_ {
        let mut failed = false;
        std::iter::from_fn(move || {
            let next = if failed {
                None
            } else {
                self.next_batch().transpose()
            };
            failed = !matches!(next, Some(Ok(_)));
            next
        })
    }

    /// All batches from here on, epoch after epoch without end; ends only after an error.
    pub fn cycle(&mut self) -> impl Iterator<Item = Result<Batch>> + '_ {
        let mut failed = false;
        std::iter::from_fn(move || {
            let next = (!failed).then(|| self.next_in_cycle());
            failed = !matches!(next, Some(Ok(_)));
            next
        })
    }
}

pub(crate) fn next_epoch(cursor: Cursor) -> Cursor {
    Cursor {
        epoch: cursor.epoch.saturating_add(1),
        index: 0,
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = &self.recipe;
        f.debug_struct("Loader")
            .field("data", &r.data)
            .field("batch", &r.batch)
            .field("shuffle", &r.shuffle)
            .field("drop_remainder", &r.drop_remainder)
            .field("pad_and_mask", &r.pad)
            .field("shard", &r.shard)
            .field("maps", &r.maps.len())
            .field("prefetch", &self.depth)
            .field("cursor", &self.cursor)
            .finish()
    }
}
