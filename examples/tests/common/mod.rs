//! Running examples as a user does. `cargo test` builds them; with `--test` alone it does not, and then there is nothing to run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program of an example, if it was built.
pub fn program(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent()?.parent()?.join("examples");
    let program = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if !program.exists() {
        println!("skipped: the example {name} is not built; run the tests without `--test`");
        return None;
    }
    Some(program)
}

/// Runs an example in a folder of its own.
pub fn run(program: &Path, scratch: &Scratch, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .current_dir(&scratch.0)
        .output()
        .unwrap()
}

/// A folder that is removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("bimetal-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
