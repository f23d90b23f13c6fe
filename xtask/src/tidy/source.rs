//! Rules about single files: their size, what must not stand in code, paths of one machine.

use super::Findings;
use super::lexer::code;
use crate::{Result, workspace};

/// No Rust file is longer than this.
const MAX_LINES: usize = 800;
/// A Rust file longer than this gets a warning.
const AIM_LINES: usize = 400;
/// An example is read by newcomers in ten minutes.
const EXAMPLE_LINES: usize = 340;

/// The crates that may contain unsafe code; it is denied by a lint everywhere else.
const UNSAFE_CRATES: &[&str] = &[
    "crates/cpu/",
    "crates/kernels/",
    "crates/cubecl/",
    "crates/cuda/",
    "crates/distributed/",
];

/// Folders that exist on one machine only.
const MACHINE_FOLDERS: &[&str] = &["home", "root", "tmp", "work", "farm", "Users"];

/// Checks every file of the working tree.
pub fn check(findings: &mut Findings) -> Result {
    let root = workspace::root();
    for path in workspace::files()? {
        let bytes = std::fs::read(root.join(&path)).map_err(|e| format!("{path}: {e}"))?;
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        if path.ends_with(".rs") {
            sizes(&path, &text, findings);
            contents(&path, &code(&text), findings);
        }
        if path.starts_with("crates/") && path.ends_with("/Cargo.toml") {
            manifest(&path, &text, findings);
        }
        machine_paths(&path, &text, findings);
    }
    Ok(())
}

fn sizes(path: &str, text: &str, findings: &mut Findings) {
    let lines = text.lines().count();
    let limit = if path.starts_with("examples/") {
        EXAMPLE_LINES
    } else {
        MAX_LINES
    };
    if lines > limit {
        findings.error(format!(
            "{path} has {lines} lines, the limit is {limit}: split it"
        ));
    } else if lines > AIM_LINES {
        findings.warn(format!("{path} has {lines} lines, aim at {AIM_LINES}"));
    }
}

/// Rules about code, given without comments and literals.
fn contents(path: &str, code: &str, findings: &mut Findings) {
    let may_be_unsafe = UNSAFE_CRATES.iter().any(|folder| path.starts_with(folder));
    for (number, line) in code.lines().enumerate() {
        let at = format!("{path}:{}", number + 1);
        for name in ["todo", "unimplemented", "dbg"] {
            if has_word(line, name, "!") {
                findings.error(format!("{at}: `{name}!` is left in the code"));
            }
        }
        if line.replace(' ', "").contains("#[ignore]") {
            findings.error(format!(
                "{at}: an ignored test says why: `#[ignore = \"reason\"]`"
            ));
        }
        if !may_be_unsafe && (has_word(line, "unsafe", "") || has_word(line, "unsafe_code", "")) {
            findings.error(format!(
                "{at}: unsafe code is allowed only in {}",
                UNSAFE_CRATES.join(", ")
            ));
        }
    }
}

/// Whether a line contains an identifier, followed directly by `suffix`.
fn has_word(line: &str, word: &str, suffix: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let after = &line[start + word.len()..];
        !line[..start].ends_with(part) && !after.starts_with(part) && after.starts_with(suffix)
    })
}

/// Every crate takes the workspace's lints; `missing_docs` and `unsafe_code` come with them.
fn manifest(path: &str, text: &str, findings: &mut Findings) {
    if !text.contains("[lints]\nworkspace = true") {
        findings.error(format!("{path}: add `[lints]` with `workspace = true`"));
    }
}

fn machine_paths(path: &str, text: &str, findings: &mut Findings) {
    for (number, line) in text.lines().enumerate() {
        for folder in MACHINE_FOLDERS {
            let needle = format!("/{folder}/");
            let absolute = |start: usize| {
                start == 0 || line[..start].ends_with([' ', '"', '\'', '`', '(', '=', '<'])
            };
            if line
                .match_indices(&needle)
                .any(|(start, _)| absolute(start))
            {
                findings.error(format!(
                    "{path}:{}: a path below `{needle}` exists on one machine only",
                    number + 1
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(check: impl Fn(&mut Findings)) -> usize {
        let mut findings = Findings::default();
        check(&mut findings);
        findings.errors.len()
    }

    #[test]
    fn long_files_are_found() {
        let lines = |n: usize| "x\n".repeat(n);
        let of = |path: &str, n| errors(|f| sizes(path, &lines(n), f));
        assert_eq!(of("crates/a/src/lib.rs", 800), 0);
        assert_eq!(of("crates/a/src/lib.rs", 801), 1);
        assert_eq!(of("examples/mnist.rs", 340), 0);
        assert_eq!(of("examples/mnist.rs", 341), 1);
    }

    #[test]
    fn code_rules_are_enforced() {
        let of = |path: &str, text: &str| errors(|f| contents(path, &code(text), f));
        let path = "crates/optim/src/lib.rs";
        assert_eq!(of(path, "todo!()\nunimplemented!()\ndbg!(1)"), 3);
        assert_eq!(of(path, "// todo!()\nlet s = \"dbg!\"; my_todo!()"), 0);
        assert_eq!(of(path, "#[ignore]\nfn a() {}"), 1);
        assert_eq!(of(path, "#[ignore = \"slow\"]\nfn a() {}"), 0);
        assert_eq!(of(path, "unsafe { x() }"), 1);
        assert_eq!(of(path, "#![allow(unsafe_code)]"), 1);
        assert_eq!(of(path, "fn not_unsafe_at_all() {}"), 0);
        assert_eq!(of("crates/cpu/src/simd.rs", "unsafe { x() }"), 0);
    }

    #[test]
    fn machine_paths_are_found() {
        let of = |text: &str| errors(|f| machine_paths("a.md", text, f));
        assert_eq!(of(&format!("see \"/{}/x\"", "tmp")), 1);
        assert_eq!(of("src/work/x and https://a.b/home/"), 0);
    }
}
