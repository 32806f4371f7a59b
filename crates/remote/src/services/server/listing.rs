//! The records of the backups that an account may read.

use super::guest::Guest;
use super::{End, Result};
use crate::services::messages::{Listed, Records};
use crate::transport::Channel;
use onefold_catalog::{Backup, Catalog};

/// Records in a message, if they fit one.
const TOGETHER: usize = 64;

pub(super) fn serve(catalog: &Catalog, guest: &Guest, opening: &[u8], channel: &Channel) -> Result<()> {
    if !opening.is_empty() {
        return Err(End::malformed("a list has no opening"));
    }
    let (backups, damage) = guest.scope(catalog)?.list_sound()?;
    let send = |listed: &Listed| {
        let (kind, payload) = listed.encode();
        let fits = payload.len() <= channel.payload_limit();
        if fits { channel.send(kind, payload).map(|()| true) } else { Ok(false) }
    };
    let reads_everything = guest.reads_everything();
    // How it was made may be long, and is not for lists.
    let plain = |backup: Backup| Guest::shown_to(reads_everything, Backup { options: String::new(), ..backup });
    let backups: Vec<Backup> = backups.into_iter().map(plain).collect();
    for shown in backups.chunks(TOGETHER) {
        if send(&Listed::Records(Records(shown.to_vec())))? {
            continue;
        }
        for backup in shown {
            if !send(&Listed::Records(Records(vec![backup.clone()])))? {
                send(&Listed::Records(Records(vec![Backup { paths: Vec::new(), ..backup.clone() }])))?;
            }
        }
    }
    if let Some(error) = damage {
        tracing::warn!(%error, "a list of backups is not complete");
        send(&Listed::Missing)?;
    }
    Ok(())
}
