//! A SCSI command under way.

use crate::memory::Room;
use crate::scsi::{Buffers, LogicalUnit, MAX_TRANSFER_BYTES};
use crate::shared::Shared;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::Semaphore;

/// A command under way, counted among the commands of all sessions.
pub(crate) struct CommandPlace(Arc<Shared>);

impl CommandPlace {
    pub(super) fn enter(shared: &Arc<Shared>) -> Option<CommandPlace> {
        let is_full = shared.commands.fetch_add(1, Ordering::Relaxed) >= shared.limits.commands;
        let place = CommandPlace(shared.clone());
        (!is_full).then_some(place)
    }
}

impl Drop for CommandPlace {
    fn drop(&mut self) {
        self.0.commands.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether nobody wants the answer of a command any more.
#[derive(Debug)]
pub(super) struct Ending(Semaphore);

impl Default for Ending {
    fn default() -> Ending {
        Ending(Semaphore::new(0))
    }
}

impl Ending {
    pub(super) fn end(&self) {
        self.0.close();
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns when it is over.
    pub(super) async fn wait(&self) {
        // There are no permits. Waiting ends when the semaphore is closed.
        let _ = self.0.acquire().await;
    }
}

/// Data-Out PDUs that belong together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    pub(super) next_number: u32,
    pub(super) offset: u32,
    pub(super) end: u32,
}

/// A command under way.
pub(super) struct Task {
    /// Its number in the session. Unlike its tag, it is never reused.
    pub(super) serial: u64,
    pub(super) lun: u64,
    pub(super) number: Option<u16>,
    pub(super) unit: Option<Arc<LogicalUnit>>,
    pub(super) cdb: Vec<u8>,
    pub(super) is_read: bool,
    pub(super) is_write: bool,
    pub(super) is_ordered: bool,
    pub(super) is_immediate: bool,
    pub(super) expected_bytes: u32,
    /// The bytes that the command needs, according to its CDB.
    pub(super) needed_bytes: u32,
    /// The needed data from the initiator. `received_bytes` counts all that came, needed or not.
    pub(super) data: Vec<u8>,
    pub(super) wanted_bytes: u32,
    pub(super) received_bytes: u32,
    /// The bytes of it that come unsolicited.
    pub(super) burst_bytes: u32,
    /// Data-Out without R2T that may still come.
    pub(super) unsolicited: Option<Sequence>,
    pub(super) requested_bytes: u32,
    pub(super) requests: HashMap<u32, Sequence>,
    pub(super) request_number: u32,
    /// The room for its data, and since when it has it. Before that: whether it has asked for room.
    pub(super) room: Option<Room>,
    pub(super) room_since: Instant,
    pub(super) has_asked_for_room: bool,
    pub(super) is_running: bool,
    pub(super) is_ended: bool,
    /// Some of its data was lost. It is answered when no more can be on the way.
    pub(super) is_lost: bool,
    /// Its place among the commands of all sessions.
    pub(super) place: Option<CommandPlace>,
    /// Tells the threads that execute it, or wait for it, that it was ended.
    pub(super) ended: Arc<Ending>,
}

impl Task {
    /// Marks it as ended: nobody wants its answer any more.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
        self.ended.end();
    }

    /// Returns whether all its data is there and it has not started.
    pub(super) fn is_ready(&self) -> bool {
        let is_whole = self.unsolicited.is_none() && self.received_bytes >= self.wanted_bytes;
        is_whole && !(self.is_running || self.needs_room() || self.is_ended || self.is_lost)
    }

    /// Returns whether it needs room for its data and has none yet.
    pub(super) fn needs_room(&self) -> bool {
        self.wanted_bytes > 0 && self.room.is_none() && !self.is_running
    }

    /// Returns since when room has been held for data that the initiator has not sent.
    pub(super) fn awaits_data_since(&self) -> Option<Instant> {
        let is_awaited = self.room.is_some() && !self.is_running && self.received_bytes < self.wanted_bytes;
        is_awaited.then_some(self.room_since)
    }

    /// Gives it room for its data.
    pub(super) fn make_room(&mut self, room: Room, buffers: &Buffers) {
        (self.room, self.room_since) = (Some(room), Instant::now());
        if self.data.len() < self.wanted_bytes as usize {
            let mut data = buffers.empty(self.wanted_bytes.min(MAX_TRANSFER_BYTES) as usize);
            data.extend_from_slice(&self.data);
            self.data = data;
        }
    }

    /// Stores data as far as it is needed.
    pub(super) fn store(&mut self, offset: u32, bytes: &[u8]) {
        self.received_bytes += bytes.len() as u32;
        let room = self.wanted_bytes.saturating_sub(offset) as usize;
        let kept = &bytes[..bytes.len().min(room)];
        if kept.is_empty() {
            return;
        }
        let (start, end) = (offset as usize, offset as usize + kept.len());
        if start == self.data.len() {
            // Data that comes in order is only appended.
            return self.data.extend_from_slice(kept);
        }
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[start..end].copy_from_slice(kept);
    }
}
