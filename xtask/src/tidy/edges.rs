//! Which crate of the workspace may depend on which: one way, as the architecture says.

use super::Findings;
use crate::workspace::Package;

/// A crate, and those it may depend on outside its tests.
///
/// Tests, examples and benches may use any crate but the facade's users.
const ALLOWED: &[(&str, &[&str])] = &[
    ("bimetal-dtype", &[]),
    ("bimetal-kernels", &["bimetal-dtype"]),
    ("bimetal-tensor", &["bimetal-dtype"]),
    ("bimetal-cpu", &["bimetal-tensor", "bimetal-kernels"]),
    ("bimetal-cubecl", &["bimetal-tensor"]),
    ("bimetal-cuda", &["bimetal-tensor", "bimetal-cubecl"]),
    ("bimetal-wgpu", &["bimetal-tensor", "bimetal-cubecl"]),
    ("bimetal-autodiff", &["bimetal-tensor"]),
    ("bimetal-precision", &["bimetal-tensor", "bimetal-autodiff"]),
    (
        "bimetal-layers",
        &["bimetal-tensor", "bimetal-autodiff", "bimetal-precision"],
    ),
    (
        "bimetal-optim",
        &[
            "bimetal-tensor",
            "bimetal-autodiff",
            "bimetal-precision",
            "bimetal-layers",
        ],
    ),
    ("bimetal-data", &["bimetal-dtype"]),
    (
        "bimetal-distributed",
        &["bimetal-tensor", "bimetal-precision", "bimetal-optim"],
    ),
    (
        "bimetal-train",
        &[
            "bimetal-tensor",
            "bimetal-autodiff",
            "bimetal-precision",
            "bimetal-layers",
            "bimetal-optim",
            "bimetal-data",
            "bimetal-distributed",
        ],
    ),
    (
        "bimetal",
        &[
            "bimetal-tensor",
            "bimetal-cpu",
            "bimetal-cuda",
            "bimetal-wgpu",
            "bimetal-autodiff",
            "bimetal-precision",
            "bimetal-layers",
            "bimetal-optim",
            "bimetal-data",
            "bimetal-distributed",
            "bimetal-train",
        ],
    ),
    (
        "bimetal-testing",
        &["bimetal", "bimetal-tensor", "bimetal-autodiff"],
    ),
    ("bimetal-examples", &["bimetal"]),
    ("bimetal-bench", &["bimetal"]),
    (
        "bimetal-gpu",
        &[
            "bimetal",
            "bimetal-tensor",
            "bimetal-cubecl",
            "bimetal-cuda",
            "bimetal-wgpu",
            "bimetal-bench",
            "bimetal-testing",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that nothing depends on outside tests.
const LEAVES: &[&str] = &[
    "bimetal-testing",
    "bimetal-examples",
    "bimetal-bench",
    "xtask",
];

/// Compares the declared dependencies with the allowed ones.
pub fn check(packages: &[Package], findings: &mut Findings) {
    for package in packages {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
            findings.error(format!(
                "{} is a new crate: say in xtask/src/tidy/edges.rs what it may depend on",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let ours = packages.iter().any(|p| p.name == dependency.name);
            let fits = match dependency.dev {
                false => allowed.contains(&dependency.name.as_str()),
                true => dependency.name == "bimetal-testing" || !is_leaf(&dependency.name),
            };
            if ours && !fits {
                findings.error(format!(
                    "{} depends on {}, allowed are: {}",
                    package.name,
                    dependency.name,
                    if allowed.is_empty() {
                        "none".to_string()
                    } else {
                        allowed.join(", ")
                    }
                ));
            }
        }
    }
}

fn is_leaf(name: &str) -> bool {
    LEAVES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, on: &[(&str, bool)]) -> Package {
        Package {
            name: name.to_string(),
            dependencies: on
                .iter()
                .map(|(name, dev)| Dependency {
                    name: name.to_string(),
                    dev: *dev,
                })
                .collect(),
            targets: Vec::new(),
        }
    }

    fn errors(packages: &[Package]) -> Vec<String> {
        let mut findings = Findings::default();
        check(packages, &mut findings);
        findings.errors
    }

    #[test]
    fn an_edge_against_the_direction_is_an_error() {
        let tensor = |on: &[(&str, bool)]| package("bimetal-tensor", on);
        let cpu = || {
            package(
                "bimetal-cpu",
                &[("bimetal-tensor", false), ("rayon", false)],
            )
        };
        assert!(errors(&[tensor(&[]), cpu()]).is_empty());
        assert!(errors(&[tensor(&[("bimetal-cpu", true)]), cpu()]).is_empty());
        assert_eq!(errors(&[tensor(&[("bimetal-cpu", false)]), cpu()]).len(), 1);
        assert_eq!(errors(&[package("bimetal-new", &[])]).len(), 1);
    }

    #[test]
    fn the_table_has_no_cycle() {
        // Each crate may depend only on crates that are listed before it.
        let place = |name: &str| ALLOWED.iter().position(|(n, _)| *n == name);
        for (name, allowed) in ALLOWED {
            for dependency in *allowed {
                assert!(place(dependency) < place(name), "{name} on {dependency}");
            }
        }
    }
}
