//! Where backups are in the tree.
//!
//! ```text
//! NAME/2026-11-24T12:58:50Z/...    a backup, by its group and the second in which it began (UTC)
//! NAME/latest                      a link to the newest complete one of the group, or the newest if none is
//! ids/0123456789abcdef...          a link to the backup with this id
//! ```
//! A directory has one name, or the kernel would move it from one to the other whenever somebody looks.
//!
//! The parts of a name with `/` are directories in each other. A part that no file can have is written with `%` and the
//! hexadecimal digits of its bytes. If several backups of a group began in the same second, the later ones have the
//! first eight digits of their id behind the time. A group takes precedence over a link or a backup of the same name;
//! such a backup is a directory among the ids.

use jiff::Timestamp;
use onefold_catalog::{Backup, BackupId};
use std::collections::{BTreeMap, HashMap};

/// The directory of ids.
const IDS: &str = "ids";
/// The link to the newest backup.
const LATEST: &str = "latest";
/// The longest name of a file.
const MAX_NAME_BYTES: usize = 255;

/// A directory above the backups.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Directory {
    pub(super) entries: BTreeMap<String, Place>,
}

/// What is in such a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    Directory(Directory),
    Backup(BackupId),
    /// A link.
    Link(String),
}

impl Directory {
    /// Returns the tree of these backups.
    pub(super) fn of(backups: &[Backup]) -> Directory {
        let mut root = Directory::default();
        let mut sorted: Vec<&Backup> = backups.iter().collect();
        sorted.sort_by_key(|backup| (backup.started_ns, backup.sequence, backup.id));
        let mut newest: HashMap<String, (bool, String)> = HashMap::new();
        let mut places: HashMap<BackupId, (String, String)> = HashMap::new();
        for backup in sorted {
            let path = path_of(&backup.name);
            let group = root.group(&path);
            let time = time(backup.started_ns);
            let name = match group.entries.get(&time) {
                None => time,
                Some(_) => format!("{time}-{}", backup.id.short()),
            };
            group.entries.insert(name.clone(), Place::Backup(backup.id));
            places.insert(backup.id, (path.clone(), name.clone()));
            let is_complete = !backup.is_partial();
            if is_complete || newest.get(&path).is_none_or(|(is_complete, _)| !is_complete) {
                newest.insert(path, (is_complete, name));
            }
        }
        for (path, (_, newest)) in newest {
            root.group(&path).entries.entry(LATEST.to_owned()).or_insert(Place::Link(newest));
        }
        let by_id = places.into_iter().map(|(id, (path, name))| {
            let is_there = root.at(&path).is_some_and(|group| group.entries.get(&name) == Some(&Place::Backup(id)));
            let above = if path.is_empty() { "..".to_owned() } else { format!("../{path}") };
            (id.to_string(), if is_there { Place::Link(format!("{above}/{name}")) } else { Place::Backup(id) })
        });
        let by_id: Vec<(String, Place)> = by_id.collect();
        let ids = root.below(IDS);
        for (id, place) in by_id {
            ids.entries.entry(id).or_insert(place);
        }
        root
    }

    /// Returns what is at a path. `None`: nothing is, or no directory.
    pub(super) fn at(&self, path: &str) -> Option<&Directory> {
        path.split('/').filter(|part| !part.is_empty()).try_fold(self, |directory, part| match directory.entries.get(part) {
            Some(Place::Directory(below)) => Some(below),
            _ => None,
        })
    }

    fn group(&mut self, path: &str) -> &mut Directory {
        path.split('/').filter(|part| !part.is_empty()).fold(self, Directory::below)
    }

    /// Returns the directory of this name. Whatever else had the name is gone: backups have their ids, too.
    fn below(&mut self, name: &str) -> &mut Directory {
        let place = self.entries.entry(name.to_owned()).or_insert_with(|| Place::Directory(Directory::default()));
        if !matches!(place, Place::Directory(_)) {
            *place = Place::Directory(Directory::default());
        }
        match place {
            Place::Directory(directory) => directory,
            _ => unreachable!("it is a directory now"),
        }
    }
}

/// Returns the path of a group.
fn path_of(name: &str) -> String {
    let parts: Vec<String> = name.split('/').filter(|part| !part.is_empty()).map(file_name).collect();
    parts.join("/")
}

/// Returns a part of a name as the name of a file.
fn file_name(part: &str) -> String {
    let is_dots = part == "." || part == "..";
    let escaped: String = part
        .chars()
        .map(|letter| if letter.is_control() || (is_dots && letter == '.') { format!("%{:02X}", u32::from(letter)) } else { letter.into() })
        .collect();
    if escaped.len() <= MAX_NAME_BYTES {
        return escaped;
    }
    // Two long names differ in their ends.
    let digits = blake3::hash(part.as_bytes()).to_hex();
    let mut end = MAX_NAME_BYTES - 1 - 16;
    while !escaped.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{}", &escaped[..end], &digits[..16])
}

fn time(time_ns: i64) -> String {
    let second = time_ns.div_euclid(1_000_000_000);
    Timestamp::from_second(second).map_or_else(|_| format!("second-{second}"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_catalog::Statistics;
    use proptest::prelude::*;

    fn backup(number: u8, name: &str, second: i64, errors: u64) -> Backup {
        Backup {
            id: BackupId::from_bytes([number; 16]),
            sequence: u64::from(number),
            seen_ns: 0,
            name: name.into(),
            host: String::new(),
            user: String::new(),
            started_ns: second * 1_000_000_000 + 5,
            finished_ns: 0,
            tags: Vec::new(),
            paths: Vec::new(),
            options: String::new(),
            root: Default::default(),
            statistics: Statistics { errors, ..Statistics::default() },
        }
    }

    fn names(directory: &Directory) -> Vec<&str> {
        directory.entries.keys().map(String::as_str).collect()
    }

    #[test]
    fn backups_are_at_their_group_and_time_and_at_their_ids() {
        let backups = [backup(1, "web", 0, 0), backup(2, "web", 60, 0), backup(3, "team/db", 60, 0), backup(4, "web", 60, 0)];
        let root = Directory::of(&backups);
        assert_eq!(names(&root), ["ids", "team", "web"]);
        let web = root.at("web").unwrap();
        assert_eq!(names(web), ["1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z", "1970-01-01T00:01:00Z-04040404", "latest"]);
        assert_eq!(web.entries["1970-01-01T00:01:00Z"], Place::Backup(backups[1].id));
        assert_eq!(web.entries["latest"], Place::Link("1970-01-01T00:01:00Z-04040404".into()));
        assert_eq!(names(root.at("team/db").unwrap()), ["1970-01-01T00:01:00Z", "latest"]);
        let ids = root.at("ids").unwrap();
        assert_eq!(ids.entries.len(), 4);
        assert_eq!(ids.entries[&backups[2].id.to_string()], Place::Link("../team/db/1970-01-01T00:01:00Z".into()));
        assert!(root.at("web/latest").is_none() && root.at("nobody").is_none() && root.at("").is_some());
    }

    #[test]
    fn the_latest_is_complete_if_any_is() {
        let partial = |number, second| backup(number, "a", second, 1);
        let root = Directory::of(&[backup(1, "a", 1, 0), partial(2, 2)]);
        assert_eq!(root.at("a").unwrap().entries["latest"], Place::Link("1970-01-01T00:00:01Z".into()));
        let root = Directory::of(&[partial(1, 1), partial(2, 2)]);
        assert_eq!(root.at("a").unwrap().entries["latest"], Place::Link("1970-01-01T00:00:02Z".into()));
    }

    #[test]
    fn names_that_no_file_can_have_are_written_otherwise() {
        let long = "x".repeat(300);
        let names: Vec<String> = ["..", "a\nb", &long].map(file_name).into();
        assert_eq!(names[..2], ["%2E%2E", "a%0Ab"]);
        assert_eq!(names[2].len(), 255);
        // A group in the place of another's link or backup.
        let root = Directory::of(&[backup(1, "a", 1, 0), backup(2, "a/latest", 2, 0), backup(3, "a/1970-01-01T00:00:01Z", 3, 0)]);
        assert!(root.at("a/latest").is_some() && root.at("a/1970-01-01T00:00:01Z").is_some());
        assert!(Directory::of(&[]).at("ids").is_some());
    }

    proptest! {
        #[test]
        fn every_backup_is_found_by_its_id_and_no_name_is_no_file_name(
            groups in proptest::collection::vec(("[a-c./\u{1}é]{0,6}", 0i64..4, any::<bool>()), 0..12),
        ) {
            let backups: Vec<Backup> = groups.iter().enumerate().map(|(number, (name, second, _))| backup(number as u8, name, *second, 0)).collect();
            let root = Directory::of(&backups);
            for backup in &backups {
                let found = match &root.at("ids").unwrap().entries[&backup.id.to_string()] {
                    Place::Link(target) => {
                        let (path, name) = target.strip_prefix("..").unwrap().rsplit_once('/').unwrap();
                        &root.at(path).unwrap().entries[name]
                    }
                    place => place,
                };
                prop_assert_eq!(found, &Place::Backup(backup.id));
            }
            let mut left = vec![&root];
            while let Some(directory) = left.pop() {
                for (name, place) in &directory.entries {
                    prop_assert!(!name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']) && name.len() <= 255);
                    if let Place::Directory(below) = place {
                        left.push(below);
                    }
                }
            }
        }
    }
}
