//! What a process does with requests, and with its log: group commits, adoption, release, restating, trims.

use super::bucket::{Record, UNIT};
use super::counts::Count;
use super::logs;
use super::process::{Came, Input, Process};
use super::shared::{Client, Place, REGISTERS};
use onefold_cluster::{MemberEvent, Released, Restated, Right};
use onefold_oplog::{Partition, Position};
use std::collections::BTreeMap;

/// What waits for the log.
pub enum Job {
    Write(Client),
    Adopted {
        partition: Partition,
        epoch: u64,
    },
    Release {
        partition: Partition,
        epoch: u64,
    },
    Jump {
        table: u64,
        at_least: Position,
    },
    /// The next register to restate.
    Restate {
        partition: Partition,
        epoch: u64,
        since: Option<Position>,
        register: u8,
    },
}

impl Process {
    pub fn check(&mut self, client: Client) {
        let right = self.member.may_answer(client.place.0, self.now_ms());
        match right {
            Right::All | Right::Reads => {
                // Time passes between the look at the clock and what follows.
                if self.io.is_rough() && self.io.below(100) == 0 {
                    self.pause();
                    self.inbox.push_front(Input::Act(client));
                } else {
                    self.act(client);
                }
            }
            Right::Stopped => {
                if self.member.may_log(client.place.0) && self.io.serves_elsewhere(self.id, client.place.0) {
                    self.io.count(Count::Order3WokenOwnerStopped);
                }
                self.io.refuse(client);
            }
            Right::Wait => self.io.refuse(client),
            Right::Refuse => self.io.refuse(client),
        }
    }

    pub fn act(&mut self, client: Client) {
        let (partition, register) = client.place;
        if client.write.is_some() {
            self.push(Job::Write(client));
            return;
        }
        let Some((_, values)) = self.state.get(&partition) else {
            self.io.refuse(client);
            return;
        };
        if self.io.serves_elsewhere(self.id, partition) {
            self.io.count(Count::Order4AnswerUnderWay);
        }
        let value = values.get(&register).copied().unwrap_or_default();
        self.io.reply(client, value);
    }

    // The log.

    pub fn push(&mut self, job: Job) {
        self.jobs.push_back(job);
        self.pump();
    }

    fn value(&self, (partition, register): Place) -> Option<u64> {
        self.state.get(&partition).map(|(_, values)| values.get(&register).copied().unwrap_or_default())
    }

    /// Makes the next batch, unless one is under way.
    fn pump(&mut self) {
        let Some(log) = self.log.clone() else { return };
        if !self.committing.is_empty() || self.jobs.is_empty() {
            return;
        }
        let mut records = Vec::new();
        let mut pending: BTreeMap<Place, u64> = BTreeMap::new();
        let mut start = log.borrow().end;
        while let Some(job) = self.jobs.pop_front() {
            match job {
                Job::Write(client) => {
                    let place = client.place;
                    let (Some((id, value)), Some(now)) = (client.write, self.value(place)) else {
                        self.io.refuse(client);
                        continue;
                    };
                    if !self.member.may_log(place.0) {
                        self.io.refuse(client);
                        continue;
                    }
                    let before = pending.insert(place, value).unwrap_or(now);
                    let delta = value.wrapping_sub(before);
                    records.push(Record::Change { partition: place.0, register: place.1, is_restated: false, delta, write: Some(id) });
                    self.committing.push((Job::Write(client), Some((place, value))));
                }
                Job::Adopted { .. } => {
                    records.push(Record::Adopted);
                    self.committing.push((job, None));
                }
                Job::Release { .. } => {
                    records.push(Record::Released);
                    self.committing.push((job, None));
                }
                Job::Jump { table, at_least } => {
                    if !self.committing.is_empty() {
                        self.jobs.push_front(Job::Jump { table, at_least });
                        break;
                    }
                    let end = log.borrow().end;
                    if end >= at_least {
                        log.borrow_mut().cuts.push(end);
                        self.member(MemberEvent::Jumped { table, end });
                        continue;
                    }
                    start = Position(at_least.0 - UNIT);
                    self.committing.push((Job::Jump { table, at_least }, None));
                    break;
                }
                Job::Restate { partition, epoch, since, register } => {
                    // Alone among commits.
                    if !self.committing.is_empty() {
                        self.jobs.push_front(Job::Restate { partition, epoch, since, register });
                        break;
                    }
                    if self.member.served(partition) != Some(epoch) {
                        continue;
                    }
                    let since = since.unwrap_or_else(|| {
                        let since = log.borrow().end;
                        log.borrow_mut().cuts.push(since);
                        self.touched.retain(|(of, _)| *of != partition);
                        self.member(MemberEvent::Restating(Restated { partition, epoch, since }));
                        since
                    });
                    if register == REGISTERS {
                        self.io.count(Count::Restated);
                        self.member(MemberEvent::Restated(Restated { partition, epoch, since }));
                        continue;
                    }
                    let value = self.value((partition, register)).unwrap_or_default();
                    let next = Job::Restate { partition, epoch, since: Some(since), register: register + 1 };
                    // What led to nothing since then must not count either.
                    if value == 0 && !self.touched.contains(&(partition, register)) {
                        self.jobs.push_back(next);
                        continue;
                    }
                    records.push(Record::Change { partition, register, is_restated: true, delta: value, write: None });
                    self.committing.push((next, None));
                    break;
                }
            }
        }
        if !self.committing.is_empty() {
            self.spawn(|io| {
                Box::pin(async move {
                    let is_done = logs::commit(io, log.clone(), start, records).await;
                    Came::Committed(log, is_done)
                })
            });
        }
    }

    pub fn committed(&mut self, is_done: bool) {
        let committed = std::mem::take(&mut self.committing);
        let Some(log) = self.log.clone() else { return };
        if !is_done {
            self.over();
            return;
        }
        let end = log.borrow().end;
        for (job, changed) in committed {
            if let Some(((partition, register), value)) = changed
                && let Some((_, values)) = self.state.get_mut(&partition)
            {
                values.insert(register, value);
                self.touched.insert((partition, register));
            }
            match job {
                Job::Write(client) => self.io.reply(client, 0),
                Job::Adopted { partition, epoch } => self.member(MemberEvent::Adopted { partition, epoch }),
                Job::Release { partition, epoch } => self.member(MemberEvent::Released(Released { partition, epoch, upto: end })),
                Job::Jump { table, .. } => {
                    log.borrow_mut().cuts.push(end);
                    self.member(MemberEvent::Jumped { table, end });
                }
                Job::Restate { .. } => self.jobs.push_back(job),
            }
        }
        self.pump();
    }

    /// Begins to restate what has a long lineage, now and then.
    pub fn restate(&mut self) {
        let due = self.member.to_restate().next();
        let is_under_way = self.jobs.iter().any(|job| matches!(job, Job::Restate { .. }));
        if let Some((partition, epoch)) = due
            && !is_under_way
            && self.io.below(6) == 0
        {
            self.push(Job::Restate { partition, epoch, since: None, register: 0 });
        }
    }

    pub fn trim(&mut self) {
        let Some(log) = self.log.clone() else { return };
        if self.member.may_trim() && !self.is_trimming && !log.borrow().is_dead {
            self.is_trimming = true;
            let merges = self.io.below(3) == 0;
            self.spawn(|io| {
                Box::pin(async move {
                    logs::trim(io, log, merges).await;
                    Came::Trimmed
                })
            });
        }
    }

    /// Reads a partition by the table that it knows, as a new follower does.
    pub fn read_elsewhere(&mut self) {
        let Some(table) = self.member.table().cloned() else { return };
        if self.is_reading || self.io.below(12) > 0 {
            return;
        }
        self.is_reading = true;
        let at = self.io.below(table.partitions.len() as u64) as usize;
        let (partition, lineage) = (table.partitions[at].partition, table.partitions[at].lineage.clone());
        let floors = self.io.floors(partition);
        self.spawn(|io| {
            Box::pin(async move {
                let values = logs::replay(&io, partition, &lineage).await;
                let Came::Found(newest) = super::process::find(io, table.number).await else { unreachable!() };
                Came::Read { partition, lineage, floors, values, newest }
            })
        });
    }
}
