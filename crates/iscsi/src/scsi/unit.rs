//! A logical unit: has the state that commands share, stores what initiators set, and checks commands in the order of
//! the standards. `execute` and the files of the commands do what the commands ask for.
//!
//! # Order of checks (SAM-5 section 5.14, SPC-4 section 5.13)
//! The CDB; unit attentions; whether the unit was stopped; reservations; a running sanitize; an ejected medium; write
//! protection; then the command itself. INQUIRY, REPORT LUNS and REQUEST SENSE take no unit attention, because
//! initiators use them to find out what happened.

use super::block::{self, Medium};
use super::inquiry::Identity;
use super::keep::{Changing, Keep, NotKept};
use super::mode::Parameters;
use super::opcodes::{Access, Definition, Operation};
use super::patience::Patience;
use super::provisioning::Watched;
use super::reservation::{Nexus, Refusal, Reservations};
use super::sanitize::{KeepSanitize, Sanitize, Sanitizer};
use super::sense::{Code, Key, Sense};
use super::steps::Steps;
use super::third_party::Copies;
use super::tray::Tray;
use super::{Disk, Geometry};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The options of a new unit.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// The identity of the unit.
    pub identity: Identity,
    /// Bytes of a logical block: 512 or 4096.
    pub logical_block_bytes: u32,
    /// Whether initiators may eject and load its medium.
    pub is_removable: bool,
    /// Target ports through which it can be reached.
    pub ports: Vec<u16>,
    /// The stored reservations.
    pub reservations: Reservations,
}

/// How often a command that waits for the medium checks whether its own answer is still wanted.
const LOOK: Duration = Duration::from_millis(50);
/// The most unit attentions of one nexus. Further ones would say nothing new.
const MAX_ATTENTIONS: usize = 8;

/// A logical unit.
pub struct LogicalUnit {
    disk: Arc<dyn Disk>,
    pub(super) identity: Identity,
    logical: u32,
    pub(super) is_removable: bool,
    pub(super) ports: Vec<u16>,
    pub(super) keep: Keep,
    pub(super) changing: Mutex<Changing>,
    pub(super) state: Mutex<State>,
    /// Shared by commands that use the medium. Exclusive for beginning a sanitize and for moving the medium.
    pub(super) medium: RwLock<()>,
    /// Held by the command that waits for exclusive use of the medium, or has it. No later command gets in between.
    alone: Mutex<()>,
    /// Shared by each step of a copy that reads or writes this unit, from the moment it is admitted. Exclusive while
    /// waiting for steps under way.
    pub(super) steps: Steps,
    pub(super) sanitizer: Sanitizer,
    pub(super) former: Former,
    pub(super) copies: Mutex<Copies>,
    pub(super) watched: Mutex<Watched>,
}

/// The units that used the disk before.
#[derive(Debug, Default)]
pub(super) struct Former {
    pub(super) units: Mutex<Vec<Weak<LogicalUnit>>>,
    /// Whether there are any, so that commands need not check.
    pub(super) is_any: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) parameters: Parameters,
    pub(super) reservations: Reservations,
    pub(super) tray: Tray,
    /// The nexuses that exist.
    nexuses: BTreeSet<Nexus>,
    pub(super) attentions: HashMap<Nexus, VecDeque<Code>>,
}

impl State {
    pub(super) fn attend(&mut self, nexus: &Nexus, code: Code) {
        if self.nexuses.contains(nexus) {
            let pending = self.attentions.entry(nexus.clone()).or_default();
            if pending.len() < MAX_ATTENTIONS && !pending.contains(&code) {
                pending.push_back(code);
            }
        }
    }

    pub(super) fn attend_others(&mut self, nexus: &Nexus, code: Code) {
        let others: Vec<Nexus> = self.nexuses.iter().filter(|other| *other != nexus).cloned().collect();
        others.iter().for_each(|other| self.attend(other, code));
    }
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LogicalUnit").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl LogicalUnit {
    /// Creates a unit on a disk.
    pub fn new(disk: Arc<dyn Disk>, options: UnitOptions, keep: Keep) -> LogicalUnit {
        let UnitOptions { identity, logical_block_bytes: logical, is_removable, ports, reservations } = options;
        let state = Mutex::new(State { reservations, ..State::default() });
        let sanitizer = Sanitizer::new(disk.clone(), None, Box::new(|_| Ok(())));
        LogicalUnit {
            disk,
            identity,
            logical,
            is_removable,
            ports,
            keep,
            changing: Mutex::default(),
            state,
            medium: RwLock::new(()),
            alone: Mutex::new(()),
            steps: Steps::default(),
            sanitizer,
            former: Former::default(),
            copies: Mutex::default(),
            watched: Mutex::default(),
        }
    }

    /// Adds sanitizes that `keep` stores over restarts. An `unfinished` one continues now.
    pub fn with_sanitize(self, unfinished: Option<Sanitize>, keep: KeepSanitize) -> LogicalUnit {
        let sanitizer = Sanitizer::new(self.disk.clone(), unfinished, keep);
        sanitizer.go_on();
        LogicalUnit { sanitizer, ..self }
    }

    /// Adds an `unfinished` sanitize while the disk cannot be written. The unit is not ready, and data that must be
    /// erased is not shown.
    pub fn with_waiting_sanitize(self, unfinished: Option<Sanitize>) -> LogicalUnit {
        let sanitizer = Sanitizer::new(self.disk.clone(), unfinished, Box::new(|_| Err(NotKept::Unchanged)));
        LogicalUnit { sanitizer, ..self }
    }

    /// Returns the number that no other unit has.
    pub fn number(&self) -> u64 {
        self.identity.number
    }

    /// Its sizes, now.
    pub fn geometry(&self) -> Geometry {
        Geometry { size: self.disk.size(), logical: self.logical, mapped: self.disk.block_bytes() }
    }

    /// Adds a nexus.
    pub fn join(&self, nexus: &Nexus) {
        let mut state = self.state.lock();
        if state.nexuses.insert(nexus.clone()) {
            state.attend(nexus, Code::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        }
    }

    /// Removes a nexus.
    pub fn leave(&self, nexus: &Nexus) {
        let mut state = self.state.lock();
        state.nexuses.remove(nexus);
        state.attentions.remove(nexus);
        state.reservations.lose_nexus(nexus);
        state.tray.lose_nexus(nexus);
        drop(state);
        self.copies.lock().forget(nexus);
    }

    /// Resets the unit, and tells all initiators.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.parameters = Parameters::default();
        state.reservations.reset();
        state.tray.reset();
        let all: Vec<Nexus> = state.nexuses.iter().cloned().collect();
        all.iter().for_each(|nexus| state.attend(nexus, Code::BUS_DEVICE_RESET_FUNCTION));
    }

    /// Tells the other initiators that one has ended the commands of all.
    pub fn tasks_cleared(&self, nexus: &Nexus) {
        self.state.lock().attend_others(nexus, Code::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
    }

    /// Tells all initiators about an event.
    pub fn tell_all(&self, code: Code) {
        let mut state = self.state.lock();
        let all: Vec<Nexus> = state.nexuses.iter().cloned().collect();
        all.iter().for_each(|nexus| state.attend(nexus, code));
    }

    /// Checks whether an initiator may have a command executed now. A unit attention is told only once.
    pub(super) fn judge(&self, nexus: &Nexus, definition: Result<&'static Definition, Sense>) -> Result<&'static Definition, Refusal> {
        let operation = definition.as_ref().map(|definition| definition.operation);
        let mut state = self.state.lock();
        if !matches!(operation, Ok(Operation::Inquiry | Operation::ReportLuns | Operation::RequestSense))
            && let Some(code) = state.attentions.get_mut(nexus).and_then(VecDeque::pop_front)
        {
            return Err(Sense::new(Key::UnitAttention, code).into());
        }
        let definition = definition?;
        if !definition.is_allowed_in_sanitize() {
            self.check_unstopped()?;
        }
        if !state.reservations.allows(nexus, definition.access) {
            return Err(Refusal::Conflict);
        }
        let may_begin = definition.operation == Operation::Sanitize && self.sanitizer.has_failed();
        if !definition.is_allowed_in_sanitize() && !may_begin {
            self.sanitizer.check()?;
        }
        if definition.needs_medium() {
            state.tray.check()?;
        }
        if definition.changes_medium() && (state.parameters.write_protect || self.disk.read_only()) {
            return Err(Sense::new(Key::DataProtect, Code::WRITE_PROTECTED).into());
        }
        Ok(definition)
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    pub(super) fn medium_of(&self, geometry: Geometry) -> Medium<'_> {
        Medium { disk: &*self.disk, geometry }
    }

    /// Prevents sanitizes from beginning while a command of another unit uses this one.
    pub(super) fn share_medium(&self) -> RwLockReadGuard<'_, ()> {
        self.medium.read_recursive()
    }

    /// Waits until no command uses the medium, and keeps others from it. Gives up if the command is aborted meanwhile.
    /// Only one waits at a time, because a waiter occupies a thread.
    pub(super) fn use_medium_alone(&self, patience: &dyn Patience) -> Result<(RwLockWriteGuard<'_, ()>, MutexGuard<'_, ()>), Refusal> {
        let alone = self.alone.try_lock().ok_or(Refusal::Busy)?;
        patience.begin_to_wait();
        loop {
            let medium = self.medium.try_write_for(LOOK);
            block::go_on(&|| patience.is_over())?;
            if let Some(medium) = medium {
                return Ok((medium, alone));
            }
        }
    }

    /// Returns whether a command waits for exclusive use of the medium, or has it.
    pub(super) fn is_medium_wanted(&self) -> bool {
        self.alone.is_locked()
    }

    /// Held by a step of a copy from before its admission until it is done. A waiter for steps holds nothing that a
    /// step waits for.
    pub(super) fn share_step(&self) -> RwLockReadGuard<'_, ()> {
        self.steps.share()
    }

    /// Returns when all steps of copies that were admitted before are over, or when `is_over`.
    pub(super) fn wait_for_steps(&self, is_over: &dyn Fn() -> bool) {
        self.steps.wait(is_over);
    }

    /// Checks whether a copy on behalf of `nexus` may read or write this unit.
    pub(super) fn admit_copy(&self, nexus: &Nexus, access: Access) -> Result<(), Sense> {
        self.check_unstopped()?;
        if self.waits_for_former() {
            return Err(Sense::new(Key::NotReady, Code::NOT_READY));
        }
        let state = self.state.lock();
        if !state.reservations.allows(nexus, access) {
            return Err(Sense::new(Key::CopyAborted, Code::COPY_TARGET_DEVICE_NOT_REACHABLE));
        }
        self.sanitizer.check()?;
        state.tray.check()?;
        if access == Access::Write && (state.parameters.write_protect || self.disk.read_only()) {
            return Err(Sense::new(Key::DataProtect, Code::WRITE_PROTECTED));
        }
        Ok(())
    }
}
