//! What the objects of a store mean, for a salvage: the engine knows keys and values only.

use onefold_engine::Meaning;

/// Objects of volumes, backups and targets.
#[derive(Clone, Copy, Debug)]
pub struct ObjectMeaning;

/// First bytes of the keys of what does harm where it is lost, or is of another time than the rest: block mappings, and
/// what they hang on (layers, volumes, the number of the next one), and backups; who may reach volumes, reservations,
/// and erasures under way. Older ones bring back what was deleted, give numbers out twice, or erase once more.
const NEEDED: [u8; 8] = [b'b', b'e', b'i', b'l', b'm', b'n', b'r', b'v'];

impl Meaning for ObjectMeaning {
    fn is_needed(&self, kind: u8) -> bool {
        NEEDED.contains(&kind)
    }

    fn copied(&self) -> String {
        "protections of backups and append-only mode are as they were then: look at them".to_owned()
    }

    fn older(&self, position: u64) -> String {
        format!(
            "what was kept is of position {position}: blocks of volumes that were written since, and before the log starts, show what they had before"
        )
    }

    fn lost_ranges(&self, ranges: usize) -> String {
        format!(
            "{ranges} key ranges of block mappings are lost: blocks of volumes in them cannot be read until they are written anew. `onefold check` names them"
        )
    }

    fn applied(&self, lost: &str) -> String {
        format!("{lost}: what it said of volumes and backups was applied before")
    }

    fn lost_changes(&self, kept: &str) -> Vec<String> {
        vec![
            "what happened then is lost: backups that ended are missing, and blocks of volumes show what they had before".to_owned(),
            "backups that were forgotten and volumes that were deleted then are back, perhaps without chunks that were removed since: \
             `onefold check --read-data` names them; forget and delete them again"
                .to_owned(),
            "protections of backups, append-only mode and sizes and names of volumes are as before: look at them".to_owned(),
            format!(
                "a volume of which a snapshot was made then cannot be used if it was written to since, and one that was rolled back then stands where it stood before: what was written to it \
                 since is in a layer that no volume uses. `onefold check` names both. Such layers are kept until {kept} is removed and the store opened again: \
                 then they go, and the volumes are as they were before"
            ),
        ]
    }

    fn kept_text(&self) -> &'static str {
        "A part of the operations log or of the object index was lost. While this file is here, layers are kept that no volume uses.\n"
    }
}
