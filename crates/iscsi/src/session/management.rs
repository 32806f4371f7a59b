//! Task management: ending tasks, resets (RFC 7143 sections 11.5 and 11.6).

use super::{Event, Session, Task, Then, Waiting};
use crate::pdu::{Incoming, Outgoing, StatusNumber, opcode};
use crate::scsi::sense::Code;

impl Session {
    /// Ends tasks. Running ones are only marked; returns these.
    pub(super) fn end_tasks(&mut self, which: &dyn Fn(&Task) -> bool) -> Vec<u32> {
        let ended: Vec<u32> = self.tasks.iter().filter(|(_, task)| which(task)).map(|(tag, _)| *tag).collect();
        let mut running = Vec::new();
        for tag in ended {
            let Some(task) = self.tasks.get_mut(&tag) else { continue };
            task.end();
            if task.is_running {
                running.push(tag);
            } else {
                self.tasks.remove(&tag);
            }
        }
        self.queue.retain(|tag| self.tasks.contains_key(tag));
        running
    }

    pub(super) fn wait_for(&mut self, tasks: Vec<u32>, then: Then) {
        if tasks.is_empty() {
            self.then(then);
        } else {
            self.waiting.push(Waiting { tasks, then });
        }
    }

    /// Handles the end of a task.
    pub(super) fn over(&mut self, tag: u32) {
        self.waiting.iter_mut().for_each(|waiting| waiting.tasks.retain(|task| *task != tag));
        let (done, rest) = std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.tasks.is_empty());
        self.waiting = rest;
        let done: Vec<Waiting> = done;
        done.into_iter().for_each(|waiting| self.then(waiting.then));
    }

    pub(super) fn then(&mut self, then: Then) {
        match then {
            Then::Answer(task_tag) => self.answer_management(task_tag, 0),
            Then::LogOut(task_tag) => {
                self.answer_logout(task_tag, 0);
                self.has_left = true;
            }
            Then::Say(done) => drop(done.send(())),
            Then::Clear { task_tag, lun } => {
                let Some(target) = self.begun.target.clone() else { return };
                let (shared, events, own, nexus) =
                    (self.shared.clone(), self.events.clone(), self.begun.place.number, self.begun.nexus.clone());
                let unit = lun.and_then(|lun| target.units.read().get(&lun).cloned());
                let tell = move || unit.iter().for_each(|unit| unit.tasks_cleared(&nexus));
                // Tell them before the others drop anything: waiting for them may be cancelled, and nothing else tells
                // their initiators.
                tell();
                self.reset_behind(async move {
                    shared.sessions.abort(&target.name, lun, Some(own)).await;
                    // Initiators that were told already may have sent more commands, which were dropped too.
                    tell();
                    let _ = events.send(Event::Reset { task_tag, is_cold: false });
                });
            }
            Then::Reset { task_tag, lun, is_cold } => {
                let Some(target) = self.begun.target.clone() else { return };
                let (shared, events, own) = (self.shared.clone(), self.events.clone(), self.begun.place.number);
                let name = target.name.clone();
                let units = move || -> Vec<_> {
                    let units = target.units.read();
                    let meant = units.iter().filter(|(number, _)| lun.is_none_or(|lun| lun == **number));
                    meant.map(|(_, unit)| unit.clone()).collect()
                };
                // Before the others drop anything, as above.
                units().iter().for_each(|unit| unit.tell_all(Code::BUS_DEVICE_RESET_FUNCTION));
                self.reset_behind(async move {
                    shared.sessions.abort(&name, lun, Some(own)).await;
                    units().iter().for_each(|unit| unit.reset());
                    let _ = events.send(Event::Reset { task_tag, is_cold });
                });
            }
        }
    }

    /// Runs work that concerns other sessions too, as long as this session exists.
    fn reset_behind(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        while self.resets.try_join_next().is_some() {}
        self.resets.spawn(work);
    }

    /// Task management (RFC 7143 sections 11.5 and 11.6).
    pub(super) fn manage(&mut self, pdu: &Incoming) {
        let (header, tag) = (pdu.header, pdu.header.task_tag());
        self.managing.push((tag, header.is_immediate()));
        let found = self.begun.target.as_ref().and_then(|target| target.unit(header.lun()));
        let number = found.as_ref().map(|(number, _)| *number);
        let function = header.0[1] & 0x7f;
        if matches!(function, 1..=5) && number.is_none() {
            return self.answer_management(tag, 2);
        }
        match function {
            1 => {
                let referenced = header.transfer_tag();
                if !self.tasks.contains_key(&referenced) {
                    return self.answer_management(tag, 1);
                }
                let is_running = self.tasks.get(&referenced).is_some_and(|task| task.is_running);
                if let Some(task) = self.tasks.get_mut(&referenced) {
                    task.end();
                }
                if !is_running {
                    self.tasks.remove(&referenced);
                    self.queue.retain(|queued| *queued != referenced);
                }
                self.wait_for(if is_running { vec![referenced] } else { Vec::new() }, Then::Answer(tag));
            }
            2 => {
                let tasks = self.end_tasks(&|task| task.number == number);
                self.wait_for(tasks, Then::Answer(tag));
            }
            4 => {
                let tasks = self.end_tasks(&|task| task.number == number);
                self.wait_for(tasks, Then::Clear { task_tag: tag, lun: number });
            }
            5 => {
                let tasks = self.end_tasks(&|task| task.number == number);
                self.wait_for(tasks, Then::Reset { task_tag: tag, lun: number, is_cold: false });
            }
            6 | 7 => {
                let tasks = self.end_tasks(&|_| true);
                self.wait_for(tasks, Then::Reset { task_tag: tag, lun: None, is_cold: function == 7 });
            }
            8 => self.answer_management(tag, 4),
            _ => self.answer_management(tag, 5),
        }
        // Continues the commands behind those that are gone.
        self.go_on_all();
    }

    pub(super) fn answer_management(&mut self, tag: u32, response: u8) {
        if let Some(at) = self.managing.iter().position(|(own, _)| *own == tag) {
            self.managing.swap_remove(at);
        }
        let mut pdu = Outgoing::new(opcode::TASK_MANAGEMENT_RESPONSE, 0x80, tag, StatusNumber::Own);
        pdu.header[2] = response;
        self.send(pdu);
    }
}
