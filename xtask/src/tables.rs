//! Suites that are tables: a line for each row, whatever else fails.

/// What became of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Passed,
    Failed,
    Ignored,
}

impl State {
    /// The test and its state in a line of a test harness, such as `test name ... ok`.
    pub fn read(line: &str) -> Option<(String, State)> {
        let (name, rest) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        let state = match rest {
            "ok" => State::Passed,
            "FAILED" => State::Failed,
            _ if rest.starts_with("ignored") => State::Ignored,
            _ => return None,
        };
        Some((name.to_string(), state))
    }
}

/// The number of known faults, each with at least one test.
const PITFALLS: usize = 30;

/// The fault that the documentation's tests of what must not compile belong to.
const TYPES: usize = 7;

/// `pitfall N: pass` or `fail`, for each fault: it fails if one of its tests does, or if none ran.
pub fn pitfalls(tests: &[(String, State)]) -> Vec<String> {
    let line = |n: usize| {
        let prefix = format!("pitfall_{n:02}_");
        let ours = |name: &str| {
            name.starts_with(&prefix) || (n == TYPES && name.ends_with("- compile fail"))
        };
        let mut states = tests.iter().filter(|(name, _)| ours(name)).map(|(_, s)| *s);
        let first = states.next();
        let pass = first == Some(State::Passed) && states.all(|s| s == State::Passed);
        format!("pitfall {n}: {}", if pass { "pass" } else { "fail" })
    };
    (1..=PITFALLS).map(line).collect()
}

/// `keras ROW: pass`, `fail` or `later`, for each test of the table.
pub fn keras(tests: &[(String, State)]) -> Vec<String> {
    let row = |(name, state): &(String, State)| {
        let row = name.strip_prefix("keras_")?.replace('_', " ");
        let what = match state {
            State::Passed => "pass",
            State::Failed => "fail",
            State::Ignored => "later",
        };
        Some(format!("keras {row}: {what}"))
    };
    tests.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Vec<(String, State)> {
        lines.iter().filter_map(|line| State::read(line)).collect()
    }

    #[test]
    fn a_fault_passes_if_all_of_its_tests_do() {
        let tests = read(&[
            "test pitfall_01_a ... ok",
            "test pitfall_01_b ... FAILED",
            "test pitfall_02_a ... ok",
            "test pitfall_07_types ... ok",
            "test crates/x.rs - Grads (line 3) - compile fail ... FAILED",
            "test pitfall_30_a ... ok",
            "test result: ok. 1 passed",
        ]);
        assert_eq!(tests.len(), 6);
        let lines = pitfalls(&tests);
        assert_eq!(lines.len(), 30);
        assert_eq!(
            &lines[..3],
            ["pitfall 1: fail", "pitfall 2: pass", "pitfall 3: fail"]
        );
        assert_eq!(
            (&*lines[6], &*lines[29]),
            ("pitfall 7: fail", "pitfall 30: pass")
        );
    }

    #[test]
    fn rows_keep_their_names() {
        let tests = read(&[
            "test keras_loss_scale ... ok",
            "test keras_gru ... ignored, later",
        ]);
        assert_eq!(
            keras(&tests),
            ["keras loss scale: pass", "keras gru: later"]
        );
    }
}
