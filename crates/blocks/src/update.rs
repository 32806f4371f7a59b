//! Changes data in place as one step: the base of COMPARE AND WRITE and ORWRITE of disks.

use crate::at::{At, Part};
use crate::error::Result;
use crate::space::Space;

impl Space {
    /// Reads a range and lets `change` modify it. If `change` returns true, takes the result like a
    /// [write](Space::write). Nobody reads or writes the range in between. Returns what `change` returned. Errors:
    /// nothing was taken. The whole range is in the buffers at once, so it should be smaller than their limit.
    pub fn update(&self, at: At, length: usize, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool> {
        self.check_writable()?;
        let parts: Vec<Part> = self.parts(at, length as u64).collect();
        let Some(last) = parts.last() else { return Ok(change(&mut [])) };
        self.make_room(length)?;
        let gate = self.enter(*last)?;
        // In ascending order, like everywhere that locks several blocks.
        let cells: Vec<_> = parts.iter().map(|part| self.cells.get(part.block)).collect();
        let mut places: Vec<_> = cells.iter().map(|cell| cell.write(self.shared.profile())).collect();
        let mut bytes = vec![0; length];
        let mut rest = &mut bytes[..];
        for ((part, cell), place) in parts.iter().zip(&cells).zip(&places) {
            let (own, behind) = rest.split_at_mut(part.length);
            self.read_locked(&gate, *part, cell, place, own)?;
            rest = behind;
        }
        let is_wanted = change(&mut bytes);
        if is_wanted {
            let mut rest = &bytes[..];
            for (part, place) in parts.iter().zip(&mut places) {
                let (own, behind) = rest.split_at(part.length);
                self.change_locked(part.block, place, |buffer| buffer.write(part.start, own));
                rest = behind;
            }
        }
        drop(places);
        drop(gate);
        self.shared.tidy(self);
        Ok(is_wanted)
    }
}
