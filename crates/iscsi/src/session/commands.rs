//! SCSI commands: their data, their order, their answers.

use super::{Begun, CommandPlace, End, Event, PERMIT_BYTES, Sequence, Session, Task};
use crate::Shared;
use crate::chap::Account;
use crate::login::Visitor;
use crate::pdu::{Incoming, NO_TAG, Outgoing, Segment, StatusNumber, opcode, reason};
use crate::scsi::{Buffers, Caller, LogicalUnit, MAX_TRANSFER_BYTES, Nexus, Patience, Peers, Port, Reply, Status};
use crate::target::Target;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::OwnedSemaphorePermit;

/// What a command under way has.
#[derive(Debug)]
struct Waiting {
    /// A place among those who work, of its session and of all.
    worker: Mutex<Option<[OwnedSemaphorePermit; 2]>>,
    is_over: Arc<AtomicBool>,
}

/// Who sends the commands of a session, and what others there are for it.
pub(super) struct Sender {
    shared: Arc<Shared>,
    nexus: Nexus,
    port: Port,
    visitor: Visitor,
    target: Option<Arc<Target>>,
    proved: Option<Account>,
    runtime: tokio::runtime::Handle,
}

impl Sender {
    pub(super) fn new(shared: &Arc<Shared>, begun: &Begun) -> Sender {
        Sender {
            shared: shared.clone(),
            nexus: begun.nexus.clone(),
            port: begun.port.clone(),
            visitor: begun.visitor.clone(),
            target: begun.target.clone(),
            proved: begun.proved.clone(),
            runtime: tokio::runtime::Handle::current(),
        }
    }

    /// Whether the initiator could log in to a target with what it has proved already. That it says to be somebody who is logged in there proves nothing.
    fn may_use(&self, target: &str) -> bool {
        let Ok(terms) = self.shared.targets.admit(Some(target), &self.visitor) else { return false };
        let accounts = &terms.credentials.initiators;
        accounts.is_empty() || self.proved.as_ref().is_some_and(|proved| accounts.contains(proved))
    }
}

impl Peers for Sender {
    fn unit(&self, number: u64) -> Option<Arc<LogicalUnit>> {
        let find = |target: &Target| target.units.read().values().find(|unit| unit.number() == number).cloned();
        self.target.as_deref().and_then(find).or_else(|| {
            let names = self.shared.targets.names(&self.visitor);
            let mut others = names.iter().filter(|name| self.may_use(name)).filter_map(|name| self.shared.targets.target(name));
            others.find_map(|target| find(&target))
        })
    }

    fn abort(&self, number: u64, nexuses: &[Nexus]) {
        // This is a thread that may wait.
        self.runtime.block_on(self.shared.sessions.abort_of(nexuses, number));
    }
}

impl Patience for Waiting {
    fn begin_to_wait(&self) {
        self.worker.lock().take();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Session {
    pub(super) fn scsi(&mut self, pdu: Incoming) -> Result<(), End> {
        let (header, tag) = (pdu.header, pdu.header.task_tag());
        let parameters = self.begun.parameters;
        if self.tasks.contains_key(&tag) || tag == NO_TAG {
            self.reject(reason::INVALID_PDU_FIELD, &pdu);
            return Ok(());
        }
        let flags = header.0[1];
        let (is_read, is_write) = (flags & 0x40 != 0, flags & 0x20 != 0);
        let expected_bytes = header.expected_bytes();
        let immediate = pdu.data.len() as u32;
        if immediate > 0 && (!is_write || !parameters.immediate_data || immediate > parameters.first_burst_bytes.min(expected_bytes)) {
            return Err(End::Wrong("data came with a command that may not have it"));
        }
        if !header.is_final() && (!is_write || parameters.initial_r2t) {
            return Err(End::Wrong("a command announces data that were not agreed on"));
        }
        let cdb = pdu.cdb();
        let found = self.begun.target.as_ref().and_then(|target| target.unit(header.lun()));
        let (number, unit) = found.map_or((None, None), |(number, unit)| (Some(number), Some(unit)));
        if let (Some(number), Some(unit)) = (number, &unit) {
            self.join(number, unit);
        }
        let needed_bytes = if is_write { unit.as_ref().map_or(0, |unit| unit.data_out_bytes(&cdb)) as u32 } else { 0 };
        let first_burst = parameters.first_burst_bytes.min(expected_bytes);
        let mut task = Task {
            lun: header.lun(),
            number,
            unit,
            cdb,
            is_read,
            is_write,
            is_ordered: matches!(flags & 7, 2),
            is_immediate: header.is_immediate(),
            expected_bytes,
            needed_bytes,
            data: Vec::new(),
            wanted_bytes: needed_bytes.min(expected_bytes).min(MAX_TRANSFER_BYTES),
            received_bytes: 0,
            unsolicited: (!header.is_final()).then_some(Sequence { next_number: 0, offset: immediate, end: first_burst }),
            requested_bytes: 0,
            requests: HashMap::new(),
            request_number: 0,
            permit: None,
            is_running: false,
            is_ended: false,
            place: CommandPlace::enter(&self.shared),
            ended: Arc::default(),
        };
        if task.place.is_none() {
            // The initiator tries it again: when one of its own commands has ended (SAM-5 section 5.3), or after a while.
            let status = if self.tasks.is_empty() { Status::Busy } else { Status::TaskSetFull };
            self.respond(tag, &task, Reply { status, data: Vec::new(), sense: Vec::new() }, None);
            return Ok(());
        }
        task.store(0, &pdu.data);
        self.tasks.insert(tag, task);
        self.queue.push_back(tag);
        self.go_on(tag);
        Ok(())
    }

    /// Does what can be done next for a command: asks for room, for data, or lets it start.
    pub(super) fn go_on(&mut self, tag: u32) {
        let parameters = self.begun.parameters;
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        if task.unsolicited.is_some() || task.is_running || task.is_ended {
            return;
        }
        if task.received_bytes >= task.wanted_bytes {
            return self.start_ready();
        }
        if task.permit.is_none() && task.requested_bytes == 0 {
            // So that room is asked for once.
            task.requested_bytes = task.received_bytes;
            let permits = task.wanted_bytes.min(MAX_TRANSFER_BYTES).div_ceil(PERMIT_BYTES);
            match self.memory.clone().try_acquire_many_owned(permits) {
                Ok(permit) => task.make_room(permit, &self.shared.buffers),
                Err(_) => return self.ask_for_room(tag, permits),
            }
        }
        if task.permit.is_none() {
            return;
        }
        let mut wanted = Vec::new();
        while task.requested_bytes < task.wanted_bytes && task.requests.len() + wanted.len() < parameters.outstanding_r2t as usize {
            let length = (task.wanted_bytes - task.requested_bytes).min(parameters.burst_bytes);
            wanted.push((task.requested_bytes, length));
            task.requested_bytes += length;
        }
        for (offset, length) in wanted {
            let transfer_tag = self.transfer_tag();
            let Some(task) = self.tasks.get_mut(&tag) else { return };
            task.requests.insert(transfer_tag, Sequence { next_number: 0, offset, end: offset + length });
            let mut pdu = Outgoing::new(opcode::R2T, 0x80, tag, StatusNumber::Next);
            pdu.put(8, &task.lun.to_be_bytes());
            pdu.put_u32(20, transfer_tag);
            pdu.put_u32(36, task.request_number);
            pdu.put_u32(40, offset);
            pdu.put_u32(44, length);
            task.request_number += 1;
            self.send(pdu);
        }
    }

    fn ask_for_room(&self, tag: u32, permits: u32) {
        let (memory, events) = (self.memory.clone(), self.events.clone());
        tokio::spawn(async move {
            if let Ok(permit) = memory.acquire_many_owned(permits).await {
                let _ = events.send(Event::Room(tag, permit));
            }
        });
    }

    pub(super) fn data_out(&mut self, pdu: &Incoming) -> Result<(), End> {
        let (header, length) = (pdu.header, pdu.data.len() as u32);
        let Some(task) = self.tasks.get_mut(&header.task_tag()) else {
            // Of a task that was ended.
            return Ok(());
        };
        let transfer_tag = header.transfer_tag();
        let sequence = if transfer_tag == NO_TAG { task.unsolicited.as_mut() } else { task.requests.get_mut(&transfer_tag) };
        let Some(sequence) = sequence else {
            return if task.is_ended { Ok(()) } else { Err(End::Wrong("data came that nobody asked for")) };
        };
        if header.data_number() != sequence.next_number
            || header.buffer_offset() != sequence.offset
            || length > sequence.end - sequence.offset
        {
            return self.lose(header.task_tag());
        }
        sequence.next_number += 1;
        sequence.offset += length;
        let is_whole = sequence.offset == sequence.end;
        let offset = header.buffer_offset();
        if header.is_final() {
            if transfer_tag == NO_TAG {
                task.unsolicited = None;
            } else if is_whole {
                task.requests.remove(&transfer_tag);
            } else {
                return Err(End::Wrong("less data came than was asked for"));
            }
        } else if is_whole && transfer_tag != NO_TAG {
            return Err(End::Wrong("the last data of a sequence are not marked so"));
        }
        task.store(offset, &pdu.data);
        self.go_on(header.task_tag());
        Ok(())
    }

    /// Data came out of order, or more than was asked for: some is lost. The command ends as after a digest that is wrong (RFC 7143 sections 7.7, 7.8).
    pub(super) fn lose(&mut self, tag: u32) -> Result<(), End> {
        let Some(task) = self.tasks.get_mut(&tag).filter(|task| !task.is_running) else {
            return Err(End::Wrong("data came for a command that has all"));
        };
        task.end();
        if let Some(task) = self.tasks.remove(&tag) {
            self.queue.retain(|queued| *queued != tag);
            self.respond(tag, &task, crate::scsi::lost_data(), None);
            self.start_ready();
        }
        Ok(())
    }

    /// Starts commands whose data are there. One that is ordered waits for all before it, and all behind it wait for it.
    pub(super) fn start_ready(&mut self) {
        if self.queue.is_empty() || self.tasks.values().any(|task| task.is_running && task.is_ordered) {
            return;
        }
        let mut at = 0;
        while at < self.queue.len() {
            let tag = self.queue[at];
            let Some(task) = self.tasks.get(&tag) else {
                self.queue.remove(at);
                continue;
            };
            let is_blocked = task.is_ordered && self.tasks.values().any(|other| other.is_running);
            if task.is_ordered && (at > 0 || is_blocked) {
                return;
            }
            let is_ready = task.unsolicited.is_none() && task.received_bytes >= task.wanted_bytes && !task.is_ended;
            if is_ready {
                self.queue.remove(at);
                let is_ordered = task.is_ordered;
                self.start(tag);
                if is_ordered {
                    return;
                }
            } else if task.is_ordered {
                return;
            } else {
                at += 1;
            }
        }
    }

    pub(super) fn start(&mut self, tag: u32) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        task.is_running = true;
        let (unit, cdb, data) = (task.unit.clone(), task.cdb.clone(), std::mem::take(&mut task.data));
        self.begun.place.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        let announced = if task.is_write { task.expected_bytes } else { 0 };
        // What the unit reads counts, whether or not the initiator wants all of it.
        let expected = if task.is_read { task.expected_bytes } else { 0 };
        let bytes = expected.max(unit.as_ref().map_or(0, |unit| unit.data_in_bytes(&cdb)) as u32).min(MAX_TRANSFER_BYTES);
        let permit = task.permit.take();
        let is_over = task.ended.clone();
        let (sender, events) = (self.sender.clone(), self.events.clone());
        let work = move |permit: Option<OwnedSemaphorePermit>, worker| {
            let waiting = Waiting { worker: Mutex::new(worker), is_over };
            let luns = sender.target.as_ref().map_or_else(Vec::new, |target| target.luns());
            let caller = Caller {
                nexus: &sender.nexus,
                port: &sender.port,
                luns: &luns,
                patience: &waiting,
                peers: &*sender,
                tokens: &sender.shared.tokens,
                buffers: &sender.shared.buffers,
            };
            let execute = || match unit {
                // It was ended while it waited for its turn: then it must not have begun.
                _ if waiting.is_over() => crate::scsi::failed(),
                Some(unit) => unit.execute(caller, &cdb, &data, announced),
                None => crate::scsi::without_unit(caller, &cdb),
            };
            let reply = catch_unwind(AssertUnwindSafe(execute)).unwrap_or_else(|_| crate::scsi::failed());
            sender.shared.buffers.give_back(data);
            // Whoever hears that it is done finds its place free, and nobody who has the unit.
            drop((waiting, sender));
            // No receiver: the session is over.
            let _ = events.send(Event::Done(tag, reply, permit));
        };
        let (memory, own, all) = (self.memory.clone(), self.workers.clone(), self.shared.workers.clone());
        let needed = if permit.is_none() { bytes.div_ceil(PERMIT_BYTES) } else { 0 };
        // Mostly there is room at once. Nobody who waits is overtaken: as long as somebody does, nothing is free.
        let room = if needed > 0 { memory.clone().try_acquire_many_owned(needed).map(Some) } else { Ok(permit) };
        // The session's own first, so that nobody has a place of all while it waits for one.
        let worker = own.clone().try_acquire_owned().and_then(|own| Ok([own, all.clone().try_acquire_owned()?]));
        match (room, worker) {
            (Ok(permit), Ok(worker)) => self.shared.pool.run(move || work(permit, Some(worker))),
            (room, worker) => {
                drop(worker);
                let shared = self.shared.clone();
                tokio::spawn(async move {
                    let permit = match room {
                        Ok(permit) => permit,
                        Err(_) => memory.acquire_many_owned(needed).await.ok(),
                    };
                    let worker = match own.acquire_owned().await {
                        Ok(own) => all.acquire_owned().await.ok().map(|all| [own, all]),
                        Err(_) => None,
                    };
                    shared.pool.run(move || work(permit, worker));
                });
            }
        }
    }

    pub(super) fn happened(&mut self, event: Event) -> Result<(), End> {
        match event {
            Event::Room(tag, permit) => {
                if let Some(task) = self.tasks.get_mut(&tag) {
                    task.make_room(permit, &self.shared.buffers);
                    self.go_on(tag);
                }
            }
            Event::Done(tag, reply, permit) => {
                if let Some(task) = self.tasks.remove(&tag) {
                    if !task.is_ended {
                        self.respond(tag, &task, reply, permit);
                    }
                    self.over(tag);
                    self.start_ready();
                }
            }
            Event::Reset { task_tag, is_cold } => {
                self.answer_management(task_tag, 0);
                if is_cold && let Some(target) = &self.begun.target {
                    self.shared.sessions.close(&target.name);
                }
            }
        }
        Ok(())
    }

    pub(super) fn respond(&mut self, tag: u32, task: &Task, reply: Reply, permit: Option<OwnedSemaphorePermit>) {
        let parameters = self.begun.parameters;
        let actual = if task.is_write { task.needed_bytes } else { reply.data.len() as u32 };
        let actual = if reply.status == Status::Good || task.is_write { actual } else { 0 };
        let (residual_flag, residual) = match actual.cmp(&task.expected_bytes) {
            std::cmp::Ordering::Greater => (0x04, actual - task.expected_bytes),
            std::cmp::Ordering::Less => (0x02, task.expected_bytes - actual),
            std::cmp::Ordering::Equal => (0, 0),
        };
        let mut data = reply.data;
        data.truncate(if task.is_read { task.expected_bytes as usize } else { 0 });
        let data = Segment::of_buffer(data, &self.shared.buffers);
        let counters = &self.begun.place.counters;
        counters.commands.fetch_add(1, Ordering::Relaxed);
        counters.read_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        let mut permit = permit;
        let mut count = 0;
        let with_status = !data.is_empty() && reply.status == Status::Good;
        let mut offset = 0;
        while offset < data.len() {
            let burst_end = (offset / parameters.burst_bytes as usize + 1) * parameters.burst_bytes as usize;
            let end = data.len().min(burst_end).min(offset + parameters.send_segment_bytes as usize);
            let is_last = end == data.len();
            let is_final = is_last || end == burst_end;
            let has_status = is_last && with_status;
            let flags = u8::from(is_final) << 7 | if has_status { 1 | residual_flag } else { 0 };
            let mut pdu = Outgoing::new(opcode::DATA_IN, flags, tag, if has_status { StatusNumber::Own } else { StatusNumber::None });
            pdu.put(8, &task.lun.to_be_bytes());
            pdu.put_u32(20, NO_TAG);
            pdu.put_u32(36, count);
            pdu.put_u32(40, offset as u32);
            if has_status {
                pdu.put_u32(44, residual);
            }
            count += 1;
            let holds = if is_last { permit.take() } else { None };
            self.send_holding(pdu.with_data(data.part(offset..end)), holds, false);
            offset = end;
        }
        if with_status {
            return;
        }
        let mut pdu = Outgoing::new(opcode::SCSI_RESPONSE, 0x80 | residual_flag, tag, StatusNumber::Own);
        pdu.header[3] = reply.status as u8;
        pdu.put_u32(36, count + task.request_number);
        pdu.put_u32(44, residual);
        if !reply.sense.is_empty() {
            pdu.data = [&(reply.sense.len() as u16).to_be_bytes()[..], &reply.sense].concat().into();
        }
        self.send_holding(pdu, permit, true);
    }
}

impl Task {
    /// There is memory for its data.
    fn make_room(&mut self, permit: OwnedSemaphorePermit, buffers: &Buffers) {
        self.permit = Some(permit);
        let mut data = buffers.empty(self.wanted_bytes.min(MAX_TRANSFER_BYTES) as usize);
        data.extend_from_slice(&self.data);
        self.data = data;
    }

    /// Keeps data as far as it is wanted.
    fn store(&mut self, offset: u32, bytes: &[u8]) {
        self.received_bytes += bytes.len() as u32;
        let room = self.wanted_bytes.saturating_sub(offset) as usize;
        let kept = &bytes[..bytes.len().min(room)];
        if kept.is_empty() {
            return;
        }
        let (start, end) = (offset as usize, offset as usize + kept.len());
        if start == self.data.len() {
            // What comes in its order is only appended.
            return self.data.extend_from_slice(kept);
        }
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[start..end].copy_from_slice(kept);
    }
}
