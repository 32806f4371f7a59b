//! The server's side of backups (M3.1, M3.2): contents go into chunks, steps into trees, and sealed pieces come out.
//!
//! # What a client can learn and reach
//! * It reads only backups that its account may read, through pieces sealed for that reading ([`super::Seal`]).
//! * It is told that a chunk is known only if it could read the chunk anyway ([`contents`]). Whether the store has
//!   another chunk changes no answer.
//! * Errors of the store reach it without fingerprints and addresses; the server's log has them.

mod backup;
mod blur;
mod contents;
mod guest;
mod listing;
mod reading;
mod unfinished;

pub use guest::{Guest, Observer, Unobserved};
pub use unfinished::{Unfinished, forget_all, parse as parse_unfinished};

use super::messages::{codes, services};
use crate::accounts::Permission;
use crate::transport::{Channel, ChannelError};
use onefold_catalog::{Catalog, CatalogError};
use onefold_engine::EngineError;
use onefold_ground::wire::WireError;

/// Why a channel ends before its time.
#[derive(Debug)]
pub(crate) enum End {
    /// The other end is gone.
    Gone(ChannelError),
    /// The server refuses to go on.
    Refused {
        /// One of [`codes`].
        code: u16,
        /// For the client.
        text: String,
    },
}

pub(crate) type Result<T> = std::result::Result<T, End>;

impl From<ChannelError> for End {
    fn from(error: ChannelError) -> End {
        End::Gone(error)
    }
}

impl From<WireError> for End {
    fn from(error: WireError) -> End {
        End::malformed(error.to_string())
    }
}

impl From<EngineError> for End {
    fn from(error: EngineError) -> End {
        tracing::warn!(%error, "a client of the backup server could not be served");
        let text = match &error {
            error if error.is_full() => "the store is full",
            EngineError::Misnamed { .. } => return End::refused(codes::MISNAMED, "a chunk has another name than its bytes"),
            error if error.is_damage() => "a part of the store is damaged",
            _ => "the store failed",
        };
        End::refused(codes::STORE, format!("{text}; the server's log says more"))
    }
}

impl From<CatalogError> for End {
    fn from(error: CatalogError) -> End {
        match error {
            CatalogError::Engine(error) => error.into(),
            CatalogError::Damaged { .. } | CatalogError::Rest { .. } => {
                tracing::warn!(%error, "a client of the backup server could not be served");
                End::refused(codes::DAMAGED, "a part of the earlier backup is damaged; the server's log says more")
            }
            error => End::malformed(error.to_string()),
        }
    }
}

impl End {
    fn refused(code: u16, text: impl Into<String>) -> End {
        End::Refused { code, text: text.into() }
    }

    fn malformed(why: impl Into<String>) -> End {
        End::refused(codes::MALFORMED, why)
    }

    /// The client's picture of the earlier backup is not that of the server.
    fn stale() -> End {
        End::refused(codes::STALE, "the client's copy of the earlier backup's tree is stale")
    }

    /// The answer to everything that an account may not know of.
    fn forbidden(permission: Permission) -> End {
        End::refused(
            codes::FORBIDDEN,
            format!("there is no such backup, or the account lacks the permission `{}` for it", permission.name()),
        )
    }
}

/// Serves a channel of a backup, its contents or a reading. Returns false if the service is another one.
pub fn serve(catalog: &Catalog, guest: &Guest, service: u8, opening: &[u8], channel: &Channel) -> bool {
    let served = match service {
        services::BACKUP => backup::serve(catalog, guest, opening, channel),
        services::CONTENTS => contents::serve(guest, opening, channel),
        services::READ => reading::serve(catalog, guest, opening, channel),
        services::LIST => listing::serve(catalog, guest, opening, channel),
        _ => return false,
    };
    match served {
        Ok(()) => channel.finish(),
        Err(End::Gone(error)) => tracing::debug!(%error, "a client went away"),
        Err(End::Refused { code, text }) => channel.cancel_with(code, &text),
    }
    true
}
