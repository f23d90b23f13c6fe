//! Text as characters.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::{Error, ErrorKind, RandomWindows, Result, Windows};

/// The characters a text consists of, sorted; a character's token is its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharVocab {
    chars: Vec<char>,
}

impl CharVocab {
    /// The vocabulary of the characters that occur in `text`.
    pub fn from_text(text: &str) -> CharVocab {
        let mut chars: Vec<char> = text.chars().collect();
        chars.sort_unstable();
        chars.dedup();
        CharVocab { chars }
    }

    /// Number of characters.
    pub fn len(&self) -> usize {
        self.chars.len()
    }

    /// Whether there are no characters.
    pub fn is_empty(&self) -> bool {
        self.chars.is_empty()
    }

    /// The characters in token order.
    pub fn chars(&self) -> &[char] {
        &self.chars
    }

    /// The tokens of `text`; an error for the first character that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>> {
        text.chars()
            .enumerate()
            .map(|(position, found)| match self.chars.binary_search(&found) {
                Ok(token) => Ok(token as i32), // there are fewer than 2^21 characters
                Err(_) => Err(ErrorKind::UnknownChar {
                    found,
                    position,
                    vocab: self.len(),
                }
                .into()),
            })
            .collect()
    }

    /// The text of `tokens`; an error for the first token that is not in the vocabulary.
    pub fn decode(&self, tokens: &[i32]) -> Result<String> {
        tokens
            .iter()
            .map(|&found| {
                let char = usize::try_from(found).ok().and_then(|t| self.chars.get(t));
                char.copied().ok_or_else(|| {
                    ErrorKind::UnknownToken {
                        found,
                        vocab: self.len(),
                    }
                    .into()
                })
            })
            .collect()
    }
}

impl fmt::Display for CharVocab {
    /// All characters in token order; [`CharVocab::from_text`] of it gives the vocabulary back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chars.iter().try_for_each(|c| write!(f, "{c}"))
    }
}

/// A text as tokens, with the vocabulary that made them.
#[derive(Clone, Debug)]
pub struct CharText {
    vocab: Arc<CharVocab>,
    tokens: Arc<[i32]>,
}

impl CharText {
    /// A text with the vocabulary of its own characters; an error if it is empty.
    pub fn new(text: &str) -> Result<CharText> {
        CharText::with_vocab(text, CharVocab::from_text(text))
    }

    /// A text in a given vocabulary; an error if it is empty or has a character outside.
    pub fn with_vocab(text: &str, vocab: CharVocab) -> Result<CharText> {
        if text.is_empty() {
            return Err(ErrorKind::Empty.into());
        }
        let tokens = vocab.encode(text)?.into();
        Ok(CharText {
            vocab: Arc::new(vocab),
            tokens,
        })
    }

    /// The text of a UTF-8 file with the vocabulary of its own characters.
    pub fn open(path: impl AsRef<Path>) -> Result<CharText> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        if text.is_empty() {
            return Err(ErrorKind::WrongContent {
                path: path.to_path_buf(),
                expected: "a text".into(),
                found: "an empty file".into(),
            }
            .into());
        }
        CharText::new(&text)
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &CharVocab {
        &self.vocab
    }

    /// The tokens.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// The first `n` characters and the rest, with the same vocabulary; an error if there are fewer than `n`.
    pub fn split_at(&self, n: usize) -> Result<(CharText, CharText)> {
        let Some((head, tail)) = self.tokens.split_at_checked(n) else {
            return Err(ErrorKind::Range {
                start: 0,
                end: n,
                len: self.tokens.len(),
            }
            .into());
        };
        let part = |tokens: &[i32]| CharText {
            vocab: self.vocab.clone(),
            tokens: tokens.into(),
        };
        Ok((part(head), part(tail)))
    }

    /// Random windows for training; see [`RandomWindows::new`].
    pub fn random_windows(&self, context: usize, seed: u64) -> Result<RandomWindows> {
        RandomWindows::new(self.tokens.clone(), context, seed)
    }

    /// Non-overlapping windows for evaluation; see [`Windows::new`].
    pub fn windows(&self, context: usize) -> Result<Windows> {
        Windows::new(self.tokens.clone(), context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_decodes_and_names_the_unknown() {
        let vocab = CharVocab::from_text("hello wörld");
        assert_eq!(vocab.to_string(), " dehlorwö");
        assert_eq!(vocab.len(), 9);
        let tokens = vocab.encode("löw").unwrap();
        assert_eq!(tokens, [4, 8, 7]);
        assert_eq!(vocab.decode(&tokens).unwrap(), "löw");
        assert_eq!(CharVocab::from_text(&vocab.to_string()), vocab);

        let e = vocab.encode("hexe").unwrap_err();
        assert!(
            matches!(
                e.kind(),
                ErrorKind::UnknownChar {
                    found: 'x',
                    position: 2,
                    vocab: 9
                }
            ),
            "{e}"
        );
        assert!(matches!(
            vocab.decode(&[0, 9]).unwrap_err().kind(),
            ErrorKind::UnknownToken { found: 9, vocab: 9 }
        ));
        assert!(matches!(
            vocab.decode(&[-1]).unwrap_err().kind(),
            ErrorKind::UnknownToken { found: -1, .. }
        ));
        assert!(CharText::new("").is_err());
    }

    #[test]
    fn split_keeps_the_vocabulary() {
        let text = CharText::new("aaab").unwrap();
        let (head, tail) = text.split_at(3).unwrap();
        assert_eq!((head.tokens(), tail.tokens()), (&[0, 0, 0][..], &[1][..]));
        assert_eq!(head.vocab().len(), 2);
        assert!(text.split_at(5).is_err());
    }
}
