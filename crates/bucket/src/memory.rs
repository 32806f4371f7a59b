//! A bucket in memory that fails on demand, for tests. It needs no runtime, and the same calls give the same result.
//!
//! A test counts the steps of a run ([`MemoryBucket::steps`]). It repeats the run with [`MemoryBucket::fail_at`] at
//! each of them, and continues with what [`MemoryBucket::fork`] leaves.

use crate::error::{failed, failed_because};
use onefold_ground::{Bucket, GroundError, Listing, Put, Requests, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::ops::Bound;
use std::sync::Arc;

/// Objects on a page of a list.
const PAGE: usize = 1000;

/// What happens to a step that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing is executed, and the caller gets an error.
    Before,
    /// The call is executed, and the caller gets an error.
    After,
    /// Nothing is executed, and neither is any later call: the process is dead.
    Dead,
    /// The call is executed, and no later call: the process died before it heard the answer.
    DeadAfter,
}

/// A bucket in memory. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryBucket {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    /// Deleted objects: name, length, and which put or deletion this was.
    deleted: Vec<(String, u64)>,
    /// Puts so far.
    puts: u64,
    steps: u64,
    changes: u64,
    failing_steps: BTreeMap<u64, Failure>,
    failing_changes: BTreeMap<u64, Failure>,
    is_dead: bool,
    stale: usize,
    page: usize,
    requests: Requests,
}

#[derive(Clone)]
struct Object {
    content: Arc<Vec<u8>>,
    /// Which put made it.
    put: u64,
}

impl fmt::Debug for MemoryBucket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        formatter.debug_struct("MemoryBucket").field("objects", &state.objects.len()).field("steps", &state.steps).finish()
    }
}

impl MemoryBucket {
    /// Creates an empty bucket.
    pub fn new() -> MemoryBucket {
        MemoryBucket::default()
    }

    /// Returns a bucket of its own with the same objects. It has no faults, and counts from zero.
    pub fn fork(&self) -> MemoryBucket {
        let state = self.state.lock();
        let objects = state.objects.clone();
        let forked = State { objects, deleted: state.deleted.clone(), puts: state.puts, ..State::default() };
        MemoryBucket { state: Arc::new(Mutex::new(forked)) }
    }

    /// Returns the number of calls so far, of any kind.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Returns the number of calls so far that change something: puts, replacements, deletions.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Lets call number `step` fail. The first call has number 0.
    pub fn fail_at(&self, step: u64, failure: Failure) {
        self.state.lock().failing_steps.insert(step, failure);
    }

    /// Lets change number `change` fail. The first change has number 0.
    pub fn fail_at_change(&self, change: u64, failure: Failure) {
        self.state.lock().failing_changes.insert(change, failure);
    }

    /// Returns whether a call has failed with [`Failure::Dead`] or [`Failure::DeadAfter`].
    pub fn is_dead(&self) -> bool {
        self.state.lock().is_dead
    }

    /// Cancels all faults, also death and stale lists.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        state.failing_steps.clear();
        state.failing_changes.clear();
        state.is_dead = false;
        state.stale = 0;
    }

    /// Makes lists stale: they lack the `count` newest objects, and still have the `count` that were deleted last.
    pub fn hide_from_lists(&self, count: usize) {
        self.state.lock().stale = count;
    }

    /// Sets the greatest number of objects on a page of a list, 1000 by default.
    pub fn set_page(&self, objects: usize) {
        self.state.lock().page = objects;
    }

    /// Returns the names of all objects, ascending.
    pub fn names(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Returns the content of an object, without a step.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().objects.get(name).map(|object| object.content.to_vec())
    }

    /// Changes the content of an object, without a step. Returns whether there is one.
    pub fn corrupt(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        match self.state.lock().objects.get_mut(name) {
            Some(object) => {
                change(Arc::make_mut(&mut object.content));
                true
            }
            None => false,
        }
    }

    /// Removes an object, without a step. Lists lack it at once. Returns whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        self.state.lock().objects.remove(name).is_some()
    }

    /// Puts an object, without a step, whatever was there: another process did it.
    pub fn insert(&self, name: &str, content: &[u8]) {
        self.state.lock().put(name, content);
    }

    /// Does a call: counts it, fails if it has to, and executes it or not.
    fn step<T>(
        &self,
        operation: &'static str,
        name: &str,
        is_change: bool,
        count: impl FnOnce(&mut Requests),
        execute: impl FnOnce(&mut State) -> std::result::Result<T, ErrorKind>,
    ) -> Result<T> {
        let mut state: MutexGuard<'_, State> = self.state.lock();
        let dead = || failed_because(operation, &self.describe(name), ErrorKind::Other, "the process is dead");
        if state.is_dead {
            return Err(dead());
        }
        let step = state.steps;
        state.steps += 1;
        let mut failure = state.failing_steps.remove(&step);
        if is_change {
            let change = state.changes;
            state.changes += 1;
            failure = state.failing_changes.remove(&change).or(failure);
        }
        count(&mut state.requests);
        let unknown = || failed(operation, &self.describe(name), ErrorKind::TimedOut);
        match failure {
            None => execute(&mut state).map_err(|kind| failed(operation, &self.describe(name), kind)),
            Some(Failure::Before) => Err(unknown()),
            Some(Failure::After) => {
                let _ = execute(&mut state);
                Err(unknown())
            }
            Some(failure) => {
                if failure == Failure::DeadAfter {
                    let _ = execute(&mut state);
                }
                state.is_dead = true;
                Err(dead())
            }
        }
    }
}

impl State {
    fn put(&mut self, name: &str, content: &[u8]) {
        self.puts += 1;
        self.objects.insert(name.to_owned(), Object { content: Arc::new(content.to_vec()), put: self.puts });
        self.deleted.retain(|(deleted, _)| deleted != name);
    }

    fn delete(&mut self, name: &str) {
        if let Some(object) = self.objects.remove(name) {
            self.deleted.push((name.to_owned(), object.content.len() as u64));
        }
    }

    fn list(&self, prefix: &str, after: &str) -> Listing {
        let page = if self.page == 0 { PAGE } else { self.page };
        let mut newest: Vec<u64> = self.objects.values().map(|object| object.put).collect();
        newest.sort_unstable();
        let hidden_from = newest.len().checked_sub(self.stale).and_then(|first| newest.get(first)).copied();
        let is_hidden = |put: u64| self.stale > 0 && hidden_from.is_none_or(|first| put >= first);
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let there = self.objects.range::<str, _>((from, Bound::Unbounded)).take_while(|(name, _)| name.starts_with(prefix));
        let there = there.filter(|(_, object)| !is_hidden(object.put));
        let mut objects: Vec<(String, u64)> =
            there.take(page + 1).map(|(name, object)| (name.clone(), object.content.len() as u64)).collect();
        let gone = self.deleted.iter().rev().take(self.stale);
        objects.extend(gone.filter(|(name, _)| name.starts_with(prefix) && name.as_str() > after).cloned());
        objects.sort();
        objects.dedup_by(|left, right| left.0 == right.0);
        let has_more = objects.len() > page;
        objects.truncate(page);
        Listing { objects, has_more }
    }

    fn content(&self, name: &str) -> std::result::Result<Arc<Vec<u8>>, ErrorKind> {
        self.objects.get(name).map(|object| object.content.clone()).ok_or(ErrorKind::NotFound)
    }
}

impl Bucket for MemoryBucket {
    fn put_new(&self, name: &str, content: &[u8]) -> Result<Put> {
        let count = |requests: &mut Requests| count_put(requests, content.len());
        self.step("put", name, true, count, |state| match state.objects.get(name) {
            Some(object) if *object.content == content => Ok(Put::Done),
            Some(_) => Ok(Put::Taken),
            None => {
                state.put(name, content);
                Ok(Put::Done)
            }
        })
    }

    fn put_over(&self, name: &str, content: &[u8]) -> Result<()> {
        let count = |requests: &mut Requests| count_put(requests, content.len());
        self.step("put", name, true, count, |state| {
            state.put(name, content);
            Ok(())
        })
    }

    fn replace(&self, name: &str, old: &[u8], new: &[u8]) -> Result<Put> {
        let count = |requests: &mut Requests| {
            requests.gets += 1;
            count_put(requests, new.len());
        };
        self.step("replace", name, true, count, |state| match state.objects.get(name) {
            Some(object) if *object.content == new => Ok(Put::Done),
            Some(object) if *object.content == old => {
                state.put(name, new);
                Ok(Put::Done)
            }
            _ => Ok(Put::Taken),
        })
    }

    fn get(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>> {
        let content = self.step(
            "get",
            name,
            false,
            |requests| requests.gets += 1,
            |state| {
                let content = state.content(name)?;
                if content.len() as u64 <= limit_bytes {
                    state.requests.received_bytes += content.len() as u64;
                }
                Ok(content)
            },
        )?;
        let length_bytes = content.len() as u64;
        if length_bytes > limit_bytes {
            return Err(GroundError::TooLong { path: self.describe(name), length_bytes, limit_bytes });
        }
        Ok(content.to_vec())
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.step(
            "get",
            name,
            false,
            |requests| requests.gets += 1,
            |state| {
                let content = state.content(name)?;
                let start = usize::try_from(offset).map_err(|_| ErrorKind::UnexpectedEof)?;
                let end = start.checked_add(length).ok_or(ErrorKind::UnexpectedEof)?;
                let range = content.get(start..end).ok_or(ErrorKind::UnexpectedEof)?.to_vec();
                state.requests.received_bytes += length as u64;
                Ok(range)
            },
        )
    }

    fn get_end(&self, name: &str, length: usize) -> Result<(Vec<u8>, u64)> {
        self.step(
            "get",
            name,
            false,
            |requests| requests.gets += 1,
            |state| {
                let content = state.content(name)?;
                let end = content[content.len().saturating_sub(length)..].to_vec();
                state.requests.received_bytes += end.len() as u64;
                Ok((end, content.len() as u64))
            },
        )
    }

    fn length(&self, name: &str) -> Result<Option<u64>> {
        let count = |requests: &mut Requests| requests.heads += 1;
        self.step("look for", name, false, count, |state| Ok(state.objects.get(name).map(|object| object.content.len() as u64)))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Listing> {
        self.step("list", prefix, false, |requests| requests.lists += 1, |state| Ok(state.list(prefix, after)))
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        let Some(first) = names.first() else { return Ok(()) };
        self.step(
            "delete",
            first,
            true,
            |requests| requests.deletes += 1,
            |state| {
                names.iter().for_each(|name| state.delete(name));
                Ok(())
            },
        )
    }

    fn describe(&self, name: &str) -> String {
        format!("memory:///{name}")
    }

    fn requests(&self) -> Requests {
        self.state.lock().requests
    }
}

fn count_put(requests: &mut Requests, length: usize) {
    requests.puts += 1;
    requests.sent_bytes += length as u64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::list_after;

    fn with(objects: &[(&str, &str)]) -> MemoryBucket {
        let bucket = MemoryBucket::new();
        objects.iter().for_each(|(name, content)| bucket.insert(name, content.as_bytes()));
        bucket
    }

    #[test]
    fn a_new_object_is_put_once_and_its_own_content_is_recognized() {
        let bucket = MemoryBucket::new();
        assert_eq!(bucket.put_new("a", b"one").unwrap(), Put::Done);
        assert_eq!(bucket.put_new("a", b"one").unwrap(), Put::Done);
        assert_eq!(bucket.put_new("a", b"two").unwrap(), Put::Taken);
        assert_eq!(bucket.get("a", 3).unwrap(), b"one");
        bucket.put_over("a", b"three").unwrap();
        assert_eq!(bucket.get("a", 9).unwrap(), b"three");
    }

    #[test]
    fn a_replacement_needs_the_old_content() {
        let bucket = with(&[("a", "one")]);
        assert_eq!(bucket.replace("a", b"two", b"three").unwrap(), Put::Taken);
        assert_eq!(bucket.replace("a", b"one", b"two").unwrap(), Put::Done);
        assert_eq!(bucket.replace("a", b"one", b"two").unwrap(), Put::Done);
        assert_eq!(bucket.replace("b", b"one", b"two").unwrap(), Put::Taken);
        assert_eq!(bucket.names(), ["a"]);
    }

    #[test]
    fn reads_end_with_the_object() {
        let bucket = with(&[("a", "abcdef")]);
        assert_eq!(bucket.get_range("a", 2, 4).unwrap(), b"cdef");
        assert_eq!(bucket.get_range("a", 2, 5).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(bucket.get_range("a", u64::MAX, 5).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(bucket.get_end("a", 2).unwrap(), (b"ef".to_vec(), 6));
        assert_eq!(bucket.get_end("a", 7).unwrap(), (b"abcdef".to_vec(), 6));
        assert!(matches!(bucket.get("a", 5).unwrap_err(), GroundError::TooLong { length_bytes: 6, .. }));
        assert!(bucket.get("b", 5).unwrap_err().is_not_found() && bucket.get_end("b", 1).unwrap_err().is_not_found());
        assert_eq!((bucket.length("a").unwrap(), bucket.length("b").unwrap()), (Some(6), None));
        assert_eq!(bucket.requests(), Requests { gets: 8, heads: 2, received_bytes: 12, ..Requests::default() });
    }

    #[test]
    fn lists_come_in_pages() {
        let bucket = with(&[("a/1", ""), ("b/1", "x"), ("b/2", "xx"), ("b/3", ""), ("c", "")]);
        bucket.set_page(2);
        let page = bucket.list("b/", "").unwrap();
        assert_eq!(page, Listing { objects: vec![("b/1".into(), 1), ("b/2".into(), 2)], has_more: true });
        assert_eq!(bucket.list("b/", "b/2").unwrap(), Listing { objects: vec![("b/3".into(), 0)], has_more: false });
        assert_eq!(bucket.list("b/", "c").unwrap(), Listing::default());
        let mut all = Vec::new();
        list_after(&bucket, "", String::new(), &mut |name, _| {
            all.push(name.to_owned());
            true
        })
        .unwrap();
        assert_eq!(all, bucket.names());
    }

    #[test]
    fn a_stale_list_lacks_new_objects_and_has_deleted_ones() {
        let bucket = with(&[("a", ""), ("b", ""), ("c", "")]);
        bucket.delete(&["b".to_owned(), "never".to_owned()]).unwrap();
        bucket.hide_from_lists(1);
        let names = |bucket: &MemoryBucket| bucket.list("", "").unwrap().objects.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&bucket), ["a", "b"]);
        bucket.hide_from_lists(9);
        assert_eq!(names(&bucket), ["b"]);
        bucket.calm();
        assert_eq!(names(&bucket), ["a", "c"]);
    }

    #[test]
    fn steps_fail_before_or_after_and_dead_ones_do_nothing_more() {
        let bucket = MemoryBucket::new();
        bucket.fail_at(0, Failure::Before);
        bucket.fail_at(1, Failure::After);
        bucket.fail_at_change(3, Failure::Dead);
        assert_eq!(bucket.put_new("a", b"").unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(bucket.names().len(), 0);
        assert_eq!(bucket.put_new("a", b"").unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(bucket.put_new("a", b"").unwrap(), Put::Done);
        assert_eq!(bucket.length("a").unwrap(), Some(0));
        assert!(bucket.put_new("b", b"").is_err() && bucket.length("a").is_err() && bucket.is_dead());
        assert_eq!((bucket.steps(), bucket.changes()), (5, 4));
        let fork = bucket.fork();
        assert_eq!((fork.names(), fork.steps()), (vec!["a".to_owned()], 0));
        assert_eq!(fork.put_new("b", b"").unwrap(), Put::Done);
        assert_eq!(bucket.names(), ["a"]);
        fork.fail_at(1, Failure::DeadAfter);
        assert!(fork.put_new("c", b"").is_err() && fork.is_dead());
        assert_eq!(fork.names(), ["a", "b", "c"]);
    }

    #[test]
    fn a_test_changes_and_removes_objects() {
        let bucket = with(&[("a", "x")]);
        assert!(bucket.corrupt("a", |content| content[0] ^= 1) && !bucket.corrupt("b", |_| {}));
        assert_eq!(bucket.content("a").unwrap(), b"y");
        assert!(bucket.remove("a") && !bucket.remove("a"));
        assert_eq!((bucket.content("a"), bucket.steps()), (None, 0));
    }
}
