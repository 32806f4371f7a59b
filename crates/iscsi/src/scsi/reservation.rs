//! Decides who may use a logical unit: persistent reservations (SPC-4 sections 5.13, 6.15, 6.16) and the older RESERVE
//! and RELEASE (SPC-2).
//!
//! A pure state machine: what a command does to registrations and the reservation, and who must be told. The caller
//! stores it over restarts, and checks [`Reservations::kept`] after each change.

use super::opcodes::Access;
use super::sense::{Code, Key, Sense};
use std::collections::BTreeMap;

/// An initiator port and the target port it uses: the owner of a registration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nexus {
    /// TransportID of the initiator port: for iSCSI `name,i,0x` and the ISID in hexadecimal (RFC 7143 section 4.2.7).
    pub initiator: String,
    /// Relative identifier of the target port.
    pub target_port: u16,
}

/// Types of persistent reservations (SPC-4 table 65).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Type {
    /// Others may read.
    WriteExclusive = 1,
    /// Others may do nothing.
    ExclusiveAccess = 3,
    /// Registrants may do everything, others may read.
    WriteExclusiveRegistrants = 5,
    /// Registrants may do everything, others nothing.
    ExclusiveAccessRegistrants = 6,
    /// The same as 5, and every registrant holds it.
    WriteExclusiveAll = 7,
    /// The same as 6, and every registrant holds it.
    ExclusiveAccessAll = 8,
}

impl Type {
    /// Returns the type with this number.
    pub fn from_number(number: u8) -> Option<Type> {
        use Type::*;
        [WriteExclusive, ExclusiveAccess, WriteExclusiveRegistrants, ExclusiveAccessRegistrants, WriteExclusiveAll, ExclusiveAccessAll]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }

    /// Returns whether all registrants hold it.
    fn is_of_all(self) -> bool {
        matches!(self, Type::WriteExclusiveAll | Type::ExclusiveAccessAll)
    }

    /// Returns whether all registrants may do what the holder may.
    fn is_for_registrants(self) -> bool {
        self.is_of_all() || matches!(self, Type::WriteExclusiveRegistrants | Type::ExclusiveAccessRegistrants)
    }

    fn lets_others_read(self) -> bool {
        matches!(self, Type::WriteExclusive | Type::WriteExclusiveRegistrants | Type::WriteExclusiveAll)
    }
}

/// The supported types in the format of REPORT CAPABILITIES (SPC-4 table 221).
pub const TYPE_MASK: [u8; 2] = [0xea, 0x01];

/// A persistent reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// How it restricts others.
    pub kind: Type,
    /// The initiator that made it. Without a meaning if all registrants hold it.
    pub holder: Nexus,
}

/// The reason why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
    /// BUSY: the command might have to wait for long.
    Busy,
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Refusal {
        Refusal::Check(sense)
    }
}

/// The parameters of a PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The service action.
    pub action: u8,
    /// The scope. Only 0, the whole unit, exists.
    pub scope: u8,
    /// The type.
    pub kind: u8,
    /// RESERVATION KEY.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub new_key: u64,
    /// Whether to keep it over restarts.
    pub keep: bool,
}

/// An initiator to tell of a change by a unit attention.
pub type Attention = (Nexus, Code);

/// The most registrations of a unit.
pub const MAX_REGISTRATIONS: usize = 1024;

/// The reservations of a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    registrations: BTreeMap<Nexus, u64>,
    reservation: Option<Reservation>,
    generation: u32,
    is_kept: bool,
    /// The holder of a reservation by RESERVE.
    legacy: Option<Nexus>,
}

impl Reservations {
    /// Returns the reservations that were stored before a restart.
    pub fn restored(registrations: BTreeMap<Nexus, u64>, reservation: Option<Reservation>) -> Reservations {
        Reservations { registrations, reservation, generation: 0, is_kept: true, legacy: None }
    }

    /// Returns what must survive a restart: registrations and reservation, or nothing.
    pub fn kept(&self) -> Option<(&BTreeMap<Nexus, u64>, Option<&Reservation>)> {
        self.is_kept.then_some((&self.registrations, self.reservation.as_ref()))
    }

    /// Returns the number of changes of registrations since the start (PRGENERATION).
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The keys, one for each registration.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.registrations.values().copied()
    }

    /// All registrations.
    pub fn registrations(&self) -> impl Iterator<Item = (&Nexus, u64)> {
        self.registrations.iter().map(|(nexus, key)| (nexus, *key))
    }

    /// The reservation.
    pub fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    /// Returns whether the last change asked for survival over restarts.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Returns whether a nexus is registered and holds the reservation.
    pub fn is_holder(&self, nexus: &Nexus) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| {
            if reservation.kind.is_of_all() { self.registrations.contains_key(nexus) } else { reservation.holder == *nexus }
        })
    }

    /// Returns the key that READ RESERVATION reports: 0 if all registrants hold it.
    pub fn holders_key(&self) -> u64 {
        let holder = self.reservation.as_ref().filter(|reservation| !reservation.kind.is_of_all()).map(|reservation| &reservation.holder);
        holder.and_then(|holder| self.registrations.get(holder)).copied().unwrap_or_default()
    }

    /// Returns whether reservations allow a command of `nexus`.
    pub fn allows(&self, nexus: &Nexus, access: Access) -> bool {
        if matches!(access, Access::Free | Access::Own) {
            return true;
        }
        if self.legacy.as_ref().is_some_and(|holder| holder != nexus) {
            return false;
        }
        let Some(reservation) = &self.reservation else { return true };
        let is_registered = self.registrations.contains_key(nexus);
        self.is_holder(nexus)
            || (is_registered && reservation.kind.is_for_registrants())
            || (access == Access::Read && reservation.kind.lets_others_read())
    }

    /// Returns whether PERSISTENT RESERVE IN and OUT are allowed. They are refused while any initiator holds the unit
    /// by RESERVE, even the same one (SPC-2 section 5.5.1).
    pub fn allows_persistent(&self) -> bool {
        self.legacy.is_none()
    }

    /// RESERVE(6) and RESERVE(10). Refused while there are registrations (SPC-4 section 5.13.3).
    pub fn reserve(&mut self, nexus: &Nexus) -> Result<(), Refusal> {
        if !self.registrations.is_empty() || self.legacy.as_ref().is_some_and(|holder| holder != nexus) {
            return Err(Refusal::Conflict);
        }
        self.legacy = Some(nexus.clone());
        Ok(())
    }

    /// RELEASE(6) and RELEASE(10). Has no effect unless the initiator holds the reservation.
    pub fn release(&mut self, nexus: &Nexus) -> Result<(), Refusal> {
        if !self.registrations.is_empty() {
            return Err(Refusal::Conflict);
        }
        self.legacy = self.legacy.take().filter(|holder| holder != nexus);
        Ok(())
    }

    /// Removes what RESERVE gave to a nexus that is gone. Persistent reservations stay.
    pub fn lose_nexus(&mut self, nexus: &Nexus) {
        self.legacy = self.legacy.take().filter(|holder| holder != nexus);
    }

    /// The unit was reset.
    pub fn reset(&mut self) {
        self.legacy = None;
    }

    /// PERSISTENT RESERVE OUT. Returns who must be told. Errors: nothing was changed.
    pub fn change(&mut self, nexus: &Nexus, request: Request) -> Result<Vec<Attention>, Refusal> {
        if !self.allows_persistent() {
            return Err(Refusal::Conflict);
        }
        match request.action {
            0x00 => self.register(nexus, request, false),
            0x06 => self.register(nexus, request, true),
            action => {
                if self.registrations.get(nexus) != Some(&request.key) {
                    return Err(Refusal::Conflict);
                }
                match action {
                    0x01 => self.take(nexus, request).map(|()| Vec::new()),
                    0x02 => self.give_up(nexus, request),
                    0x03 => Ok(self.clear(nexus)),
                    0x04 | 0x05 => self.preempt(nexus, request),
                    // Moving a reservation is not offered.
                    _ => Err(Sense::invalid_field(1, Some(4)).into()),
                }
            }
        }
    }

    fn register(&mut self, nexus: &Nexus, request: Request, ignore_key: bool) -> Result<Vec<Attention>, Refusal> {
        let before = self.registrations.get(nexus).copied();
        if !ignore_key && before.unwrap_or_default() != request.key {
            return Err(Refusal::Conflict);
        }
        let mut heard = Vec::new();
        match (before, request.new_key) {
            // There was no registration and there will be none. Initiators that are not registered must not decide
            // whether others' registrations are kept.
            (None, 0) => return Ok(heard),
            (Some(_), 0) => {
                heard = self.unregister(nexus);
            }
            (None, _) if self.registrations.len() >= MAX_REGISTRATIONS => {
                return Err(Sense::new(Key::IllegalRequest, Code::INSUFFICIENT_REGISTRATION_RESOURCES).into());
            }
            (_, key) => {
                self.registrations.insert(nexus.clone(), key);
            }
        }
        self.is_kept = request.keep;
        self.count_change();
        Ok(heard)
    }

    /// Removes a registration, and the reservation with it if nobody holds it any more. Returns those who shared it, to
    /// be told.
    fn unregister(&mut self, nexus: &Nexus) -> Vec<Attention> {
        let held = self.is_holder(nexus);
        self.registrations.remove(nexus);
        let Some(reservation) = self.reservation.clone().filter(|_| held) else { return Vec::new() };
        if reservation.kind.is_of_all() && !self.registrations.is_empty() {
            return Vec::new();
        }
        self.reservation = None;
        if reservation.kind.is_for_registrants() { self.others(nexus, Code::RESERVATIONS_RELEASED) } else { Vec::new() }
    }

    fn take(&mut self, nexus: &Nexus, request: Request) -> Result<(), Refusal> {
        let kind = self.wanted(request)?;
        match &self.reservation {
            // An equal reservation changes nothing.
            Some(reservation) if self.is_holder(nexus) && reservation.kind == kind => Ok(()),
            Some(_) => Err(Refusal::Conflict),
            None => {
                self.reservation = Some(Reservation { kind, holder: nexus.clone() });
                Ok(())
            }
        }
    }

    fn give_up(&mut self, nexus: &Nexus, request: Request) -> Result<Vec<Attention>, Refusal> {
        let kind = self.wanted(request)?;
        let Some(reservation) = self.reservation.clone().filter(|_| self.is_holder(nexus)) else {
            return Ok(Vec::new());
        };
        if reservation.kind != kind {
            return Err(Sense::new(Key::IllegalRequest, Code::INVALID_RELEASE_OF_PERSISTENT_RESERVATION).into());
        }
        self.reservation = None;
        Ok(if kind.is_for_registrants() { self.others(nexus, Code::RESERVATIONS_RELEASED) } else { Vec::new() })
    }

    fn clear(&mut self, nexus: &Nexus) -> Vec<Attention> {
        let heard = self.others(nexus, Code::RESERVATIONS_PREEMPTED);
        self.registrations.clear();
        self.reservation = None;
        self.count_change();
        heard
    }

    fn preempt(&mut self, nexus: &Nexus, request: Request) -> Result<Vec<Attention>, Refusal> {
        let holder = self.reservation.clone();
        let is_of_all = holder.as_ref().is_some_and(|reservation| reservation.kind.is_of_all());
        // A key of 0 takes the reservation from all its holders (SPC-4 table 67).
        let takes_reservation = match &holder {
            Some(_) if is_of_all => request.new_key == 0,
            Some(reservation) => self.registrations.get(&reservation.holder) == Some(&request.new_key),
            None => false,
        };
        if request.new_key == 0 && !is_of_all {
            return Err(Sense::invalid_parameter(8).into());
        }
        let kind = if takes_reservation { Some(self.wanted(request)?) } else { None };
        let goes = |other: &Nexus, key: u64| other != nexus && (key == request.new_key || (takes_reservation && is_of_all));
        let gone: Vec<Nexus> = self.registrations().filter(|(other, key)| goes(other, *key)).map(|(other, _)| other.clone()).collect();
        let names_own = self.registrations.get(nexus) == Some(&request.new_key);
        if gone.is_empty() && !takes_reservation && !names_own {
            return Err(Refusal::Conflict);
        }
        let mut heard: Vec<Attention> = gone.iter().map(|other| (other.clone(), Code::REGISTRATIONS_PREEMPTED)).collect();
        self.registrations.retain(|other, _| !gone.contains(other));
        if let (Some(kind), Some(old)) = (kind, holder) {
            self.reservation = Some(Reservation { kind, holder: nexus.clone() });
            if old.kind != kind && old.kind.is_for_registrants() {
                heard.extend(self.others(nexus, Code::RESERVATIONS_RELEASED));
            }
        }
        self.count_change();
        Ok(heard)
    }

    fn wanted(&self, request: Request) -> Result<Type, Sense> {
        if request.scope != 0 {
            return Err(Sense::invalid_field(2, Some(7)));
        }
        Type::from_number(request.kind).ok_or(Sense::invalid_field(2, Some(3)))
    }

    fn others(&self, nexus: &Nexus, code: Code) -> Vec<Attention> {
        self.registrations.keys().filter(|other| *other != nexus).map(|other| (other.clone(), code)).collect()
    }

    fn count_change(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests;
