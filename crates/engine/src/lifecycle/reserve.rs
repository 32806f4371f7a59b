//! Room that is kept for freeing room (`docs/decisions/0033-a-reserve-for-freeing-room.md`).
//!
//! Everything that the engine writes may use the reserve, except the room of containers for new data (`onefold_ground::reserve` says how that is
//! told apart). Once it is in use, [`Engine::admit_data`] refuses new data, so what is left goes to what frees room or ends: discards, removals,
//! merges, the log and the indexes behind them, closing.

use crate::lifecycle::settings::Settings;
use crate::{Engine, EngineError, Mode, Result};
use onefold_ground::{Ground, Reserve, ReservedGround};
use std::sync::Arc;

/// The file (`docs/format.md` section 1).
pub(crate) const RESERVE: &str = "reserve";
/// What a small store keeps, bytes.
const LEAST_BYTES: u64 = 8 << 20;
/// The share of what is stored that is kept: one in so many bytes. The indexes grow with what is stored.
const SHARE: u64 = 8;

/// The ground with its reserve, if the settings want one.
pub(crate) fn over(ground: Arc<dyn Ground>, settings: &Settings, mode: Mode) -> (Arc<dyn Ground>, Option<Arc<Reserve>>) {
    if mode != Mode::ReadWrite {
        return (ground, None);
    }
    if settings.reserve_bytes == 0 {
        // One that another setting left is room for everybody.
        let _ = ground.remove(RESERVE);
        return (ground, None);
    }
    let reserve = Arc::new(Reserve::open(&ground, RESERVE));
    (Arc::new(ReservedGround::new(ground, reserve.clone())), Some(reserve))
}

impl Engine {
    /// Lets a writer of data in, as [`Engine::admit`] does, unless what is left of the disk is for freeing room.
    pub(crate) fn admit_data(&self) -> Result<()> {
        self.check_room()?;
        self.admit()
    }

    /// Returns an error if what is left of the disk is for freeing room. Called before anything is added that does not come through a stream.
    pub fn check_room(&self) -> Result<()> {
        if self.is_reserve_in_use() {
            // There may be room again since maintenance looked.
            self.keep_reserve();
        }
        if self.is_reserve_in_use() {
            return Err(EngineError::Full { place: self.ground.describe("") });
        }
        Ok(())
    }

    /// The same, and where there is a reserve so many bytes must be free beside it: for what is written without asking for its room first.
    pub(crate) fn check_room_beside_reserve(&self, bytes: u64) -> Result<()> {
        self.check_room()?;
        if self.reserve.is_some() && self.ground.space()?.free_bytes < bytes {
            return Err(EngineError::Full { place: self.ground.describe("") });
        }
        Ok(())
    }

    /// Whether the disk is so full that the reserve is in use: no new data is taken until it is whole again.
    pub fn is_reserve_in_use(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.is_in_use())
    }

    /// Bytes that are kept for freeing room.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserve.as_ref().map_or(0, |reserve| reserve.held_bytes())
    }

    /// Makes the reserve as large as it should be for what is stored, where there is room.
    pub(crate) fn keep_reserve(&self) {
        let Some(reserve) = &self.reserve else { return };
        let wanted = self.settings.reserve_bytes.min((self.stored_bytes() / SHARE).max(LEAST_BYTES));
        let was_in_use = reserve.is_in_use();
        match reserve.keep(wanted) {
            Ok(true) if was_in_use => tracing::info!("there is room again: the reserve for freeing room is whole, new data is taken"),
            Ok(is_whole) => {
                if !is_whole && !was_in_use && !self.background.is_closed() {
                    tracing::warn!("the disk has no room for the reserve that frees room; no new data is taken until it has");
                }
            }
            Err(error) => tracing::warn!(%error, "the reserve for freeing room cannot be made"),
        }
    }
}
