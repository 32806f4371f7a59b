//! Which names of a backup are wanted: paths and patterns, includes and excludes.
//!
//! A path is taken literally if the backup has it, otherwise as a pattern from the root (`home/*/notes`). Everything
//! below a wanted directory is wanted, unless it is excluded.

use crate::glob::{Excludes, Pattern};
use crate::repository::Reading;
use crate::{ClientError, Result};
use onefold_catalog::{CatalogError, components};
use std::sync::atomic::{AtomicBool, Ordering};

/// The wanted part of a backup.
#[derive(Debug)]
pub(crate) struct Selection {
    paths: Vec<Wanted>,
    include: Excludes,
    exclude: Excludes,
}

#[derive(Debug)]
struct Wanted {
    text: Vec<u8>,
    kind: Kind,
    matched: AtomicBool,
}

#[derive(Debug)]
enum Kind {
    Path,
    Pattern(Pattern),
}

/// How the selection applies to a directory's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// A requested path is this directory or above it.
    chosen: bool,
    /// An include pattern matches this directory or one above it.
    included: bool,
}

/// What to do with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is wanted, with everything below it.
    Wanted(Reach),
    /// A directory that may contain wanted names.
    OnTheWay(Reach),
    /// Neither it nor anything below it is wanted.
    Unwanted,
}

impl Selection {
    /// Parses paths and patterns. Errors: the backup does not have a path without a wildcard.
    pub(crate) fn new(reading: &Reading, paths: &[Vec<u8>], include: &[String], exclude: &[String]) -> Result<Selection> {
        let wanted = |text: &Vec<u8>| {
            let kind = match reading.lookup(text) {
                Ok(_) => Kind::Path,
                Err(CatalogError::PathNotFound { .. } | CatalogError::NotADirectory { .. }) if has_wildcard(text) => {
                    let text = std::str::from_utf8(text).map_err(|_| ClientError::BadPattern {
                        pattern: String::from_utf8_lossy(text).into_owned(),
                        reason: "it is not UTF-8",
                    })?;
                    Kind::Pattern(Pattern::from_root(text)?)
                }
                Err(error) => return Err(error.into()),
            };
            Ok(Wanted { text: text.clone(), kind, matched: AtomicBool::new(false) })
        };
        Ok(Selection {
            paths: paths.iter().map(wanted).collect::<Result<_>>()?,
            include: Excludes::new(include)?,
            exclude: Excludes::new(exclude)?,
        })
    }

    /// Returns whether everything is wanted.
    pub(crate) fn is_everything(&self) -> bool {
        self.paths.is_empty() && self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns how the selection applies to the root.
    pub(crate) fn root(&self) -> Reach {
        Reach { chosen: self.paths.is_empty(), included: self.include.is_empty() }
    }

    /// Judges a name in a directory.
    pub(crate) fn judge(&self, above: Reach, path: &[u8], is_directory: bool) -> Verdict {
        if self.excludes(path) {
            return Verdict::Unwanted;
        }
        let names: Vec<&[u8]> = components(path).collect();
        let mut may_lead = above.chosen;
        let mut chosen = above.chosen;
        for wanted in &self.paths {
            let (is_it, leads) = match &wanted.kind {
                Kind::Path => {
                    let mut asked = components(&wanted.text);
                    let leads = names.iter().all(|name| asked.next() == Some(name));
                    (leads && asked.next().is_none(), leads)
                }
                Kind::Pattern(pattern) => (pattern.matches(&names), pattern.leads_to(&names)),
            };
            if is_it {
                wanted.matched.store(true, Ordering::Relaxed);
            }
            chosen |= is_it;
            may_lead |= is_it || leads;
        }
        let included = above.included || self.include.matches(path);
        let reach = Reach { chosen, included };
        match chosen && included {
            true => Verdict::Wanted(reach),
            false if is_directory && may_lead => Verdict::OnTheWay(reach),
            false => Verdict::Unwanted,
        }
    }

    /// Returns whether a name is excluded by itself.
    pub(crate) fn excludes(&self, path: &[u8]) -> bool {
        self.exclude.matches(path)
    }

    /// Returns the patterns that have matched nothing.
    pub(crate) fn unmatched(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().filter(|wanted| !wanted.matched.load(Ordering::Relaxed)).map(|wanted| &wanted.text[..])
    }
}

fn has_wildcard(text: &[u8]) -> bool {
    text.iter().any(|byte| b"*?[\\".contains(byte))
}
