//! State that survives restarts, passed between a logical unit and the store.

use crate::failure::{Failure, Result};
use onefold_engine::Engine;
use onefold_iscsi::scsi::reservation::{Reservation, Reservations, Type};
use onefold_iscsi::scsi::{Keep, KeepSanitize, Nexus, NotKept, Sanitize};
use onefold_targets::{
    KeptReservation, KeptReservations, KeptSanitize, Port, TargetError, keep_reservations, keep_sanitize, kept_reservations, kept_sanitize,
};
use std::sync::Arc;

/// Returns the stored reservations of a volume. Unreadable reservations are an error: an initiator that they exclude
/// must not be let in.
pub(super) fn reservations(engine: &Engine, volume: u32) -> Result<Reservations> {
    let Some(kept) = kept_reservations(engine, volume)? else { return Ok(Reservations::default()) };
    let nexus = |port: Port| Nexus { initiator: port.initiator, target_port: port.target_port };
    let reservation = match kept.reservation {
        None => None,
        Some(KeptReservation { kind, holder }) => {
            let kind =
                Type::from_number(kind).ok_or_else(|| Failure::failed(format!("it has a reservation of the unknown type {kind}")))?;
            Some(Reservation { kind, holder: nexus(holder) })
        }
    };
    let registrations = kept.registrations.into_iter().map(|(port, key)| (nexus(port), key)).collect();
    Ok(Reservations::restored(registrations, reservation))
}

/// Returns a function that stores the reservations of a volume durably, before the command that changed them is
/// answered.
pub(super) fn reservations_keeper(engine: Arc<Engine>, volume: u32) -> Keep {
    let port = |nexus: &Nexus| Port { initiator: nexus.initiator.clone(), target_port: nexus.target_port };
    Box::new(move |reservations| {
        let kept = reservations.kept().filter(|(registrations, _)| !registrations.is_empty());
        let kept = kept.map(|(registrations, reservation)| KeptReservations {
            registrations: registrations.iter().map(|(nexus, key)| (port(nexus), *key)).collect(),
            reservation: reservation.map(|reservation| KeptReservation { kind: reservation.kind as u8, holder: port(&reservation.holder) }),
        });
        keep_reservations(&engine, volume, kept.as_ref()).map_err(|error| {
            tracing::error!("reservations of volume {volume} cannot be stored: {error}");
            not_kept(&error)
        })
    })
}

/// Returns the unfinished erasure of a volume.
pub(super) fn sanitize(engine: &Engine, volume: u32) -> Result<Option<Sanitize>> {
    let kept = kept_sanitize(engine, volume)?;
    Ok(kept.map(|KeptSanitize { pattern, allows_exit, has_failed }| Sanitize { pattern, allows_exit, has_failed }))
}

/// Returns a function that stores the erasures of a volume durably, before the command that requests one is answered.
pub(super) fn sanitize_keeper(engine: Arc<Engine>, volume: u32) -> KeepSanitize {
    Box::new(move |sanitize| {
        let kept = sanitize.map(|sanitize| KeptSanitize {
            pattern: sanitize.pattern.clone(),
            allows_exit: sanitize.allows_exit,
            has_failed: sanitize.has_failed,
        });
        keep_sanitize(&engine, volume, kept.as_ref()).map_err(|error| {
            tracing::error!("the state of an erasure of volume {volume} cannot be stored: {error}");
            not_kept(&error)
        })
    })
}

fn not_kept(error: &TargetError) -> NotKept {
    if matches!(error, TargetError::NotDurable(_)) { NotKept::Uncertain } else { NotKept::Unchanged }
}
