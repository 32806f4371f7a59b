//! Exclude patterns, as users of restic and git know them.
//!
//! * Without `/`: matches a name at any depth (`*.o`, `node_modules`).
//! * With `/` in it: matches a run of components anywhere (`target/debug`); with a leading `/`, from the root
//!   (`/home/*/.cache`).
//! * A trailing `/` is ignored. Everything below a match is excluded with it.
//! * `*` any bytes, `?` any one byte, `[abc]`, `[a-z]`, `[!a]` one byte of a set, `**` any number of components, `\`
//!   takes the next byte literally.
//! * A leading `!` includes again what an earlier pattern excluded. It cannot reach into an excluded directory.
//!
//! Patterns and names are bytes.

use crate::{ClientError, Result};

/// A list of patterns. The last match decides.
#[derive(Clone, Debug, Default)]
pub struct Excludes {
    patterns: Vec<Pattern>,
}

/// One pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    takes_back: bool,
    from_root: bool,
    components: Vec<Component>,
}

#[derive(Clone, Debug)]
enum Component {
    /// `**`: any number of components.
    Any,
    Name(Vec<Token>),
}

#[derive(Clone, Debug)]
enum Token {
    Byte(u8),
    One,
    Many,
    Set { ranges: Vec<(u8, u8)>, negated: bool },
}

impl Excludes {
    /// Parses patterns. Errors: one is invalid.
    pub fn new<P: AsRef<str>>(patterns: &[P]) -> Result<Excludes> {
        let patterns = patterns.iter().map(|pattern| Pattern::parse(pattern.as_ref())).collect::<Result<_>>()?;
        Ok(Excludes { patterns })
    }

    /// Returns whether there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns whether the absolute path is excluded by itself, not by a directory above it.
    pub fn matches(&self, path: &[u8]) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let path: Vec<&[u8]> = onefold_catalog::components(path).collect();
        self.patterns.iter().rev().find(|pattern| pattern.matches(&path)).is_some_and(|pattern| !pattern.takes_back)
    }
}

impl Pattern {
    /// Parses a pattern for a search. Errors: it is invalid, or begins with `!`.
    pub fn new(text: &str) -> Result<Pattern> {
        let pattern = Pattern::parse(text)?;
        if pattern.takes_back {
            let reason = "a leading `!` is not supported here; write `\\!` for the character";
            return Err(ClientError::BadPattern { pattern: text.to_owned(), reason });
        }
        Ok(pattern)
    }

    /// Parses a pattern from the root, with or without the leading `/`.
    pub(crate) fn from_root(text: &str) -> Result<Pattern> {
        Pattern::new(&format!("/{text}"))
    }

    /// Returns whether a path below a directory may match. The directory is given by its components from the root.
    pub fn leads_to(&self, directory: &[&[u8]]) -> bool {
        if !self.from_root {
            return true;
        }
        for (place, name) in directory.iter().enumerate() {
            match self.components.get(place) {
                Some(Component::Any) => return true,
                Some(Component::Name(tokens)) if name_matches(tokens, name) => {}
                _ => return false,
            }
        }
        true
    }

    fn parse(text: &str) -> Result<Pattern> {
        let bad = |reason| ClientError::BadPattern { pattern: text.to_owned(), reason };
        let (takes_back, rest) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut components = Vec::new();
        for component in onefold_catalog::components(rest.as_bytes()) {
            match component {
                b".." => return Err(bad("`..` matches nothing")),
                b"**" if matches!(components.last(), Some(Component::Any)) => {}
                b"**" => components.push(Component::Any),
                _ => components.push(Component::Name(tokens(component).map_err(bad)?)),
            }
        }
        if components.is_empty() {
            return Err(bad("it is empty"));
        }
        Ok(Pattern { takes_back, from_root: rest.starts_with('/'), components })
    }

    /// Returns whether a path matches, given by its components from the root.
    pub fn matches(&self, path: &[&[u8]]) -> bool {
        if self.from_root {
            return components_match(&self.components, path);
        }
        (0..path.len()).any(|start| components_match(&self.components, &path[start..]))
    }
}

fn tokens(component: &[u8]) -> std::result::Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    let mut rest = component;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'*' => {
                if !matches!(tokens.last(), Some(Token::Many)) {
                    tokens.push(Token::Many);
                }
            }
            b'?' => tokens.push(Token::One),
            b'\\' => {
                let [next, tail @ ..] = rest else { return Err("it ends with a backslash") };
                tokens.push(Token::Byte(*next));
                rest = tail;
            }
            b'[' => {
                let (set, tail) = set(rest)?;
                tokens.push(set);
                rest = tail;
            }
            byte => tokens.push(Token::Byte(*byte)),
        }
    }
    Ok(tokens)
}

/// Parses a set after its `[`. Returns what follows its `]`.
fn set(mut rest: &[u8]) -> std::result::Result<(Token, &[u8]), &'static str> {
    let mut negated = false;
    if let [b'!' | b'^', tail @ ..] = rest {
        negated = true;
        rest = tail;
    }
    let mut ranges = Vec::new();
    loop {
        let (from, tail) = match rest {
            // A leading `]` belongs to the set.
            [b']', tail @ ..] if !ranges.is_empty() => return Ok((Token::Set { ranges, negated }, tail)),
            [b'\\', byte, tail @ ..] | [byte, tail @ ..] => (*byte, tail),
            [] => return Err("a `[` without its `]`"),
        };
        rest = tail;
        match rest {
            [b'-', to, tail @ ..] if *to != b']' => {
                ranges.push((from, *to));
                rest = tail;
            }
            _ => ranges.push((from, from)),
        }
    }
}

/// Matches greedily with one place to return to: linear for one `*`, never exponential.
fn name_matches(pattern: &[Token], name: &[u8]) -> bool {
    let (mut at, mut byte) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while byte < name.len() {
        let advanced = match pattern.get(at) {
            Some(Token::Many) => {
                retry = Some((at, byte));
                at += 1;
                continue;
            }
            Some(Token::One) => true,
            Some(Token::Byte(wanted)) => *wanted == name[byte],
            Some(Token::Set { ranges, negated }) => ranges.iter().any(|(from, to)| (*from..=*to).contains(&name[byte])) != *negated,
            None => false,
        };
        match (advanced, retry) {
            (true, _) => {
                at += 1;
                byte += 1;
            }
            (false, Some((many, from))) => {
                retry = Some((many, from + 1));
                at = many + 1;
                byte = from + 1;
            }
            (false, None) => return false,
        }
    }
    pattern[at..].iter().all(|token| matches!(token, Token::Many))
}

/// Matches components in the same way, with `**` in place of `*`.
fn components_match(pattern: &[Component], path: &[&[u8]]) -> bool {
    let (mut at, mut place) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while place < path.len() {
        let advanced = match pattern.get(at) {
            Some(Component::Any) => {
                retry = Some((at, place));
                at += 1;
                continue;
            }
            Some(Component::Name(tokens)) => name_matches(tokens, path[place]),
            None => false,
        };
        match (advanced, retry) {
            (true, _) => {
                at += 1;
                place += 1;
            }
            (false, Some((any, from))) => {
                retry = Some((any, from + 1));
                at = any + 1;
                place = from + 1;
            }
            (false, None) => return false,
        }
    }
    pattern[at..].iter().all(|component| matches!(component, Component::Any))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn excluded(patterns: &[&str], path: &str) -> bool {
        Excludes::new(patterns).unwrap().matches(path.as_bytes())
    }

    #[test]
    fn a_pattern_without_a_slash_matches_a_name_at_any_depth() {
        for path in ["/a.o", "/x/y/b.o", "/.o"] {
            assert!(excluded(&["*.o"], path), "{path}");
        }
        for path in ["/a.out", "/x.o/y", "/o"] {
            assert!(!excluded(&["*.o"], path), "{path}");
        }
        assert!(excluded(&["node_modules/"], "/p/node_modules"));
        assert!(excluded(&["a?c", "[!x]1", "[a-c0]z", r"\*"], "/q/abc"));
        assert!(excluded(&["[!x]1"], "/y1") && !excluded(&["[!x]1"], "/x1"));
        assert!(excluded(&["[]a]"], "/]") && excluded(&["[a-c0]z"], "/0z"));
        assert!(excluded(&[r"\*"], "/*") && !excluded(&[r"\*"], "/x"));
    }

    #[test]
    fn a_pattern_with_a_slash_matches_components_anywhere_or_from_the_root() {
        assert!(excluded(&["target/debug"], "/home/x/target/debug"));
        assert!(!excluded(&["target/debug"], "/home/target/x/debug"));
        assert!(excluded(&["/home/*/.cache"], "/home/x/.cache"));
        assert!(!excluded(&["/home/*/.cache"], "/mnt/home/x/.cache"));
        assert!(!excluded(&["/home/*/.cache"], "/home/x/y/.cache"));
    }

    #[test]
    fn two_stars_match_any_number_of_components() {
        for path in ["/a/b", "/a/x/b", "/a/x/y/b"] {
            assert!(excluded(&["/a/**/b"], path), "{path}");
        }
        assert!(!excluded(&["/a/**/b"], "/a/b/c"));
        assert!(excluded(&["**/b"], "/b") && excluded(&["/a/**"], "/a/x/y"));
    }

    #[test]
    fn only_directories_that_a_pattern_leads_to_are_looked_into() {
        let leads = |pattern: &str, path: &str| {
            Pattern::new(pattern).unwrap().leads_to(&onefold_catalog::components(path.as_bytes()).collect::<Vec<_>>())
        };
        assert!(leads("/home/*/notes", "/") && leads("/home/*/notes", "/home/ann") && leads("/a/**/b", "/a/x/y") && leads("b", "/any"));
        assert!(!leads("/home/*/notes", "/etc") && !leads("/home/*/notes", "/home/ann/x") && !leads("/a/**/b", "/b"));
    }

    #[test]
    fn the_last_pattern_decides_and_an_exclamation_mark_takes_back() {
        assert!(!excluded(&["*.log", "!keep.log"], "/x/keep.log"));
        assert!(excluded(&["*.log", "!keep.log"], "/x/other.log"));
        assert!(excluded(&["!keep.log", "*.log"], "/x/keep.log"));
    }

    #[test]
    fn unreadable_patterns_are_refused() {
        for pattern in ["", "/", "!", "a[b", "a\\", "../x", "[]"] {
            assert!(Excludes::new(&[pattern]).is_err(), "{pattern:?}");
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_a_recursive_model(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            fn model(pattern: &[u8], name: &[u8]) -> bool {
                match (pattern, name) {
                    ([], []) => true,
                    ([b'*', rest @ ..], _) => model(rest, name) || (!name.is_empty() && model(pattern, &name[1..])),
                    ([b'?', rest @ ..], [_, tail @ ..]) => model(rest, tail),
                    ([byte, rest @ ..], [first, tail @ ..]) => byte == first && model(rest, tail),
                    _ => false,
                }
            }
            let tokens = tokens(pattern.as_bytes()).unwrap();
            prop_assert_eq!(name_matches(&tokens, name.as_bytes()), model(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn any_text_is_read_or_refused(pattern: String, path: Vec<u8>) {
            if let Ok(excludes) = Excludes::new(&[pattern]) {
                excludes.matches(&path);
            }
        }
    }
}
