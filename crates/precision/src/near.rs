//! Suggestions for path patterns that describe nothing.
use std::collections::HashSet;

/// Of `paths` and the layers they lie inside of, up to `count` that are most like `pattern`, the most like first: for messages about patterns that describe nothing.
///
/// The measure is the number of characters to insert, delete and replace (Levenshtein 1966); those that `*` and `?` stand for are free.
pub fn near_paths<'a>(
    pattern: &str,
    paths: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    let mut found: Vec<(usize, &str)> = Vec::new();
    for path in paths {
        let ends = path.match_indices('.').map(|(i, _)| i);
        for end in ends.chain([path.len()]) {
            let part = &path[..end];
            if !part.is_empty() && seen.insert(part) {
                found.push((distance(pattern.as_bytes(), part.as_bytes()), part));
            }
        }
    }
    // Stable: of equals the one that was built first.
    found.sort_by_key(|(distance, _)| *distance);
    found.into_iter().take(count).map(|(_, p)| p).collect()
}

fn distance(pattern: &[u8], text: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=text.len()).collect();
    for &p in pattern {
        let free = usize::from(p != b'*');
        let mut diagonal = row[0];
        row[0] += free;
        for (j, &t) in text.iter().enumerate() {
            let replaced = diagonal + usize::from(p != t && p != b'?' && p != b'*');
            diagonal = row[j + 1];
            // A `*` takes one more character for nothing.
            let inserted = row[j] + usize::from(p != b'*');
            row[j + 1] = replaced.min(inserted).min(diagonal + free);
        }
    }
    row[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (pattern, text, want) in [
            ("head", "head", 0),
            ("haed", "head", 2),
            ("hea", "head", 1),
            ("", "abc", 3),
            ("abc", "", 3),
            ("blocks.*.mpl", "blocks.0.mlp", 2),
            ("blocks.*", "blocks.11.attention", 0),
            ("b?ock", "block", 0),
            ("*", "anything", 0),
        ] {
            assert_eq!(
                distance(pattern.as_bytes(), text.as_bytes()),
                want,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn the_most_like_come_first_and_layers_around_count() {
        let paths = ["embed", "decoder.0.mlp.up", "decoder.0.mlp.down", "head"];
        assert_eq!(near_paths("haed", paths, 1), ["head"]);
        assert_eq!(
            near_paths("decoder.*.mpl", paths, 2),
            ["decoder.0.mlp", "decoder.0.mlp.up"]
        );
        assert!(near_paths("x", [], 3).is_empty());
    }
}
