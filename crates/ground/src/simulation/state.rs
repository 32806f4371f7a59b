//! Everything that a simulated disk holds besides its files: counters, and faults that are still to come.

use super::inode::Inode;
use super::names::Names;
use super::random::Random;
use super::{CrashPolicy, CrashSite, SharedInode};
use crate::Holder;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

/// Called between the two steps of a write, with the path of the file.
pub(super) type DuringWrites = Arc<dyn Fn(&str) + Send + Sync>;

pub(super) struct State {
    pub(super) random: Random,
    pub(super) names: Names,
    /// The names that lead to block devices.
    pub(super) devices: BTreeSet<String>,
    pub(super) locks: HashMap<String, Vec<(u64, bool, Holder)>>,
    pub(super) next_lock: u64,
    pub(super) capacity_pages: u64,
    pub(super) used_pages: u64,
    pub(super) operations: u64,
    pub(super) syncs: u64,
    pub(super) reads: u64,
    pub(super) queries: u64,
    pub(super) crash_operation: Option<u64>,
    pub(super) crash_sync: Option<u64>,
    pub(super) crash_in: Option<InDirectory>,
    pub(super) failing_operation: Option<(u64, io::ErrorKind)>,
    pub(super) failing_in: Option<(InDirectory, io::ErrorKind)>,
    pub(super) failing_read: Option<(u64, io::ErrorKind)>,
    pub(super) failing_query: Option<(u64, i32)>,
    pub(super) failing_writeback: Option<u64>,
    pub(super) during_writes: Option<DuringWrites>,
    pub(super) is_crashed: bool,
    pub(super) crash_site: Option<CrashSite>,
}

/// The next operation but `left` on a directory or something in it.
pub(super) struct InDirectory {
    pub(super) directory: String,
    pub(super) left: u64,
}

impl InDirectory {
    /// Counts an operation. Returns whether it is the one.
    fn is_due(&mut self, path: &str) -> bool {
        let rest = path.strip_prefix(&*self.directory);
        if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            return false;
        }
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }
}

/// Why an operation does not happen.
pub(super) enum Fault {
    Crash,
    Injected(io::ErrorKind),
    System(i32),
}

impl Fault {
    pub(super) fn source(&self) -> io::Error {
        match self {
            Fault::Crash => io::Error::other("simulated crash"),
            Fault::Injected(kind) => io::Error::new(*kind, "simulated failure"),
            Fault::System(code) => io::Error::from_raw_os_error(*code),
        }
    }
}

type Begun = std::result::Result<(), Fault>;

impl State {
    pub(super) fn new(random: Random, names: Names, capacity_pages: u64) -> State {
        State {
            random,
            used_pages: names.files().map(|inode| inode.lock().room()).sum(),
            names,
            locks: HashMap::new(),
            next_lock: 0,
            capacity_pages,
            devices: BTreeSet::new(),
            operations: 0,
            syncs: 0,
            reads: 0,
            queries: 0,
            crash_operation: None,
            crash_sync: None,
            crash_in: None,
            failing_operation: None,
            failing_in: None,
            failing_read: None,
            failing_query: None,
            failing_writeback: None,
            during_writes: None,
            is_crashed: false,
            crash_site: None,
        }
    }

    /// Returns the disk as the next process finds it.
    pub(super) fn survivor(&self, policy: CrashPolicy) -> State {
        let mut random = match policy {
            CrashPolicy::Random { seed } => Random::new(seed),
            CrashPolicy::DropAll | CrashPolicy::KeepAll | CrashPolicy::LoseSectors { .. } => self.random.clone(),
        };
        let names = self.names.survivor(policy, &mut random);
        State { devices: self.devices.clone(), ..State::new(random, names, self.capacity_pages) }
    }

    /// Counts an operation that changes something, and decides whether it happens.
    pub(super) fn begin(&mut self, is_sync: bool, operation: &'static str, path: &str) -> Begun {
        let is_due = self.crash_operation == Some(self.operations) || (is_sync && self.crash_sync == Some(self.syncs));
        if (is_due || self.crash_in.as_mut().is_some_and(|crash| crash.is_due(path))) && !self.is_crashed {
            self.is_crashed = true;
            self.crash_site = Some(CrashSite { operation, path: path.to_owned() });
        }
        self.check_crash()?;
        let fault = self.failing_operation.take_if(|(operation, _)| *operation == self.operations).map(|(_, kind)| kind);
        let fault_in = self.failing_in.take_if(|(failure, _)| failure.is_due(path)).map(|(_, kind)| kind);
        self.operations += 1;
        self.syncs += u64::from(is_sync);
        fault.or(fault_in).map_or(Ok(()), |kind| Err(Fault::Injected(kind)))
    }

    /// Counts a query, and decides whether it succeeds.
    pub(super) fn begin_query(&mut self) -> Begun {
        self.check_crash()?;
        let fault = self.failing_query.take_if(|(query, _)| *query == self.queries);
        self.queries += 1;
        fault.map_or(Ok(()), |(_, code)| Err(Fault::System(code)))
    }

    /// Counts a read of contents, which is a query too, and decides whether it succeeds.
    pub(super) fn begin_read(&mut self) -> Begun {
        self.check_crash()?;
        let fault = self.failing_read.take_if(|(read, _)| *read == self.reads);
        self.reads += 1;
        self.begin_query()?;
        fault.map_or(Ok(()), |(_, kind)| Err(Fault::Injected(kind)))
    }

    pub(super) fn check_crash(&self) -> Begun {
        if self.is_crashed { Err(Fault::Crash) } else { Ok(()) }
    }

    /// Returns whether the writeback of the last write fails.
    pub(super) fn is_writeback_failing(&mut self) -> bool {
        self.failing_writeback.take_if(|operation| *operation < self.operations).is_some()
    }

    pub(super) fn free_pages(&self, inode: &Inode) -> u64 {
        if inode.is_named { self.capacity_pages.saturating_sub(self.used_pages) } else { u64::MAX }
    }

    /// Changes a file and updates the count of used pages.
    pub(super) fn change<T>(&mut self, inode: &mut Inode, change: impl FnOnce(&mut Inode) -> T) -> T {
        let before = inode.room();
        let result = change(inode);
        if inode.is_named {
            self.used_pages = self.used_pages + inode.room() - before;
        }
        result
    }

    /// Handles a file that lost its name.
    pub(super) fn forget(&mut self, inode: &SharedInode) {
        let mut inode = inode.lock();
        self.used_pages -= inode.room();
        inode.is_named = false;
    }
}
