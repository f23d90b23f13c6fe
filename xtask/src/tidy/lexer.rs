//! Telling Rust code from comments and literals, so that a rule about code sees only code.

/// The text with comments and the insides of string and character literals as spaces.
///
/// Line breaks stay, so line numbers hold.
pub fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = match chars[i] {
            '/' if chars.get(i + 1) == Some(&'/') => line_end(&chars, i),
            '/' if chars.get(i + 1) == Some(&'*') => block_end(&chars, i),
            '"' => string_end(&chars, i),
            'r' | 'b' | 'c' if !is_word(&chars, i) => raw_end(&chars, i).unwrap_or(i),
            '\'' => char_end(&chars, i).unwrap_or(i),
            _ => i,
        };
        if end == i {
            out.push(chars[i]);
            i += 1;
        } else {
            let blank = |c: &char| if *c == '\n' { '\n' } else { ' ' };
            out.extend(chars[i..end].iter().map(blank));
            i = end;
        }
    }
    out
}

/// Whether the character continues an identifier.
fn is_word(chars: &[char], i: usize) -> bool {
    i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_')
}

fn line_end(chars: &[char], start: usize) -> usize {
    let rest = chars[start..].iter().position(|c| *c == '\n');
    rest.map_or(chars.len(), |n| start + n)
}

fn block_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut i = start;
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// The end of a raw string such as `r#"..."#` or `br"..."`; `None` where none starts.
fn raw_end(chars: &[char], start: usize) -> Option<usize> {
    let r = start + chars[start..].iter().take(2).position(|c| *c == 'r')?;
    let hashes = chars[r + 1..].iter().take_while(|c| **c == '#').count();
    let open = r + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes =
        |i: &usize| chars[*i] == '"' && (1..=hashes).all(|n| chars.get(i + n) == Some(&'#'));
    let close = (open + 1..chars.len()).find(closes)?;
    Some(close + 1 + hashes)
}

/// The end of a character literal; `None` for a lifetime.
fn char_end(chars: &[char], start: usize) -> Option<usize> {
    match chars.get(start + 1)? {
        '\\' => {
            let close = chars.get(start + 3..)?.iter().position(|c| *c == '\'')?;
            Some(start + 3 + close + 1)
        }
        _ if chars.get(start + 2) == Some(&'\'') => Some(start + 3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::code;

    fn squeezed(text: &str) -> String {
        code(text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        assert_eq!(squeezed("a // unsafe\nb /* x /* y */ z */ c"), "a b c");
        assert_eq!(
            squeezed(r#"f("un\"safe", 'x', '\'', '\u{41}') g"#),
            "f( , , , ) g"
        );
        assert_eq!(squeezed("x(r#\"a \" b\"#) y"), "x( ) y");
        assert_eq!(squeezed("br\"unsafe\" z"), "z");
    }

    #[test]
    fn lifetimes_and_names_stay() {
        let text = "fn f<'a>(x: &'a str, var: u8) -> &'static str { br }";
        assert_eq!(code(text), text);
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "a\n/* b\nc */\n\"d\ne\"\nf";
        assert_eq!(code(text).lines().count(), text.lines().count());
        assert_eq!(code(text).lines().next_back(), Some("f"));
    }
}
