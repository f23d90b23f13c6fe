//! How many crates a user of ours compiles.

use std::collections::BTreeSet;

use super::Findings;
use crate::Result;
use crate::process::{cargo, output};
use crate::workspace::Package;

/// A crate with its default features, and the most crates it may consist of, itself among them.
const BUDGETS: &[(&str, usize)] = &[("bimetal-tensor", 20), ("bimetal", 100)];

/// Counts the unique name and version pairs in each crate's tree of normal and build dependencies.
pub fn check(packages: &[Package], findings: &mut Findings) -> Result {
    for (name, limit) in BUDGETS {
        if !packages.iter().any(|p| p.name == *name) {
            findings.error(format!(
                "there is no crate {name} to count the dependencies of"
            ));
            continue;
        }
        let tree = output(&mut cargo([
            "tree",
            "-p",
            name,
            "-e",
            "normal,build",
            "--prefix",
            "none",
        ]))?;
        let count = unique(&tree);
        println!("{name}: {count} crates of at most {limit}");
        if count > *limit {
            findings.error(format!(
                "{name} consists of {count} crates, the limit is {limit}"
            ));
        }
    }
    Ok(())
}

/// The number of different packages in the output of `cargo tree --prefix none`.
fn unique(tree: &str) -> usize {
    let packages: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?))
        })
        .collect();
    packages.len()
}

#[cfg(test)]
mod tests {
    use super::unique;

    #[test]
    fn a_package_that_appears_twice_counts_once() {
        let tree = "a v1.0.0 (here)\nb v2.0.0\nb v2.0.0 (*)\nb v3.0.0 (proc-macro)\n\n";
        assert_eq!(unique(tree), 3);
    }
}
