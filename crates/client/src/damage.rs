//! Files with an unreadable part: which bytes are lost, and what happens to the rest.
//!
//! A lost chunk takes its own bytes. A lost recipe chunk takes all bytes that it spells; the file's size tells how
//! many. If several recipe chunks are lost, the position of the bytes between them is unknown, so these count as lost
//! too.

use onefold_catalog::{Chunks, PieceReader};
use onefold_engine::{Piece, Recipe};
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

/// How to treat a file with an unreadable part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damaged {
    /// Leave it out.
    Skip,
    /// Restore it under a name that ends with [`DAMAGED_SUFFIX`], with zeros in place of lost bytes.
    #[default]
    Zero,
    /// End the operation with an error.
    Fail,
}

/// The suffix of files that have zeros in place of lost bytes.
pub const DAMAGED_SUFFIX: &str = ".onefold-damaged";

/// The longest name in Linux file systems.
const MAX_NAME_BYTES: usize = 255;
/// Most ranges in a message. A [`Problem`](crate::Problem) has them all.
const NAMED_RANGES: usize = 20;

/// Returns the name of a file that is restored with zeros in place of lost bytes.
pub(crate) fn damaged_name(name: &[u8]) -> Vec<u8> {
    let mut end = name.len().min(MAX_NAME_BYTES - DAMAGED_SUFFIX.len());
    // Do not cut a UTF-8 character in two.
    while end > 0 && end < name.len() && name[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    [&name[..end], DAMAGED_SUFFIX.as_bytes()].concat()
}

/// Bytes of a file that cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    ranges: Vec<Range<u64>>,
    why: String,
}

impl Lost {
    /// Adds a range; the first reason is kept.
    pub(crate) fn add(&mut self, range: Range<u64>, why: impl FnOnce() -> String) {
        if self.ranges.is_empty() {
            self.why = why();
        }
        if !range.is_empty() {
            self.ranges.push(range);
        }
    }

    /// Adds everything of another part of the file.
    pub(crate) fn append(&mut self, other: Lost) {
        other.ranges.into_iter().for_each(|range| self.add(range, || other.why.clone()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Sorts the ranges and joins neighbours.
    pub(crate) fn into_parts(mut self) -> (Vec<Range<u64>>, String) {
        self.ranges.sort_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in self.ranges {
            match joined.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        (joined, self.why)
    }
}

/// Returns ranges for people: `bytes 0..4096 and 8192..12288 (8192 of 100000)`.
pub(crate) fn ranges_text(ranges: &[Range<u64>], size_bytes: u64) -> String {
    let sum: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let mut text = "bytes ".to_owned();
    for (at, range) in ranges.iter().take(NAMED_RANGES).enumerate() {
        let last = at + 1 == ranges.len();
        text.push_str(if at == 0 {
            ""
        } else if last {
            " and "
        } else {
            ", "
        });
        let _ = write!(text, "{}..{}", range.start, range.end);
    }
    if ranges.len() > NAMED_RANGES {
        let _ = write!(text, " and {} more ranges", ranges.len() - NAMED_RANGES);
    }
    let _ = write!(text, " ({sum} of {size_bytes})");
    text
}

/// A part of a file.
#[derive(Debug)]
pub(crate) enum Part {
    Piece(Piece),
    /// The bytes that an unreadable recipe chunk spelled.
    Lost {
        length: u64,
        why: String,
    },
}

impl Part {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Part::Piece(piece) => piece.length(),
            Part::Lost { length, .. } => *length,
        }
    }

    /// Returns the piece, or zeros in place of lost bytes.
    pub(crate) fn into_piece(self) -> Piece {
        match self {
            Part::Piece(piece) => piece,
            Part::Lost { length, .. } => Piece::Zeros { length },
        }
    }
}

/// A recipe does not spell as many bytes as its file has: no position in it can be trusted.
#[derive(Debug)]
pub(crate) struct DoesNotSpell(pub(crate) u64);

impl std::fmt::Display for DoesNotSpell {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "its recipe does not describe {} bytes", self.0)
    }
}

/// The parts of a file in order, in bounded memory. Together they have exactly the file's size, or the last item is an
/// error.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    chunks: &'a Arc<dyn Chunks>,
    recipe: &'a Recipe,
    size_bytes: u64,
    reader: PieceReader<dyn Chunks>,
    /// Items taken from the reader.
    taken: usize,
    at: u64,
    ended: bool,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(chunks: &'a Arc<dyn Chunks>, recipe: &'a Recipe, size_bytes: u64) -> Parts<'a> {
        Parts { chunks, recipe, size_bytes, reader: PieceReader::new(chunks, recipe), taken: 0, at: 0, ended: false }
    }

    /// Returns the length of the loss up to and including the last unreadable recipe chunk, and continues after it.
    fn lost(&mut self) -> Option<u64> {
        let left = self.size_bytes - self.at;
        let (mut read, mut last, mut tail) = (self.taken, self.taken, 0u64);
        for item in self.reader.by_ref() {
            read += 1;
            match item {
                Ok(piece) => tail = tail.saturating_add(piece.length()),
                Err(_) => (last, tail) = (read, 0),
            }
            if tail > left {
                return None;
            }
        }
        self.reader = PieceReader::new(self.chunks, self.recipe);
        self.reader.by_ref().take(last).for_each(drop);
        self.taken = last;
        Some(left - tail)
    }
}

impl Iterator for Parts<'_> {
    type Item = Result<Part, DoesNotSpell>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let left = self.size_bytes - self.at;
        let next = self.reader.next();
        self.taken += 1;
        let part = match next {
            None if left == 0 => None,
            Some(Ok(piece)) if piece.length() <= left => Some(Part::Piece(piece)),
            Some(Err(error)) => self.lost().map(|length| Part::Lost { length, why: error.to_string() }),
            None | Some(Ok(_)) => {
                self.ended = true;
                return Some(Err(DoesNotSpell(self.size_bytes)));
            }
        };
        match part {
            Some(part) => {
                self.at += part.length();
                Some(Ok(part))
            }
            None => {
                self.ended = true;
                (left > 0).then_some(Err(DoesNotSpell(self.size_bytes)))
            }
        }
    }
}

/// Reads and verifies pieces that begin at `start` of the file. An unreadable piece becomes zeros.
pub(crate) fn read_around(chunks: &dyn Chunks, pieces: &[Piece], start: u64, out: &mut [u8]) -> Lost {
    let mut lost = Lost::default();
    if chunks.data(pieces, out).is_ok() {
        return lost;
    }
    let mut at = 0;
    for piece in pieces {
        let length = piece.length() as usize;
        let bytes = &mut out[at..at + length];
        if let Err(error) = chunks.data(std::slice::from_ref(piece), bytes) {
            bytes.fill(0);
            lost.add(start + at as u64..start + (at + length) as u64, || error.to_string());
        }
        at += length;
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_damaged_file_fits_and_says_so() {
        assert_eq!(damaged_name(b"notes"), b"notes.onefold-damaged");
        let long = damaged_name("ä".repeat(127).as_bytes());
        assert!(long.len() <= MAX_NAME_BYTES && std::str::from_utf8(&long).is_ok_and(|name| name.ends_with(DAMAGED_SUFFIX)));
    }

    #[test]
    fn lost_ranges_are_joined_and_named() {
        let mut lost = Lost::default();
        for range in [10..20, 0..5, 5..8, 30..40] {
            lost.add(range, || "rot".to_owned());
        }
        let (ranges, why) = lost.into_parts();
        assert_eq!((&ranges[..], &why[..]), (&[0..8, 10..20, 30..40][..], "rot"));
        assert_eq!(ranges_text(&ranges, 50), "bytes 0..8, 10..20 and 30..40 (28 of 50)");
    }
}
