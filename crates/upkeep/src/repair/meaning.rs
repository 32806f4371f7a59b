//! What the objects of a store mean, for a salvage: the engine knows keys and values only.

use onefold_engine::Meaning;

/// Objects of volumes, backups, targets and accounts.
#[derive(Clone, Copy, Debug)]
pub struct ObjectMeaning;

/// First bytes of the keys of what does harm where it is lost, or is of another time than the rest: block mappings and
/// entries, and what they hang on (layers, volumes, the number of the next one), and backups; who may reach volumes,
/// reservations, and erasures under way; accounts. Older ones bring back what was deleted, give numbers out twice,
/// erase once more, or accept secrets that were replaced.
const NEEDED: [u8; 10] = [b'E', b'b', b'e', b'i', b'l', b'm', b'n', b'r', b'v', b'z'];

impl Meaning for ObjectMeaning {
    fn is_needed(&self, kind: u8) -> bool {
        NEEDED.contains(&kind)
    }

    fn copied(&self) -> String {
        "protections of backups, append-only mode and accounts are as old as that copy: check and set them again".to_owned()
    }

    fn older(&self, position: u64) -> String {
        format!(
            "the kept objects are from position {position}: blocks of volumes that were written between it and the start of the log have \
                older content"
        )
    }

    fn lost_ranges(&self, ranges: usize) -> String {
        format!(
            "{ranges} key ranges of block mappings, or of entries of filesystems, are lost: they cannot be read until they are written \
                again. A check names them"
        )
    }

    fn applied(&self, lost: &str) -> String {
        format!("{lost}: its changes to volumes and backups were already applied")
    }

    fn lost_changes(&self, kept: &str) -> Vec<String> {
        vec![
            "the changes of that time are lost: its backups are missing, and blocks of volumes have older content".to_owned(),
            "backups that were forgotten and volumes that were deleted at that time are back, perhaps with chunks missing. A check that \
                reads all data names them; forget and delete them again"
                .to_owned(),
            "protections of backups, append-only mode, accounts, and names and sizes of volumes are as before that time: check and set \
                them again"
                .to_owned(),
            format!(
                "a volume of which a snapshot was made at that time is unusable if it was written to since. A volume that was rolled \
                    back at that time is as before the rollback, and later writes to it are in a layer that no volume uses. A check \
                    names both. To drop such layers, remove {kept} and open the store again: the volumes are then as they were before"
            ),
        ]
    }

    fn kept_text(&self) -> &'static str {
        "A part of the operations log or of the object index was lost. While this file exists, layers that no volume uses are kept.\n"
    }
}
