//! Reading all of a table, to verify it.

use super::LevelsStore;
use crate::levels::key::address_of;
use crate::levels::partition::Partition;
use crate::levels::table::{Place, Table};
use crate::levels::version::At;
use crate::{ChunkRead, ContainerReport, FrameVisitor, Result, StorageError};
use onefold_fingerprint::Fingerprint;
use std::collections::BTreeMap;
use std::sync::Arc;

impl LevelsStore {
    /// Reads all chunks of a table that count, in the order of their frames.
    pub(super) fn verify_table(
        &self,
        partition: &Partition,
        table: &Arc<Table>,
        report: &mut ContainerReport,
        visit: &mut FrameVisitor<'_>,
    ) -> Result<()> {
        let mut by_frame: BTreeMap<u64, Vec<(Fingerprint, Place)>> = BTreeMap::new();
        // Pages that cannot be read were reported with their units.
        table.range(0..=u64::MAX, &mut |_| Ok(()), &mut |name, place| {
            if let Some(place) = place {
                by_frame.entry(place.frame).or_default().push((name, place));
            }
        })?;
        for (_, mut chunks) in by_frame {
            chunks.sort_unstable_by_key(|(_, place)| place.offset_bytes);
            let counts = |name: &Fingerprint| match partition.find(name) {
                Ok(Some(At::Table { table: found, .. })) => Ok(found.id == table.id),
                Ok(_) => Ok(false),
                // A younger table may have it. It cannot be told.
                Err(error) if error.is_damage() => Ok(true),
                Err(error) => Err(error),
            };
            report.frames += 1;
            report.stored_bytes += u64::from(chunks[0].1.frame_bytes);
            let frame = match table.frame(&chunks[0].1) {
                Ok(frame) => frame,
                Err(error) if error.is_damage() => {
                    partition.note_damaged(table.id);
                    for (name, _) in chunks {
                        if counts(&name)? {
                            let address = address_of(partition.number, &name);
                            report.damage.push(StorageError::ChunkDamaged { address, fingerprint: name, why: error.to_string() });
                        }
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (name, place) in chunks {
                if !counts(&name)? {
                    continue;
                }
                let bytes = table.slice(&frame, &place)?;
                let address = address_of(partition.number, &name);
                visit(&[ChunkRead { address, fingerprint: name, kind: place.kind, bytes: &bytes }]);
            }
        }
        Ok(())
    }
}
