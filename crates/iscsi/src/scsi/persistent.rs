//! PERSISTENT RESERVE IN and OUT of a logical unit (SPC-4 sections 6.15 and 6.16): their data; what they mean is in [`reservation`](super::reservation).

use super::reservation::{MAX_REGISTRATIONS, Nexus, Refusal, Request, TYPE_MASK};
use super::sense::{Code, Key, Sense};
use super::unit::LogicalUnit;
use super::{u32_at, u64_at};

impl LogicalUnit {
    pub(super) fn persistent_in(&self, nexus: &Nexus, cdb: &[u8]) -> Result<Vec<u8>, Refusal> {
        let state = self.state.lock();
        let reservations = &state.reservations;
        if !reservations.allows_persistent_in(nexus) {
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
                // Compatible with RESERVE and RELEASE no; all target ports no; kept over power loss yes, types are listed.
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

    pub(super) fn persistent_out(&self, nexus: &Nexus, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, Refusal> {
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
        let mut state = self.state.lock();
        let mut next = state.reservations.clone();
        let heard = next.change(nexus, request)?;
        if next.kept() != state.reservations.kept()
            && let Err(_why) = (self.keep)(&next)
        {
            return Err(Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE).into());
        }
        debug_assert!(next.keys().count() <= MAX_REGISTRATIONS);
        state.reservations = next;
        heard.into_iter().for_each(|(other, code)| state.attend(&other, code));
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
