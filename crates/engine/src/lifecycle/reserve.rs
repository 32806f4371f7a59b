//! Space that is reserved for freeing space (`docs/decisions/0033-a-reserve-for-freeing-room.md`).
//!
//! Everything that the engine writes may use the reserve, except space in containers for new data
//! (`onefold_ground::reserve` says how the two are told apart). Once the reserve is in use, [`Engine::admit_data`]
//! refuses new data. So the remaining space goes to work that frees space or ends something: discards, removals,
//! merges, the log and the indexes behind them, closing.

use crate::lifecycle::settings::Settings;
use crate::{Engine, EngineError, Mode, Result};
use onefold_ground::{Ground, Reserve, ReservedGround};
use std::sync::Arc;

/// The file (`docs/format.md` section 1).
pub(crate) const RESERVE: &str = "reserve";
/// The reserve of a small store, bytes.
const LEAST_BYTES: u64 = 8 << 20;
/// The reserve is the stored bytes divided by this. The indexes grow with the stored data.
const SHARE: u64 = 8;

/// Returns the ground with its reserve, if the settings want one.
pub(crate) fn over(ground: Arc<dyn Ground>, settings: &Settings, mode: Mode) -> (Arc<dyn Ground>, Option<Arc<Reserve>>) {
    if mode != Mode::ReadWrite {
        return (ground, None);
    }
    if settings.reserve_bytes == 0 {
        // A reserve left by another setting becomes free space.
        let _ = ground.remove(RESERVE);
        return (ground, None);
    }
    let reserve = Arc::new(Reserve::open(&ground, RESERVE));
    (Arc::new(ReservedGround::new(ground, reserve.clone())), Some(reserve))
}

impl Engine {
    /// Lets a writer of data in, as [`Engine::admit`] does, unless the remaining space is reserved for freeing space.
    pub(crate) fn admit_data(&self) -> Result<()> {
        self.check_room()?;
        if self.settings.share.is_some() && !self.outbox.has_delivered_once() {
            // Until then a look-up at their owners does not find what this node has.
            self.deliver()?;
        }
        self.admit()
    }

    /// Returns an error if the remaining space is reserved for freeing space. Called before adding anything that does
    /// not come through a stream.
    pub fn check_room(&self) -> Result<()> {
        if self.is_reserve_in_use() {
            // Space may have been freed since maintenance looked.
            self.keep_reserve();
        }
        if self.is_reserve_in_use() {
            return Err(EngineError::Full { place: self.ground.describe("") });
        }
        Ok(())
    }

    /// Checks the same. If there is a reserve, also checks that `bytes` are free beside it: for writes that do not ask
    /// for their space first.
    pub(crate) fn check_room_beside_reserve(&self, bytes: u64) -> Result<()> {
        self.check_room()?;
        if self.reserve.is_some() && self.ground.space()?.free_bytes < bytes {
            return Err(EngineError::Full { place: self.ground.describe("") });
        }
        Ok(())
    }

    /// Returns whether the disk is so full that the reserve is in use. The engine takes no new data until the reserve
    /// is complete again.
    pub fn is_reserve_in_use(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.is_in_use())
    }

    /// Returns the bytes reserved for freeing space.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserve.as_ref().map_or(0, |reserve| reserve.held_bytes())
    }

    /// Adjusts the reserve to the size that the stored data needs, if there is space.
    pub(crate) fn keep_reserve(&self) {
        let Some(reserve) = &self.reserve else { return };
        // Levels free space by writing a table again.
        let table = self.levels.as_ref().map_or(0, |levels| levels.largest_table_bytes());
        let wanted = self.settings.reserve_bytes.min((self.stored_bytes() / SHARE).max(LEAST_BYTES)) + table;
        let was_in_use = reserve.is_in_use();
        match reserve.keep(wanted) {
            Ok(true) if was_in_use => tracing::info!("the disk has space again: the reserve is complete, and new data is stored"),
            Ok(is_whole) => {
                if !is_whole && !was_in_use && !self.background.is_closed() {
                    tracing::warn!("the disk has no space for the reserve; no new data is stored until it has");
                }
            }
            Err(error) => tracing::warn!(%error, "the reserve cannot be created"),
        }
    }
}
