//! SCSI commands: their data, their order, their answers.

use super::task::{CommandPlace, Sequence, Task};
use super::{End, Event, FIRST_BYTES, Session};
use crate::memory::Room;
use crate::pdu::{Header, Incoming, NO_TAG, Outgoing, Segment, StatusNumber, opcode, reason};
use crate::scsi::{MAX_TRANSFER_BYTES, Reply, Status};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

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
            return Err(End::Wrong("a command came with data that it must not have"));
        }
        if !header.is_final() && (!is_write || parameters.initial_r2t) {
            return Err(End::Wrong("a command announces data in a way that was not negotiated"));
        }
        let cdb = pdu.cdb();
        let found = self.begun.target.as_ref().and_then(|target| target.unit(header.lun()));
        let (number, unit) = found.map_or((None, None), |(number, unit)| (Some(number), Some(unit)));
        if let (Some(number), Some(unit)) = (number, &unit) {
            self.join(number, unit);
        }
        let needed_bytes = if is_write { unit.as_ref().map_or(0, |unit| unit.data_out_bytes(&cdb)) as u32 } else { 0 };
        let first_burst = parameters.first_burst_bytes.min(expected_bytes);
        let unsolicited = (!header.is_final()).then_some(Sequence { next_number: 0, offset: immediate, end: first_burst });
        self.next_serial += 1;
        let mut task = Task {
            serial: self.next_serial,
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
            burst_bytes: if unsolicited.is_some() { first_burst } else { immediate },
            unsolicited,
            requested_bytes: 0,
            requests: HashMap::new(),
            request_number: 0,
            room: None,
            room_since: Instant::now(),
            has_asked_for_room: false,
            is_running: false,
            is_ended: false,
            is_lost: false,
            place: CommandPlace::enter(&self.shared),
            ended: Arc::default(),
        };
        if is_read && is_write {
            // No command has data in both directions.
            self.respond(tag, &task, crate::scsi::bidirectional(), None);
            return Ok(());
        }
        if task.place.is_none() {
            self.turn_away(tag, &task);
            return Ok(());
        }
        task.store(0, &pdu.data);
        // Commands that the session's task executes itself are over before the next one is read. If their answers have
        // not left yet, the next one did not wait for them.
        let is_alone = self.tasks.is_empty() && self.outbox.is_empty();
        self.lone_commands = if is_alone { self.lone_commands.saturating_add(1) } else { 0 };
        self.tasks.insert(tag, task);
        self.queue.push_back(tag);
        self.go_on(tag);
        self.bound_first_bytes(tag);
        Ok(())
    }

    /// Answers that there is no room for one more command.
    fn turn_away(&mut self, tag: u32, task: &Task) {
        // The initiator retries when one of its own commands has ended (SAM-5 section 5.3), or after a while.
        let status = if self.tasks.is_empty() { Status::Busy } else { Status::TaskSetFull };
        self.respond(tag, task, Reply { status, data: Vec::new(), sense: Vec::new() }, None);
    }

    /// Turns away a command with immediate or unsolicited data that has no room, if the session already holds much such
    /// data.
    fn bound_first_bytes(&mut self, tag: u32) {
        let waits = |task: &&Task| task.needs_room() && !task.is_lost;
        if self.tasks.get(&tag).filter(waits).is_none_or(|task| task.burst_bytes == 0) {
            return;
        }
        let first_bytes: usize = self.tasks.values().filter(waits).map(|task| task.burst_bytes as usize).sum();
        if first_bytes > FIRST_BYTES
            && let Some(mut task) = self.tasks.remove(&tag)
        {
            task.end();
            self.queue.retain(|queued| *queued != tag);
            self.turn_away(tag, &task);
        }
    }

    /// Does the next thing for a command: asks for room, asks for data, or starts it.
    pub(super) fn go_on(&mut self, tag: u32) {
        let parameters = self.begun.parameters;
        let Some(task) = self.tasks.get(&tag) else { return };
        if task.is_running || task.is_ended || task.is_lost {
            return;
        }
        if task.needs_room() {
            if task.has_asked_for_room || self.is_behind_ordered(tag, task) {
                return;
            }
            let bytes = task.wanted_bytes.min(MAX_TRANSFER_BYTES);
            let room = self.memory.try_take(bytes);
            let Some(task) = self.tasks.get_mut(&tag) else { return };
            task.has_asked_for_room = true;
            match room {
                Some(room) => task.make_room(room, &self.shared.buffers),
                None => return self.ask_for_room(tag, bytes),
            }
        }
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        if task.unsolicited.is_some() {
            return;
        }
        if task.received_bytes >= task.wanted_bytes {
            return self.start_ready();
        }
        if task.request_number == 0 {
            // The unsolicited data is there.
            task.requested_bytes = task.received_bytes;
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

    /// Returns whether a queued command waits for the end of an ordered one. Then it gets no room, because the ordered
    /// one may need it.
    fn is_behind_ordered(&self, tag: u32, task: &Task) -> bool {
        let is_before = |other: &Task| other.is_ordered && other.number == task.number;
        let mut queued = self.queue.iter().take_while(|queued| **queued != tag).filter_map(|queued| self.tasks.get(queued));
        queued.any(is_before) || self.tasks.values().any(|other| other.is_running && is_before(other))
    }

    fn ask_for_room(&self, tag: u32, bytes: u32) {
        let Some(task) = self.tasks.get(&tag) else { return };
        let (memory, events, serial, ended) = (self.memory.clone(), self.events.clone(), task.serial, task.ended.clone());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = ended.wait() => {}
                room = memory.take(bytes) => drop(events.send(Event::Room { tag, serial, room })),
            }
        });
    }

    pub(super) fn data_out(&mut self, pdu: &Incoming) -> Result<(), End> {
        let (header, length) = (pdu.header, pdu.data.len() as u32);
        let Some(task) = self.tasks.get_mut(&header.task_tag()) else {
            // The task was ended.
            return Ok(());
        };
        let transfer_tag = header.transfer_tag();
        if task.is_lost {
            self.drop_data(&header);
            return Ok(());
        }
        let sequence = if transfer_tag == NO_TAG { task.unsolicited.as_mut() } else { task.requests.get_mut(&transfer_tag) };
        let Some(sequence) = sequence else {
            return if task.is_ended { Ok(()) } else { Err(End::Wrong("the initiator sent data that the target did not ask for")) };
        };
        if header.data_number() != sequence.next_number
            || header.buffer_offset() != sequence.offset
            || length > sequence.end - sequence.offset
        {
            return self.lose(&header);
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
                return Err(End::Wrong("the initiator sent less data than the target asked for"));
            }
        } else if is_whole && transfer_tag != NO_TAG {
            return Err(End::Wrong("the last data of a sequence lack the final bit"));
        }
        task.store(offset, &pdu.data);
        self.received_bytes += u64::from(length);
        self.go_on(header.task_tag());
        Ok(())
    }

    /// Handles data that came out of order, or more data than requested: some is lost. Once no more of its data can be
    /// on the way, the command ends as after a wrong digest (RFC 7143 sections 7.7, 7.8).
    fn lose(&mut self, header: &Header) -> Result<(), End> {
        let Some(task) = self.tasks.get_mut(&header.task_tag()).filter(|task| !task.is_running) else {
            return Err(End::Wrong("the initiator sent data for a command that already has all its data"));
        };
        task.is_lost = true;
        (task.data, task.room) = (Vec::new(), None);
        self.drop_data(header);
        Ok(())
    }

    /// Drops further data of a command that lost some.
    fn drop_data(&mut self, header: &Header) {
        let tag = header.task_tag();
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        if header.is_final() && header.transfer_tag() == NO_TAG {
            task.unsolicited = None;
        } else if header.is_final() {
            task.requests.remove(&header.transfer_tag());
        }
        if task.unsolicited.is_none() && task.requests.is_empty() {
            task.end();
            if let Some(task) = self.tasks.remove(&tag) {
                self.queue.retain(|queued| *queued != tag);
                self.respond(tag, &task, crate::scsi::lost_data(), None);
                self.go_on_all();
            }
        }
    }

    /// Starts commands whose data is complete. An ordered command waits for all earlier ones of its unit, and later
    /// ones wait for it.
    pub(super) fn start_ready(&mut self) {
        let mut at = 0;
        while at < self.queue.len() {
            let tag = self.queue[at];
            let Some(task) = self.tasks.get(&tag) else {
                self.queue.remove(at);
                continue;
            };
            if task.is_ready() && !self.must_wait(at, task) {
                self.queue.remove(at);
                self.start(tag);
            } else {
                at += 1;
            }
        }
    }

    /// Returns whether the command at this place of the queue must wait for others of its unit.
    fn must_wait(&self, at: usize, task: &Task) -> bool {
        let holds = |other: &Task| (other.is_ordered || task.is_ordered) && other.number == task.number;
        let mut queued = self.queue.iter().take(at).filter_map(|tag| self.tasks.get(tag));
        queued.any(holds) || self.tasks.values().any(|other| other.is_running && holds(other))
    }

    /// Continues all commands that waited for others which are gone: to begin, or for room behind them.
    pub(super) fn go_on_all(&mut self) {
        self.start_ready();
        let waiting: Vec<u32> = self.queue.iter().copied().filter(|tag| self.tasks.get(tag).is_some_and(Task::needs_room)).collect();
        waiting.into_iter().for_each(|tag| self.go_on(tag));
    }

    pub(super) fn happened(&mut self, event: Event) -> Result<(), End> {
        match event {
            Event::Room { tag, serial, room } => {
                if let Some(task) = self.tasks.get_mut(&tag).filter(|task| task.serial == serial && !task.is_lost) {
                    task.make_room(room, &self.shared.buffers);
                    self.go_on(tag);
                }
            }
            Event::Done { tag, serial, reply, room } => {
                let is_own = self.tasks.get(&tag).is_some_and(|task| task.serial == serial);
                if is_own && let Some(task) = self.tasks.remove(&tag) {
                    if !task.is_ended {
                        self.respond(tag, &task, reply, room);
                    }
                    self.over(tag);
                    if task.is_ordered { self.go_on_all() } else { self.start_ready() }
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

    pub(super) fn respond(&mut self, tag: u32, task: &Task, reply: Reply, room: Option<Room>) {
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
        let mut room = room;
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
            let holds = if is_last { room.take() } else { None };
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
        self.send_holding(pdu, room, true);
    }
}
