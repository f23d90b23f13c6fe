//! The loader: order, position, prefetch, shards, errors.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bimetal_data::{
    Array, Batch, Cursor, Error, ErrorKind, Field, InMemory, Loader, RandomWindows, Result, Source,
};
use bimetal_dtype::DType;

/// `n` samples: x = [i, 10 i] as f32, y = i.
fn numbers(n: usize) -> InMemory {
    let x = (0..n).flat_map(|i| [i as f32, 10.0 * i as f32]).collect();
    let y: Vec<i32> = (0..n as i32).collect();
    InMemory::new(vec![Array::from_vec(x, &[n, 2]).unwrap(), Array::from(y)]).unwrap()
}

fn ids(batch: &Batch) -> Vec<i32> {
    batch.arrays[1].to_vec().unwrap()
}

fn take(loader: &mut Loader, n: usize) -> Vec<Batch> {
    loader.cycle().take(n).collect::<Result<_>>().unwrap()
}

#[test]
fn an_epoch_without_options_is_the_source_in_order() {
    let mut loader = Loader::new(numbers(10)).batch(4);
    assert_eq!(loader.batches_per_epoch().unwrap(), 3);
    let epoch: Vec<Batch> = loader.epoch().collect::<Result<_>>().unwrap();
    assert_eq!(
        epoch.iter().map(ids).collect::<Vec<_>>(),
        [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]
    );
    assert_eq!(epoch[2].arrays[0].shape(), [2, 2]);
    assert_eq!(
        epoch[2].arrays[0].to_vec::<f32>().unwrap(),
        [8.0, 80.0, 9.0, 90.0]
    );
    assert_eq!(
        epoch
            .iter()
            .map(|b| (b.size, b.valid, b.index, b.epoch))
            .collect::<Vec<_>>(),
        [(4, 4, 0, 0), (4, 4, 1, 0), (2, 2, 2, 0)]
    );
    assert_eq!(loader.state(), Cursor { epoch: 1, index: 0 });
}

#[test]
fn shuffled_epochs_hold_every_sample_once_and_differ() {
    let mut loader = Loader::new(numbers(103)).batch(10).shuffle(3);
    let mut orders = BTreeSet::new();
    for _ in 0..4 {
        let order: Vec<i32> = loader.epoch().flat_map(|b| ids(&b.unwrap())).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..103));
        orders.insert(order);
    }
    assert_eq!(orders.len(), 4);
    // Rows stay together.
    let batch = loader.next_batch().unwrap().unwrap();
    let x = batch.arrays[0].to_vec::<f32>().unwrap();
    assert!(
        ids(&batch)
            .iter()
            .zip(x.chunks(2))
            .all(|(i, x)| x == [*i as f32, 10.0 * *i as f32])
    );
}

#[test]
fn restoring_anywhere_continues_identically() {
    let make = |depth| {
        Loader::new(numbers(23))
            .batch(5)
            .shuffle(11)
            .prefetch(depth)
    };
    let all = take(&mut make(0), 15);
    for done in 0..=14 {
        let mut first = make(3);
        take(&mut first, done);
        let saved = first.state();
        drop(first);
        let mut second = make(2);
        second.restore(saved).unwrap();
        assert_eq!(
            take(&mut second, 15 - done),
            all[done..],
            "after {done} batches"
        );
        if done > 0 {
            let mut third = make(0);
            third.restore(all[done - 1].cursor_after()).unwrap();
            assert_eq!(take(&mut third, 15 - done), all[done..]);
        }
    }
}

#[test]
fn a_position_at_the_end_of_an_epoch_still_reports_that_end() {
    let mut loader = Loader::new(numbers(6)).batch(3).prefetch(2);
    take(&mut loader, 2);
    let saved = loader.state();
    assert_eq!(saved, Cursor { epoch: 0, index: 2 });
    let mut resumed = Loader::new(numbers(6)).batch(3);
    resumed.restore(saved).unwrap();
    assert!(resumed.next_batch().unwrap().is_none());
    assert_eq!(resumed.next_batch().unwrap().unwrap().epoch, 1);
}

#[test]
fn restore_refuses_a_foreign_position() {
    let mut loader = Loader::new(numbers(20)).batch(10);
    let e = loader.restore(Cursor { epoch: 0, index: 3 }).unwrap_err();
    assert!(
        matches!(
            e.kind(),
            ErrorKind::CursorRange {
                index: 3,
                batches: 2
            }
        ),
        "{e}"
    );
    assert_eq!(loader.state(), Cursor::default());
}

#[test]
fn prefetching_never_changes_the_data() {
    let make = || {
        Loader::new(numbers(37))
            .batch(8)
            .shuffle(5)
            .map(|mut batch| {
                batch.arrays[0] = batch.arrays[0].map_f32(|v| v + batch.epoch as f32 + 0.5)?;
                Ok(batch)
            })
    };
    let plain = take(&mut make(), 23);
    assert_ne!(plain[0].arrays[0], plain[5].arrays[0]);
    for depth in [1, 2, 4, 100] {
        assert_eq!(
            take(&mut make().prefetch(depth), 23),
            plain,
            "depth {depth}"
        );
    }
    // Epoch by epoch as well.
    let mut loader = make().prefetch(4);
    let mut again = Vec::new();
    for _ in 0..3 {
        again.extend(loader.epoch().map(|b| b.unwrap()));
    }
    assert_eq!(again[..], plain[..15]);
}

#[test]
fn the_state_counts_batches_handed_out() {
    let made = Arc::new(AtomicUsize::new(0));
    let counter = made.clone();
    let mut loader = Loader::new(numbers(100))
        .batch(1)
        .prefetch(4)
        .map(move |b| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(b)
        });
    take(&mut loader, 3);
    // The thread gets up to four ahead of the three taken and stays there.
    while made.load(Ordering::SeqCst) < 7 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(loader.state(), Cursor { epoch: 0, index: 3 });
    drop(loader);
    assert_eq!(made.load(Ordering::SeqCst), 7);
}

#[test]
fn dropping_the_loader_ends_its_thread() {
    let alive = Arc::new(());
    let held = alive.clone();
    let mut loader = Loader::new(numbers(100))
        .batch(2)
        .prefetch(3)
        .map(move |b| {
            let _ = &held;
            Ok(b)
        });
    take(&mut loader, 1);
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(loader);
    // The map function lives as long as the thread's copy of it.
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn drop_remainder_pad_and_mask() {
    let mut dropping = Loader::new(numbers(10)).batch(4).drop_remainder(true);
    assert_eq!(dropping.batches_per_epoch().unwrap(), 2);
    assert_eq!(
        dropping
            .epoch()
            .flat_map(|b| ids(&b.unwrap()))
            .collect::<Vec<_>>(),
        (0..8).collect::<Vec<_>>()
    );

    let mut padding = Loader::new(numbers(10)).batch(4).pad_and_mask(true);
    let last = take(&mut padding, 3).pop().unwrap();
    assert_eq!((last.size, last.valid), (4, 2));
    assert_eq!(ids(&last), [8, 9, 9, 9]);
    assert_eq!(last.mask().to_vec::<f32>().unwrap(), [1.0, 1.0, 0.0, 0.0]);

    let mut shuffled = Loader::new(numbers(10))
        .batch(4)
        .pad_and_mask(true)
        .shuffle(1);
    let seen: BTreeSet<i32> = shuffled
        .epoch()
        .flat_map(|b| b.map(|b| ids(&b)[..b.valid].to_vec()).unwrap())
        .collect();
    assert_eq!(seen.len(), 10);
}

#[test]
fn shards_together_are_the_unsharded_batches() {
    let make = || {
        Loader::new(numbers(22))
            .batch(8)
            .shuffle(2)
            .pad_and_mask(true)
    };
    let whole = take(&mut make(), 6);
    for of in [2, 4, 8] {
        let mut parts: Vec<Loader> = (0..of)
            .map(|rank| make().shard(rank, of).prefetch(rank))
            .collect();
        for whole in &whole {
            let parts: Vec<Batch> = parts
                .iter_mut()
                .map(|p| p.next_in_cycle().unwrap())
                .collect();
            assert_eq!(parts.iter().flat_map(ids).collect::<Vec<_>>(), ids(whole));
            assert_eq!(parts.iter().map(|p| p.valid).sum::<usize>(), whole.valid);
            assert!(
                parts
                    .iter()
                    .all(|p| p.size == 8 / of && (p.index, p.epoch) == (whole.index, whole.epoch))
            );
        }
    }
}

#[test]
fn endless_windows_are_batches_by_global_sample_index() {
    let tokens: Vec<i32> = (0..1000).collect();
    let windows = || RandomWindows::new(tokens.clone(), 8, 1).unwrap();
    let mut loader = Loader::new(windows()).batch(4).prefetch(2);
    let batches = take(&mut loader, 3);
    let all = windows().gather(&(0..12).collect::<Vec<_>>()).unwrap();
    let joined: Vec<i32> = batches
        .iter()
        .flat_map(|b| b.arrays[0].to_vec::<i32>().unwrap())
        .collect();
    assert_eq!(joined, all[0].to_vec::<i32>().unwrap());
    assert_eq!(loader.state(), Cursor { epoch: 0, index: 3 });
    assert_eq!(batches[0].arrays[1].shape(), [4, 8]);
    // Even the last batch of the endless epoch can be addressed.
    let batches = loader.batches_per_epoch().unwrap();
    loader
        .restore(Cursor {
            epoch: 0,
            index: batches - 1,
        })
        .unwrap();
    assert!(loader.next_batch().unwrap().unwrap().size >= 1);
}

fn first_error(mut loader: Loader) -> Error {
    let checked = loader.check();
    let e = loader.next_batch().unwrap_err();
    if let Err(c) = checked {
        assert_eq!(c.to_string(), e.to_string());
    }
    e
}

#[test]
fn unusable_options_are_one_clear_error() {
    let e = first_error(Loader::new(numbers(10)).batch(11).drop_remainder(true));
    assert!(matches!(
        e.kind(),
        ErrorKind::BatchTooLarge {
            batch: 11,
            samples: 10
        }
    ));
    assert!(
        e.to_string().contains("11") && e.to_string().contains("10"),
        "{e}"
    );
    assert!(matches!(
        first_error(Loader::new(numbers(0))).kind(),
        ErrorKind::Empty
    ));
    assert!(matches!(
        first_error(Loader::new(numbers(5).take(0)).prefetch(2)).kind(),
        ErrorKind::Empty
    ));
    let options = [
        (Loader::new(numbers(10)).batch(0), "batch of 0"),
        (
            Loader::new(numbers(10)).batch(4).shard(2, 2),
            "shard 2 of 2",
        ),
        (
            Loader::new(numbers(10)).batch(4).shard(0, 0),
            "shard 0 of 0",
        ),
        (
            Loader::new(numbers(12)).batch(4).shard(0, 3),
            "multiple of 3",
        ),
        (
            Loader::new(numbers(10)).batch(4).shard(0, 2),
            "pad_and_mask",
        ),
        (
            Loader::new(numbers(10))
                .batch(4)
                .pad_and_mask(true)
                .drop_remainder(true),
            "choose one",
        ),
    ];
    for (loader, text) in options {
        let e = first_error(loader);
        assert!(
            matches!(e.kind(), ErrorKind::Options(_)) && e.to_string().contains(text),
            "{e}"
        );
    }
    // A batch larger than the data is a small batch where remainders are kept.
    assert_eq!(take(&mut Loader::new(numbers(3)).batch(8), 1)[0].size, 3);
}

#[test]
fn a_failing_or_panicking_map_is_an_error_at_its_batch() {
    for depth in [0, 3] {
        for panics in [false, true] {
            let tries = Arc::new(AtomicUsize::new(0));
            let counter = tries.clone();
            let mut loader = Loader::new(numbers(10))
                .batch(2)
                .prefetch(depth)
                .map(move |b| {
                    if b.index == 2 && counter.fetch_add(1, Ordering::SeqCst) == 0 {
                        assert!(!panics, "pixel {} is broken", 7);
                        return Err(Error::custom("pixel 7 is broken"));
                    }
                    Ok(b)
                });
            take(&mut loader, 2);
            let e = loader.next_batch().unwrap_err();
            assert!(
                matches!(
                    e.kind(),
                    ErrorKind::Batch {
                        epoch: 0,
                        index: 2,
                        ..
                    }
                ),
                "{e:?}"
            );
            assert!(e.to_string().contains("pixel 7 is broken"), "{e}");
            // Nothing was lost: the batch comes when the cause is gone.
            assert_eq!(loader.state(), Cursor { epoch: 0, index: 2 });
            assert_eq!(ids(&loader.next_batch().unwrap().unwrap()), [4, 5]);
        }
    }
    let mut loader = Loader::new(numbers(10)).map(|_| Err(Error::custom("always")));
    assert_eq!(loader.epoch().count(), 1);
    assert_eq!(loader.cycle().take(5).count(), 1);
}

#[test]
fn a_map_that_changes_the_rows_is_an_error() {
    let mut loader = Loader::new(numbers(10)).batch(5).map(|mut b| {
        b.arrays[0] = b.arrays[0].gather(&[0])?;
        Ok(b)
    });
    assert!(
        loader
            .next_batch()
            .unwrap_err()
            .to_string()
            .contains("[1, 2]")
    );
}

struct Liar(Vec<Field>);
impl Source for Liar {
    fn len(&self) -> usize {
        4
    }
    fn fields(&self) -> &[Field] {
        &self.0
    }
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>> {
        Ok(vec![Array::from(vec![0.0f64; indices.len()])])
    }
}

#[test]
fn a_source_that_breaks_its_promise_is_an_error() {
    let e = first_error(Loader::new(Liar(vec![Field::new(DType::F32, &[])])).batch(2));
    assert!(
        e.to_string().contains("expected F32 [2], found F64 [2]"),
        "{e}"
    );
    assert!(
        Loader::new(Liar(vec![Field::new(DType::F64, &[])]))
            .batch(2)
            .next_batch()
            .is_ok()
    );
}
