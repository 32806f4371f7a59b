//! Object storage: names with whole contents, written once (decision 0068).

use crate::Result;
use bytes::Bytes;
use std::fmt::Debug;
use std::sync::Arc;

/// What became of a put that must not replace anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The object has this content: from this call, or from an earlier one whose answer was lost.
    Done,
    /// The name is taken by another content.
    Taken,
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Names and lengths, ascending.
    pub objects: Vec<(String, u64)>,
    /// Whether there may be more behind the last one.
    pub has_more: bool,
}

/// A place in object storage that holds a store.
///
/// Names are relative, separated by `/`. An object is durable when its put returns. Nothing is ever changed in place.
///
/// Every call tries for a while before it fails. Then its outcome is unknown: a put may still arrive, however late. So
/// whoever puts again finds out by the content, and whoever gives up must never use the name for something else.
///
/// A *list is a hint*: it may lack what was just put, and have what was just deleted. A *get* is right at its moment.
pub trait Bucket: Send + Sync + Debug {
    /// Puts an object if the name is free. Durable on return.
    fn put_new(&self, name: &str, content: &[u8]) -> Result<Put>;
    /// Does the same with a content in pieces, which follow each other. For large objects: a bucket need not copy them.
    fn put_new_in_pieces(&self, name: &str, pieces: &[Bytes]) -> Result<Put> {
        self.put_new(name, &pieces.concat())
    }
    /// Puts an object, whatever was there. Only for advice.
    fn put_over(&self, name: &str, content: &[u8]) -> Result<()>;
    /// Puts an object in place of one with the content `old`. Returns [`Put::Taken`], and changes nothing, if there is
    /// another content or none.
    fn replace(&self, name: &str, old: &[u8], new: &[u8]) -> Result<Put>;
    /// Reads a whole object of at most `limit_bytes`. Errors: not found, or longer.
    fn get(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>>;
    /// Reads a whole object, and passes on its length and what came of it, as it comes. Ends without an error when
    /// `take` returns false.
    fn get_as_it_comes(&self, name: &str, take: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<()> {
        let content = self.get(name, u64::MAX)?;
        if !content.is_empty() {
            take(content.len() as u64, &content);
        }
        Ok(())
    }
    /// Reads a range. Errors: not found, or `UnexpectedEof` if the object ends before that.
    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>>;
    /// Reads the last `length` bytes, or all if there are fewer. Also returns the length of the object.
    fn get_end(&self, name: &str, length: usize) -> Result<(Vec<u8>, u64)>;
    /// Returns the length of an object. `None`: there is none.
    fn length(&self, name: &str) -> Result<Option<u64>>;
    /// Lists objects whose names begin with `prefix` and are greater than `after`, at most a thousand.
    fn list(&self, prefix: &str, after: &str) -> Result<Listing>;
    /// Deletes objects. Those that do not exist are no error.
    fn delete(&self, names: &[String]) -> Result<()>;
    /// Returns the name that people know an object by: a URL.
    fn describe(&self, name: &str) -> String;
    /// Returns what was requested so far.
    fn requests(&self) -> Requests;
}

/// A part of a bucket: everything whose names begin with a prefix.
#[derive(Debug)]
pub struct BucketPart {
    bucket: Arc<dyn Bucket>,
    prefix: String,
}

impl BucketPart {
    /// Takes the objects whose names begin with `prefix`, which ends with `/`.
    pub fn new(bucket: Arc<dyn Bucket>, prefix: impl Into<String>) -> BucketPart {
        BucketPart { bucket, prefix: prefix.into() }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Bucket for BucketPart {
    fn put_new(&self, name: &str, content: &[u8]) -> Result<Put> {
        self.bucket.put_new(&self.name(name), content)
    }
    fn put_new_in_pieces(&self, name: &str, pieces: &[Bytes]) -> Result<Put> {
        self.bucket.put_new_in_pieces(&self.name(name), pieces)
    }
    fn put_over(&self, name: &str, content: &[u8]) -> Result<()> {
        self.bucket.put_over(&self.name(name), content)
    }
    fn replace(&self, name: &str, old: &[u8], new: &[u8]) -> Result<Put> {
        self.bucket.replace(&self.name(name), old, new)
    }
    fn get(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>> {
        self.bucket.get(&self.name(name), limit_bytes)
    }
    fn get_as_it_comes(&self, name: &str, take: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<()> {
        self.bucket.get_as_it_comes(&self.name(name), take)
    }
    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.bucket.get_range(&self.name(name), offset, length)
    }
    fn get_end(&self, name: &str, length: usize) -> Result<(Vec<u8>, u64)> {
        self.bucket.get_end(&self.name(name), length)
    }
    fn length(&self, name: &str) -> Result<Option<u64>> {
        self.bucket.length(&self.name(name))
    }
    fn list(&self, prefix: &str, after: &str) -> Result<Listing> {
        let after = if after.is_empty() { String::new() } else { self.name(after) };
        let mut listing = self.bucket.list(&self.name(prefix), &after)?;
        for (name, _) in &mut listing.objects {
            *name = name.strip_prefix(&self.prefix).unwrap_or(name).to_owned();
        }
        Ok(listing)
    }
    fn delete(&self, names: &[String]) -> Result<()> {
        let names: Vec<String> = names.iter().map(|name| self.name(name)).collect();
        self.bucket.delete(&names)
    }
    fn describe(&self, name: &str) -> String {
        self.bucket.describe(&self.name(name))
    }
    fn requests(&self) -> Requests {
        self.bucket.requests()
    }
}

/// Requests by kind, and bytes. Each try counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Puts, and parts of puts.
    pub puts: u64,
    /// Gets of objects and ranges.
    pub gets: u64,
    /// Questions for a length.
    pub heads: u64,
    /// Pages of lists.
    pub lists: u64,
    /// Deletions; a batch is one.
    pub deletes: u64,
    /// Bytes sent in puts.
    pub sent_bytes: u64,
    /// Bytes received from gets.
    pub received_bytes: u64,
    /// Tries that failed and were repeated.
    pub retries: u64,
}

/// Lists the objects with a prefix and names greater than `after`, page by page. Stops when `each` returns false.
pub fn list_after(bucket: &dyn Bucket, prefix: &str, mut after: String, each: &mut dyn FnMut(&str, u64) -> bool) -> Result<()> {
    loop {
        let Listing { objects, has_more } = bucket.list(prefix, &after)?;
        for (name, length) in &objects {
            if !each(name, *length) {
                return Ok(());
            }
        }
        match objects.last() {
            Some((last, _)) if has_more => after = last.clone(),
            _ => return Ok(()),
        }
    }
}
