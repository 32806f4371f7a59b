//! Persistent reservations that survive restarts (APTPL; `docs/format.md` section 7.10).

use crate::durable::make_durable;
use crate::error::{Result, TargetError};
use crate::keys::{PARTITION, RESERVATIONS, key};
use crate::record::{VERSION, check_version, choice, text};
use onefold_engine::Engine;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};

/// Most registrations of one volume.
const MAX_REGISTRATIONS: usize = 4096;

/// An initiator port, and the target port through which it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The initiator's name and ISID, as `name,i,0x` and hexadecimal digits.
    pub initiator: String,
    /// The number of the target port.
    pub target_port: u16,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReservation {
    /// Its type, with the numbers of SPC-4.
    pub kind: u8,
    /// Its holder.
    pub holder: Port,
}

/// The persistent reservations of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptReservations {
    /// Registered ports with their keys.
    pub registrations: Vec<(Port, u64)>,
    /// The reservation.
    pub reservation: Option<KeptReservation>,
}

impl KeptReservations {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.registrations.len() as u64);
        for (port, key) in &self.registrations {
            port.encode(&mut out);
            out.extend_from_slice(&key.to_le_bytes());
        }
        out.push(u8::from(self.reservation.is_some()));
        if let Some(reservation) = &self.reservation {
            out.push(reservation.kind);
            reservation.holder.encode(&mut out);
        }
        out
    }

    pub(crate) fn decode(volume: u32, value: &[u8]) -> Result<KeptReservations> {
        let object = || format!("the record of the reservations of volume {volume}");
        KeptReservations::read(value).map_err(|error| TargetError::Damaged { object: object(), reason: error.to_string() })
    }

    fn read(value: &[u8]) -> std::result::Result<KeptReservations, WireError> {
        let mut reader = Reader::new(value);
        check_version(&mut reader)?;
        let mut kept = KeptReservations::default();
        let offset_bytes = reader.position();
        let count = reader.count("registrations", 11)?;
        if count > MAX_REGISTRATIONS {
            return Err(WireError::OutOfRange { what: "registrations", value: count as u64, offset_bytes });
        }
        for _ in 0..count {
            let port = Port::read(&mut reader)?;
            kept.registrations.push((port, reader.u64()?));
        }
        if choice(&mut reader, "reservation", 1)? == 1 {
            let kind = choice(&mut reader, "type", 8)?;
            kept.reservation = Some(KeptReservation { kind, holder: Port::read(&mut reader)? });
        }
        reader.end()?;
        Ok(kept)
    }
}

impl Port {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.initiator.as_bytes());
        out.extend_from_slice(&self.target_port.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> std::result::Result<Port, WireError> {
        Ok(Port { initiator: text(reader, "initiator")?, target_port: reader.u16()? })
    }
}

/// Returns the stored reservations of a volume. `None`: there are none.
pub fn kept_reservations(engine: &Engine, volume: u32) -> Result<Option<KeptReservations>> {
    let value = engine.get(PARTITION, &key(RESERVATIONS, volume))?;
    value.map(|value| KeptReservations::decode(volume, &value)).transpose()
}

/// Stores the reservations of a volume, or with `None` removes them. Durable on return. After an error the state is as
/// before, except after [`TargetError::NotDurable`].
pub fn keep_reservations(engine: &Engine, volume: u32, kept: Option<&KeptReservations>) -> Result<()> {
    make_durable(engine, vec![(PARTITION, key(RESERVATIONS, volume), kept.map(KeptReservations::encode))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reservations_are_read_as_written(registrations in proptest::collection::vec(("[a-z]{0,9}", any::<u16>(), any::<u64>()), 0..4), kind in proptest::option::of(0u8..9)) {
            let port = |(initiator, target_port, key)| (Port { initiator, target_port }, key);
            let registrations: Vec<_> = registrations.into_iter().map(port).collect();
            let holder = Port { initiator: "h".into(), target_port: 1 };
            let kept = KeptReservations { registrations, reservation: kind.map(|kind| KeptReservation { kind, holder }) };
            prop_assert_eq!(KeptReservations::read(&kept.encode()).unwrap(), kept);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = KeptReservations::read(&bytes);
        }
    }
}
