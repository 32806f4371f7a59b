//! PERSISTENT RESERVE IN and OUT of a logical unit (SPC-4 sections 6.15 and 6.16): their data formats.
//! [`reservation`](super::reservation) has their meaning.

use super::caller::Caller;
use super::keep::NotKept;
use super::reservation::{MAX_REGISTRATIONS, Nexus, Refusal, Request, TYPE_MASK};
use super::sense::{Code, Key, Sense};
use super::unit::LogicalUnit;
use super::{u32_at, u64_at};

/// A service action of PERSISTENT RESERVE OUT.
const PREEMPT_AND_ABORT: u8 = 0x05;

impl LogicalUnit {
    /// RESERVE, which excludes persistent reservations.
    pub(super) fn reserve(&self, nexus: &Nexus) -> Result<(), Refusal> {
        let _changing = self.changing.lock();
        self.state.lock().reservations.reserve(nexus)
    }

    pub(super) fn persistent_in(&self, cdb: &[u8]) -> Result<Vec<u8>, Refusal> {
        let state = self.state.lock();
        let reservations = &state.reservations;
        if !reservations.allows_persistent() {
            return Err(Refusal::Conflict);
        }
        let generation = reservations.generation().to_be_bytes();
        let with_length = |body: Vec<u8>| [&generation[..], &(body.len() as u32).to_be_bytes(), &body].concat();
        Ok(match cdb[1] & 0x1f {
            0x00 => with_length(reservations.keys().flat_map(u64::to_be_bytes).collect()),
            0x01 => with_length(reservations.reservation().map_or_else(Vec::new, |reservation| {
                let key = reservations.holders_key().to_be_bytes();
                [&key[..], &[0, 0, 0, 0, 0, reservation.kind as u8, 0, 0]].concat()
            })),
            0x02 => {
                // Not compatible with RESERVE and RELEASE, not all target ports. Kept over power loss, types are
                // listed.
                let kept = u8::from(reservations.is_kept());
                vec![0, 8, 0x01, 0x80 | kept, TYPE_MASK[0], TYPE_MASK[1], 0, 0]
            }
            _ => {
                let mut body = Vec::new();
                for (other, key) in reservations.registrations() {
                    let transport = transport_id(&other.initiator);
                    let is_holder = reservations.is_holder(other);
                    body.extend_from_slice(&key.to_be_bytes());
                    let kind = reservations.reservation().filter(|_| is_holder).map_or(0, |reservation| reservation.kind as u8);
                    body.extend_from_slice(&[0, 0, 0, 0, u8::from(is_holder), kind, 0, 0, 0, 0]);
                    body.extend_from_slice(&other.target_port.to_be_bytes());
                    body.extend_from_slice(&(transport.len() as u32).to_be_bytes());
                    body.extend_from_slice(&transport);
                }
                with_length(body)
            }
        })
    }

    pub(super) fn persistent_out(&self, caller: Caller<'_>, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, Refusal> {
        if u32_at(cdb, 5) != 24 || data.len() < 24 {
            return Err(Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        let flags = data[20];
        // Registering for others (SPEC_I_PT) or for all ports (ALL_TG_PT) is not offered, as the capabilities say.
        if flags & 0x0c != 0 && matches!(cdb[1] & 0x1f, 0x00 | 0x06) {
            return Err(Sense::invalid_parameter(20).into());
        }
        let request = Request {
            action: cdb[1] & 0x1f,
            scope: cdb[2] >> 4,
            kind: cdb[2] & 0x0f,
            key: u64_at(data, 0),
            new_key: u64_at(data, 8),
            keep: flags & 1 != 0,
        };
        let mut changing = self.changing.lock();
        let before = self.state.lock().reservations.clone();
        let mut next = before.clone();
        let heard = next.change(caller.nexus, request)?;
        if next.kept() != before.kept() || changing.is_uncertain {
            // After a stop, another unit may have read the stored state, so this unit must not change it any more.
            self.check_unstopped()?;
            // This takes as long as a flush. Every command and every login reads the state, so it is not locked
            // meanwhile.
            let kept = (self.keep)(&next);
            changing.is_uncertain = match kept {
                Ok(()) => false,
                Err(NotKept::Uncertain) => true,
                Err(NotKept::Unchanged) => changing.is_uncertain,
            };
            kept.map_err(|_| Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE))?;
        }
        debug_assert!(next.keys().count() <= MAX_REGISTRATIONS);
        let mut state = self.state.lock();
        // Nobody has changed them meanwhile: RESERVE waits, and otherwise a reset or the end of a nexus removes
        // nothing.
        state.reservations = next;
        let gone: Vec<Nexus> =
            heard.iter().filter(|(_, code)| *code == Code::REGISTRATIONS_PREEMPTED).map(|(other, _)| other.clone()).collect();
        heard.into_iter().for_each(|(other, code)| state.attend(&other, code));
        if request.action == PREEMPT_AND_ABORT && !gone.is_empty() {
            gone.iter().for_each(|other| state.tray.lose_nexus(other));
            // Initiators whose commands are gone get a unit attention, because no status tells them (SPC-4 section
            // 5.13.11.2.7).
            gone.iter().for_each(|other| state.attend(other, Code::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR));
            drop((state, changing));
            caller.patience.begin_to_wait();
            caller.peers.abort(self.number(), &gone, &|| caller.patience.is_over());
            // Copies that these initiators sent to other units are not tasks of this unit. Their next steps are
            // refused.
            self.wait_for_steps(&|| caller.patience.is_over());
        }
        Ok(Vec::new())
    }
}

/// TransportID of an iSCSI initiator port (SPC-4 section 7.6.4.6).
fn transport_id(name: &str) -> Vec<u8> {
    let mut text = name.as_bytes().to_vec();
    text.resize((text.len() / 4 * 4 + 4).max(20), 0);
    // Protocol 5; with an ISID the name has format 1.
    let format = if name.contains(",i,0x") { 0x45 } else { 0x05 };
    [&[format, 0][..], &(text.len() as u16).to_be_bytes(), &text].concat()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MAPPED_BYTES, MemoryDisk, Others, nexus, send_as, send_to, sense_of, unit};
    use super::super::{NotKept, Reply, Status, Tokens};
    use super::*;

    fn out(action: u8, kind: u8, key: u64, new_key: u64) -> ([u8; 10], Vec<u8>) {
        let list = [&key.to_be_bytes()[..], &new_key.to_be_bytes(), &[0; 8]].concat();
        ([0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
    }

    #[test]
    fn who_is_preempted_loses_registration_reservation_and_commands_and_hears_of_it() {
        let unit = unit(&MemoryDisk::new(MAPPED_BYTES));
        let send = |name: &str, (cdb, list): ([u8; 10], Vec<u8>)| send_as(&unit, name, &cdb, &list);
        for (name, key) in [("a", 1), ("b", 2), ("c", 2)] {
            unit.join(&nexus(name));
            assert_eq!(sense_of(&send_as(&unit, name, &[0; 6], &[])), (6, 0x29, 0));
            assert_eq!(send(name, out(0, 0, 0, key)).status, Status::Good);
        }
        assert_eq!(send("b", out(1, 3, 2, 0)).status, Status::Good);
        let write = |name: &str| -> Reply { send_as(&unit, name, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512]) };
        assert_eq!((write("b").status, write("a").status), (Status::Good, Status::ReservationConflict));
        let (others, (cdb, list)) = (Others::default(), out(5, 1, 1, 2));
        assert_eq!(send_to(&unit, &others, &Tokens::default(), "a", &cdb, &list).status, Status::Good);
        assert_eq!(*others.aborted.lock(), [nexus("b"), nexus("c")]);
        for name in ["b", "c"] {
            assert_eq!([sense_of(&write(name)), sense_of(&write(name))], [(6, 0x2a, 0x05), (6, 0x2f, 0x00)]);
            assert_eq!(write(name).status, Status::ReservationConflict);
        }
        assert_eq!(write("a").status, Status::Good);
        assert_eq!(send("b", out(5, 1, 2, 1)).status, Status::ReservationConflict, "who is not registered preempts nobody");
        let (cdb, list) = out(4, 1, 1, 9);
        assert_eq!(
            send_to(&unit, &others, &Tokens::default(), "a", &cdb, &list).status,
            Status::ReservationConflict,
            "nobody has that key"
        );
        assert_eq!(others.aborted.lock().len(), 2);
    }

    #[test]
    fn a_unit_that_was_stopped_keeps_nothing() {
        let keep = |_: &_| panic!("another unit may have read what is kept");
        let unit = LogicalUnit::new(MemoryDisk::new(MAPPED_BYTES), super::super::testing::options(), Box::new(keep));
        unit.stop();
        let (cdb, mut list) = out(0, 0, 0, 1);
        list[20] = 1;
        assert_eq!(sense_of(&send_as(&unit, "a", &cdb, &list)), (2, 0x04, 0));
    }

    #[test]
    fn nobody_but_another_change_waits_while_one_is_kept() {
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel();
        let may_go_on = parking_lot::Mutex::new(may_go_on);
        let keep = move |_: &_| {
            begun.send(()).unwrap();
            may_go_on.lock().recv().unwrap();
            Ok(())
        };
        let unit = LogicalUnit::new(MemoryDisk::new(MAPPED_BYTES), super::super::testing::options(), Box::new(keep));
        let (cdb, mut list) = out(0, 0, 0, 1);
        list[20] = 1;
        std::thread::scope(|scope| {
            let keeping = scope.spawn(|| send_as(&unit, "a", &cdb, &list).status);
            has_begun.recv().unwrap();
            unit.join(&nexus("b"));
            assert_eq!(sense_of(&send_as(&unit, "b", &[0; 6], &[])), (6, 0x29, 0));
            assert_eq!(send_as(&unit, "b", &[0; 6], &[]).status, Status::Good);
            assert_eq!(send_as(&unit, "b", &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[]).data, [0; 8], "nothing is done before it is kept");
            unit.reset();
            unit.leave(&nexus("b"));
            go_on.send(()).unwrap();
            assert_eq!(keeping.join().unwrap(), Status::Good);
        });
        assert_eq!(send_as(&unit, "a", &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[]).data[8..], 1u64.to_be_bytes());
    }

    #[test]
    fn what_may_be_there_after_a_restart_is_kept_anew_with_the_next_change() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};
        let tried = Arc::new(AtomicU32::new(0));
        let count = tried.clone();
        let keep = move |_: &_| match count.fetch_add(1, Ordering::Relaxed) {
            0 => Err(NotKept::Uncertain),
            1 => Err(NotKept::Unchanged),
            _ => Ok(()),
        };
        let unit = LogicalUnit::new(MemoryDisk::new(MAPPED_BYTES), super::super::testing::options(), Box::new(keep));
        let register = |new_key, keep| {
            let (cdb, mut list) = out(6, 0, 0, new_key);
            list[20] = keep;
            (sense_of(&send_as(&unit, "a", &cdb, &list)), tried.load(Ordering::Relaxed))
        };
        assert_eq!(register(1, 1), ((4, 0x44, 0), 1));
        // The state asks for nothing to be kept, as before. But something may be kept already, so it is kept again.
        assert_eq!(register(2, 0), ((4, 0x44, 0), 2));
        assert_eq!(register(3, 0), ((0, 0, 0), 3));
        assert_eq!(register(4, 0), ((0, 0, 0), 3));
    }

    #[test]
    fn what_cannot_be_kept_is_not_done() {
        let disk = MemoryDisk::new(MAPPED_BYTES);
        let unit = LogicalUnit::new(disk, super::super::testing::options(), Box::new(|_| Err(NotKept::Unchanged)));
        let (cdb, mut list) = out(0, 0, 0, 1);
        list[20] = 1;
        assert_eq!(sense_of(&send_as(&unit, "a", &cdb, &list)), (4, 0x44, 0));
        assert_eq!(send_as(&unit, "a", &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[]).data, [0; 8]);
        list[20] = 8;
        assert_eq!(sense_of(&send_as(&unit, "a", &cdb, &list)), (5, 0x26, 0));
        assert_eq!(sense_of(&send_as(&unit, "a", &cdb, &list[..23])), (5, 0x1a, 0));
    }
}
