//! The writer is stopped before each of its file operations.

use std::sync::Arc;

use super::super::disk::Disk;
use super::super::disk::faults::Faults;
use super::super::save::write_folder;
use super::*;

/// Runs `scenario` with a fault before its first, second, third ... file operation until none is reached.
fn at_every_operation(killed: bool, scenario: impl Fn(&Path, Disk) -> bool) -> i64 {
    for operations in 0.. {
        let scratch = Scratch::new();
        let faults = Arc::new(Faults::after(operations, killed));
        let disk = Disk {
            faults: Some(faults.clone()),
        };
        let succeeded = scenario(&scratch.0, disk);
        if !faults.fired() {
            assert!(succeeded);
            return operations;
        }
    }
    unreachable!()
}

#[test]
fn a_kill_between_any_two_file_operations_leaves_a_loadable_state() {
    for keep in [1, 2] {
        let operations = at_every_operation(true, |dir, disk| {
            let mut safe = Checkpoints::open(dir).unwrap().keep(keep);
            save(&mut safe, 10).unwrap();
            let mut faulty = Checkpoints::open_on(dir.to_path_buf(), disk)
                .unwrap()
                .keep(keep);
            let (arrays, meta) = state(20);
            let saved = faulty.save_best(&arrays, &meta);

            let loaded = load_latest_checkpoint(dir).unwrap().unwrap();
            let step = loaded.meta().attempted;
            assert!(step == 20 || step == 10 && saved.is_err());
            assert_is(&loaded, step);
            assert!(loaded.warnings().is_empty(), "{:?}", loaded.warnings());
            // Whatever carries the name of a checkpoint is whole, the expiring one too.
            let first = dir.join(folder_name(10));
            if first.exists() {
                assert_is(&load_checkpoint(&first).unwrap(), 10);
            }

            // The program is started again and goes on; no leftovers remain.
            let mut again = Checkpoints::open(dir).unwrap().keep(1);
            assert_is(&load_latest_checkpoint(dir).unwrap().unwrap(), step);
            save(&mut again, 30).unwrap();
            assert_is(&load_latest_checkpoint(dir).unwrap().unwrap(), 30);
            assert!(
                names(dir).iter().all(|name| !name.starts_with('.')),
                "{:?}",
                names(dir)
            );
            if let Some(best) = again.load_best().unwrap() {
                assert_is(&best, 20);
            }
            saved.is_ok()
        });
        assert!(
            operations > 20,
            "only {operations} operations were interrupted"
        );
    }
}

#[test]
fn a_kill_while_replacing_the_only_folder_of_the_same_step_leaves_a_loadable_state() {
    at_every_operation(true, |dir, disk| {
        let mut safe = Checkpoints::open(dir).unwrap().keep(1);
        save(&mut safe, 10).unwrap();
        let mut faulty = Checkpoints::open_on(dir.to_path_buf(), disk)
            .unwrap()
            .keep(1);
        let saved = save(&mut faulty, 10);
        assert_is(&load_latest_checkpoint(dir).unwrap().unwrap(), 10);
        let _again = Checkpoints::open(dir).unwrap();
        assert_eq!(names(dir).iter().filter(|n| n.contains("step-")).count(), 1);
        assert_is(&load_latest_checkpoint(dir).unwrap().unwrap(), 10);
        saved.is_ok()
    });
}

#[test]
fn a_kill_while_replacing_a_folder_by_name_leaves_the_old_or_the_new_one() {
    at_every_operation(true, |dir, disk| {
        let folder = dir.join("ckpt");
        let (arrays, meta) = state(1);
        save_checkpoint(&folder, &arrays, &meta).unwrap();
        let (arrays, meta) = state(2);
        let saved = write_folder(&disk, &folder, &arrays, &meta, 0);
        let loaded = load_checkpoint(&folder).unwrap();
        assert_is(&loaded, loaded.meta().attempted);
        let (arrays, meta) = state(3);
        save_checkpoint(&folder, &arrays, &meta).unwrap();
        assert_is(&load_checkpoint(&folder).unwrap(), 3);
        assert_eq!(names(dir), ["ckpt"]);
        saved.is_ok()
    });
}

#[test]
fn a_failed_operation_costs_one_checkpoint_and_no_more() {
    at_every_operation(false, |dir, disk| {
        let mut checkpoints = Checkpoints::open_on(dir.to_path_buf(), disk)
            .unwrap()
            .keep(1);
        let results = [10, 20, 30].map(|step| save(&mut checkpoints, step).is_ok());
        if results.iter().any(|ok| !ok) {
            assert_eq!(results.iter().filter(|ok| !**ok).count(), 1);
        }
        let loaded = load_latest_checkpoint(dir).unwrap().unwrap();
        let step = loaded.meta().attempted;
        assert!(
            step == 30 || step == 20 && !results[2],
            "{step} {results:?}"
        );
        assert_is(&loaded, step);
        results.iter().all(|ok| *ok)
    });
}
