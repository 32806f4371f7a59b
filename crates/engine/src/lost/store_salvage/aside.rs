//! Keeps the old state of everything that a repair changes, in the set-aside directory of this run (`log/damaged-...`).

use super::Work;
use crate::Result;
use onefold_ground::{Access, File};
use std::sync::Arc;

/// Bytes copied at a time.
const PART_BYTES: u64 = 1 << 20;

impl Work<'_> {
    /// Keeps a copy of a file that is about to be changed. Durable on return. A missing file needs none. An unreadable
    /// file is copied as far as it can be read. Each file is copied once per run: a later change finds the older state
    /// kept already.
    pub(super) fn set_aside(&mut self, path: &str) -> Result<()> {
        if !self.sets_aside {
            return Ok(());
        }
        let from = match self.ground.open(path, Access::Read) {
            Err(error) if error.is_not_found() => return Ok(()),
            opened => opened?,
        };
        let aside = self.aside();
        let kept = format!("{aside}/{}", path.replace('/', "-"));
        if self.ground.exists(&kept)? {
            return Ok(());
        }
        self.ground.create_directory(&aside)?;
        let temporary = format!("{kept}.new");
        if self.ground.exists(&temporary)? {
            self.ground.remove(&temporary)?;
        }
        let copied = copy(&*from, &self.ground.create(&temporary)?);
        if let Err(error) = copied {
            // On a full disk others need its space.
            let _ = self.ground.remove(&temporary);
            return Err(error);
        }
        self.ground.rename(&temporary, &kept)?;
        Ok(self.ground.sync_directory(&aside)?)
    }
}

fn copy(from: &dyn File, to: &Arc<dyn File>) -> Result<()> {
    let length = from.len()?;
    let mut at = 0;
    while at < length {
        let mut part = vec![0; PART_BYTES.min(length - at) as usize];
        match from.read_at(at, &mut part) {
            Ok(()) => to.write_at(at, &part)?,
            // A bad sector: the rest of this part is zeros.
            Err(error) if error.is_lasting() => to.set_len(at + part.len() as u64)?,
            Err(error) => return Err(error.into()),
        }
        at += part.len() as u64;
    }
    Ok(to.sync()?)
}
