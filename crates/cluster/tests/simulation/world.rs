//! The world: machines, clients and faults. One seed decides everything.

use super::auditor::Auditor;
use super::bucket::{Reply, Request, SimulatedBucket};
use super::coordinator::{Coordinator, Data};
use super::counts::{Count, Counted};
use super::process::{Input, Process, ProcessId};
use super::shared::{COORDINATOR, Client, Core, Event, Io, REGISTERS, SESSION_MS, Time};
use onefold_cluster::{Counts, NodeNumber, Table};
use onefold_oplog::Partition;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const ROUGH_MS: Time = 16_000;
/// When faults have ended, everything is served again within this time.
const BOUND_MS: Time = 40_000;
const CLIENTS: usize = 3;
const PATIENCE_MS: Time = 1500;

pub struct World {
    core: Rc<RefCell<Core>>,
    processes: Vec<Process>,
    calm_at: Time,
    is_over: bool,
    served_at: Option<Time>,
    crashing: Option<(usize, bool)>,
}

/// Runs a seed. Returns what it met, and a hash of all that happened. Panics when something is wrong.
pub fn run(seed: u64, tells: bool) -> (Counted, u64) {
    let mut world = World::new(seed, tells);
    while !world.is_over {
        world.step();
    }
    let core = world.core.borrow();
    let mut counted = core.counted;
    counted[Count::Acknowledged as usize] = core.auditor.acknowledged;
    counted[Count::Read as usize] = core.auditor.read;
    drop(core);
    let trace = world.core.borrow().trace;
    (counted, trace)
}

impl World {
    fn new(seed: u64, tells: bool) -> World {
        let counts = Counts { chunk_index: 2, objects: 2, containers: 1 };
        let first = Table::first(counts, NodeNumber(0), 1);
        let bucket = SimulatedBucket::new();
        bucket.tables.put(&first).expect("the first table is right");
        let mut core = Core {
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            dice: seed,
            unique: 0,
            slots: BTreeMap::new(),
            bucket,
            batch_times: BTreeMap::new(),
            newest: first,
            coordinator: Coordinator::new(0),
            auditor: Auditor::default(),
            is_rough: true,
            presents: BTreeMap::new(),
            sessions: BTreeMap::new(),
            cuts: BTreeSet::new(),
            stopped: BTreeSet::new(),
            gone: BTreeSet::new(),
            counted: [0; Count::ALL.len()],
            operations: BTreeMap::new(),
            operation: 0,
            table_before_outage: None,
            has_asked_to_leave: false,
            tells,
            trace: 0,
        };
        // Clocks run apart by a third at most: 1.2 / 0.82 is less than 1.5.
        let rate = |core: &mut Core| 820 + core.below(380);
        let coordinator_rate = rate(&mut core);
        core.coordinator = Coordinator::new(SESSION_MS * 1000 / coordinator_rate);
        let machines = 2 + core.below(3) as usize;
        let clocks: Vec<(u64, u64)> = (0..machines).map(|_| (rate(&mut core), core.below(1 << 30))).collect();
        core.bucket.execute(&Request::PutNode { number: 0, owner: 0 });
        core.at(ROUGH_MS, Event::Calm);
        core.after(1500, Event::Fault);
        core.after(700, Event::Trims);
        core.after(SESSION_MS / 4, Event::Expire);
        (0..CLIENTS).for_each(|client| core.after(400, Event::Client(client)));
        let core = Rc::new(RefCell::new(core));
        let mut processes = Vec::new();
        for (machine, (rate, offset)) in clocks.into_iter().enumerate() {
            let id = ProcessId { machine, life: 0 };
            let io = Io { core: core.clone(), who: id, task: 0 };
            let mut process = Process::new(io, machine, rate, offset + 1);
            process.number = (machine == 0).then_some(NodeNumber(0));
            core.borrow_mut().after(machine as u64 * 300, Event::To { who: id, input: Input::Start });
            processes.push(process);
        }
        World { core, processes, calm_at: ROUGH_MS, is_over: false, served_at: None, crashing: None }
    }

    fn step(&mut self) {
        let event = {
            let core = &mut *self.core.borrow_mut();
            let ((time, sequence), event) = core.queue.pop_first().expect("processes tick for ever");
            core.now = time;
            core.count(Count::Events);
            core.trace = (core.trace ^ time ^ sequence.rotate_left(32) ^ core.dice).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            event
        };
        match event {
            Event::To { who, input } => self.deliver(who, input),
            Event::Resume { who } => self.resume(who),
            Event::Wake { who, slot, task, reply } => self.wake(who, slot, task, reply),
            Event::Effect { who, slot, task, request, sent, answer_after } => {
                let core = &mut *self.core.borrow_mut();
                let reply = core.execute(&request, sent);
                if let Some(time) = answer_after {
                    core.after(time, Event::Wake { who, slot, task, reply });
                }
            }
            Event::Call { who, asked_ms, call } => self.core.borrow_mut().called(who, asked_ms, &call),
            Event::Expire => {
                let core = &mut *self.core.borrow_mut();
                core.after(50, Event::Expire);
                let before: Vec<u64> = core.coordinator.data.sessions.keys().copied().collect();
                if core.now >= core.coordinator.away_until && core.coordinator.expire(core.now) {
                    core.tell(|| format!("of sessions {before:?} there are {:?}", core.coordinator.data.sessions.keys()));
                    core.views_changed();
                }
            }
            Event::Client(client) => self.begin(client),
            Event::GiveUp { client, operation } => self.core.borrow_mut().next_operation(client, operation),
            Event::Reply { request, value } => self.core.borrow_mut().answered(&request, value),
            Event::Fault => {
                self.fault();
                // Not while the fault holds what is shared.
                if let Some((machine, keeps_state)) = self.crashing.take() {
                    self.processes[machine].crash(keeps_state);
                }
            }
            Event::Restart { machine, life } => {
                let process = &mut self.processes[machine];
                if process.id.life == life && !process.is_up {
                    process.handle(Input::Start);
                }
            }
            Event::ComeBack => {
                let core = &mut *self.core.borrow_mut();
                let now = core.now;
                if now >= core.coordinator.away_until {
                    core.coordinator.come_back(now);
                    core.stopped.clear();
                }
            }
            Event::Trims => {
                let core = &mut *self.core.borrow_mut();
                let time = 50 + core.below(400);
                core.after(time, Event::Trims);
                let machine = core.below(self.processes.len() as u64) as usize;
                core.after(0, Event::To { who: self.processes[machine].id, input: Input::Trim });
            }
            Event::Calm => self.calm(),
            Event::Look => self.look(),
        }
    }

    fn deliver(&mut self, who: ProcessId, input: Input) {
        let process = &mut self.processes[who.machine];
        if process.id != who || !process.is_up && !matches!(input, Input::Start) {
            return;
        }
        process.inbox.push_back(input);
        if process.inbox.len() == 1 {
            self.resume(who);
        }
    }

    /// Lets a process handle what has come, in its order, until it pauses.
    fn resume(&mut self, who: ProcessId) {
        if self.processes[who.machine].id != who {
            return;
        }
        let now = self.core.borrow().now;
        loop {
            let process = &mut self.processes[who.machine];
            let is_paused = process.paused_until > now;
            let Some(input) = (if is_paused { None } else { process.inbox.pop_front() }) else { break };
            process.handle(input);
            self.check_owners(who.machine);
            let process = &mut self.processes[who.machine];
            if !process.held_back.is_empty() {
                process.inbox.push_front(Input::GoOn);
            }
        }
        let process = &self.processes[who.machine];
        if !process.inbox.is_empty() {
            self.core.borrow_mut().at(process.paused_until, Event::Resume { who });
        }
    }

    /// An answer is there. The process sees it when it does not pause.
    fn wake(&mut self, who: ProcessId, slot: u64, task: u64, reply: Reply) {
        if self.processes[who.machine].id != who {
            return;
        }
        {
            let core = &mut *self.core.borrow_mut();
            let Some(waiting) = core.slots.get_mut(&slot) else { return };
            waiting.get_or_insert(reply);
        }
        self.deliver(who, Input::Wake { task });
    }

    /// One process at most answers for a partition.
    fn check_owners(&self, machine: usize) {
        let newest: Vec<Partition> = self.core.borrow().newest.partitions.iter().map(|assigned| assigned.partition).collect();
        for partition in newest {
            if self.processes[machine].answers(partition) {
                let other = self.processes.iter().find(|process| process.id.machine != machine && process.answers(partition));
                if let Some(other) = other {
                    panic!("{partition:?} is answered for by machines {machine} and {}", other.id.machine);
                }
            }
        }
    }

    fn begin(&mut self, client: usize) {
        let core = &mut *self.core.borrow_mut();
        core.operation += 1;
        let operation = core.operation;
        core.operations.insert(client, operation);
        let at = core.below(core.newest.partitions.len() as u64) as usize;
        let (partition, owner) = (core.newest.partitions[at].partition, core.newest.partitions[at].owner());
        let place = (partition, core.below(REGISTERS.into()) as u8);
        let is_write = core.below(2) == 0;
        let value = if core.below(6) == 0 { 0 } else { operation };
        let request = Client { client, operation, place, write: is_write.then_some((operation, value)), floor: core.auditor.begin(place) };
        if is_write {
            core.auditor.begin_write(operation, value);
        }
        let is_owner = |process: &&Process| process.member.present().is_some_and(|present| present.node == owner);
        let to_owner = core.below(4) > 0;
        let machine = core.below(self.processes.len() as u64) as usize;
        let to = self.processes.iter().find(is_owner).filter(|_| to_owner).unwrap_or(&self.processes[machine]).id;
        let time = 1 + core.below(10);
        core.after(time, Event::To { who: to, input: Input::Request(request) });
        core.after(PATIENCE_MS, Event::GiveUp { client, operation });
    }

    fn fault(&mut self) {
        let core = &mut *self.core.borrow_mut();
        if !core.is_rough {
            return;
        }
        let time = 200 + core.below(2200);
        core.after(time, Event::Fault);
        let now = core.now;
        let count = self.processes.len() as u64;
        let machine = core.below(count) as usize;
        match core.below(20) {
            0..6 => {
                let long = core.below(3) == 0;
                let pause = if long { core.below(SESSION_MS * 4) } else { core.below(SESSION_MS * 3 / 2) };
                let process = &mut self.processes[machine];
                process.paused_until = process.paused_until.max(now + pause);
                core.tell(|| format!("machine {machine} pauses for {pause}"));
            }
            6..10 => {
                let keeps_state = core.below(4) > 0;
                let time = if core.below(3) == 0 { core.below(4000) } else { core.below(400) };
                let life = self.processes[machine].id.life + 1;
                core.after(time, Event::Restart { machine, life });
                core.tell(|| format!("machine {machine} crashes, for {time}"));
                self.crashing = Some((machine, keeps_state));
            }
            10 | 11 => {
                let time = 300 + core.below(5000);
                core.coordinator.away_until = now + time;
                core.tell(|| format!("the coordinator is away for {time}"));
                core.table_before_outage = Some(core.newest.number);
                core.after(time, Event::ComeBack);
            }
            12 => {
                core.count(Count::Order31Empty);
                core.coordinator.restore(now, Data::default());
            }
            13 => {
                core.count(Count::Order31OldData);
                let old = core.coordinator.old.clone();
                core.coordinator.restore(now, old);
            }
            14 | 15 => {
                let pair = if core.below(2) == 0 { (machine, COORDINATOR) } else { (COORDINATOR, machine) };
                core.cuts.insert(pair);
            }
            16 => {
                let other = core.below(count) as usize;
                core.cuts.insert((machine, other));
            }
            17 | 18 => core.cuts.clear(),
            _ => {
                if count > 2 && !std::mem::replace(&mut core.has_asked_to_leave, true) {
                    core.after(0, Event::To { who: self.processes[machine].id, input: Input::Leave });
                }
                core.coordinator.old = core.coordinator.data.clone();
            }
        }
    }

    /// Faults end. What was sent before may still arrive late.
    fn calm(&mut self) {
        for process in &mut self.processes {
            process.paused_until = 0;
        }
        let core = &mut *self.core.borrow_mut();
        for process in &self.processes {
            core.after(0, Event::Resume { who: process.id });
        }
        core.is_rough = false;
        core.cuts.clear();
        core.coordinator.away_until = core.coordinator.away_until.min(core.now);
        core.coordinator.come_back(core.now);
        for process in self.processes.iter().filter(|process| !process.is_up) {
            let event = Event::Restart { machine: process.id.machine, life: process.id.life };
            core.after(1, event);
        }
        core.after(500, Event::Look);
    }

    fn look(&mut self) {
        let partitions: Vec<Partition> = self.core.borrow().newest.partitions.iter().map(|assigned| assigned.partition).collect();
        let all = partitions.into_iter().all(|partition| self.processes.iter().any(|process| process.answers(partition)));
        let processes: Vec<String> = self.processes.iter().map(Process::describe).collect();
        let core = &mut *self.core.borrow_mut();
        assert!(
            all || self.served_at.is_some() || core.now < self.calm_at + BOUND_MS,
            "not everything is served {BOUND_MS} ms after the last fault: {:?}, {:?}\n{}",
            core.newest,
            core.coordinator.data.alive,
            processes.join("\n")
        );
        if all {
            self.served_at.get_or_insert(core.now);
        }
        if self.served_at.is_some_and(|served_at| core.now >= served_at + 2500) {
            core.check_all();
            self.is_over = true;
        }
        core.after(500, Event::Look);
    }
}
