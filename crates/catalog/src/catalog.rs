//! The backups of a store: commit, list, find, remove.
//!
//! A record is in the object-index partition of its backup group (the hash of the name), under the key `b` + id.

use crate::keys::{self, key, named_root_key, protection_key};
use crate::protection::{Now, Protection};
use crate::{Backup, CatalogError, Result};
use onefold_engine::{Change, Engine, EngineError, Group, Reference, Transaction};
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError, put_varint};
use std::collections::HashSet;
use std::sync::Arc;

/// The partition and key of the greatest sequence of any backup that the store ever had, and the version of that value.
const GREATEST: (u16, &[u8]) = (0, b"g");
const GREATEST_VERSION: u8 = 1;
/// The most candidates that an error names.
const CANDIDATES: usize = 5;

/// A backup that a user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The backup.
    pub backup: Backup,
    /// The newest matching backup, if it was passed over because it is partial.
    pub newer_partial: Option<Backup>,
}

/// The backups of one store.
#[derive(Clone)]
pub struct Catalog {
    engine: Arc<Engine>,
    /// `None`: all.
    scope: Option<Scope>,
}

/// Which backups somebody may know of.
pub type Scope = Arc<dyn Fn(&Backup) -> bool + Send + Sync>;

impl std::fmt::Debug for Catalog {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Catalog").field("engine", &self.engine).field("is_whole", &self.scope.is_none()).finish()
    }
}

impl Catalog {
    /// Returns the catalog of an open store.
    pub fn new(engine: Arc<Engine>) -> Catalog {
        Catalog { engine, scope: None }
    }

    /// Returns the same catalog as somebody sees it who may not know of other backups.
    pub fn scoped(&self, scope: Scope) -> Catalog {
        Catalog { engine: self.engine.clone(), scope: Some(scope) }
    }

    /// Returns the store.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Makes a backup visible and durable: when this returns, it and everything it refers to survive a crash. The
    /// record gets the next place in the order of the store's backups, and the time of the store's clock. After an
    /// error (a full disk) the backup may already be visible. Calling this again with the same record then only makes
    /// it durable, because its references are stated once.
    pub fn commit_backup(&self, backup: &mut Backup) -> Result<()> {
        self.commit(backup, true)
    }

    /// Does the same for a backup of another store, which keeps its place in the order. An old backup copied later must
    /// not become the newest of its name. Where backups of several stores meet, dates decide between equal places.
    pub fn commit_copy(&self, backup: &mut Backup) -> Result<()> {
        self.commit(backup, false)
    }

    fn commit(&self, backup: &mut Backup, is_new: bool) -> Result<()> {
        let (partition, key) = (self.partition(&backup.name), key(&backup.id));
        loop {
            match self.engine.get(partition, &key)? {
                None if self.submit_record(backup, is_new, (partition, &key))? => break,
                // Another backup was committed meanwhile. Retry.
                None => {}
                Some(known) if known == backup.encode(self.engine.digest_bytes()) => break,
                Some(_) => {
                    let why = "the store has another backup with this id".to_owned();
                    return Err(EngineError::Invalid { what: format!("backup {}", backup.id), why }.into());
                }
            }
        }
        self.engine.flush()?;
        Ok(())
    }

    /// Submits the record of a new backup. Returns false if the record or another backup was committed meanwhile.
    fn submit_record(&self, backup: &mut Backup, is_new: bool, (partition, key): (u16, &[u8])) -> Result<bool> {
        // The greatest sequence that any backup ever had, even if that backup was forgotten. A copy of that backup in
        // another store must stay older than later backups. 0 if there is no note, or the note cannot be read.
        let noted = self.engine.get(GREATEST.0, GREATEST.1)?;
        let mut greatest = noted.as_ref().and_then(|value| decode_greatest(value).ok()).unwrap_or(0);
        if is_new {
            greatest = greatest.max(self.visible_sequence()?).saturating_add(1);
            backup.sequence = greatest;
        }
        let note = encode_greatest(greatest.max(backup.sequence));
        backup.seen_ns = self.engine.seen_ns();
        let value = backup.encode(self.engine.digest_bytes());
        let expected = [(partition, key.to_vec(), None), (GREATEST.0, GREATEST.1.to_vec(), noted)];
        let mut changes =
            vec![(partition, key.to_vec(), Some(value)), (GREATEST.0, GREATEST.1.to_vec(), Some(note)), self.engine.note_of_clock()];
        // A copy named no files of this store.
        changes.extend((is_new && self.engine.recalls()).then(|| self.note_root(backup)));
        let transaction = Transaction { changes, references: root_references(backup, 1) };
        Ok(self.engine.submit_if(&expected, transaction)?)
    }

    /// Returns the greatest sequence of all readable backups. A repair may have lost the note or brought back an older
    /// one.
    fn visible_sequence(&self) -> Result<u64> {
        let mut greatest = 0;
        match self.visit_all(&mut |backup| greatest = greatest.max(backup.sequence)) {
            // A damaged old record must not prevent new backups.
            Err(CatalogError::Damaged { .. }) => {}
            visited => visited?,
        }
        Ok(greatest)
    }

    /// Removes backups with their references. Durable on return. The cost does not depend on the size of a backup;
    /// reclamation frees the space later.
    ///
    /// Errors: nothing is removed if a backup is protected or missing, or in append-only mode. A crash may leave some
    /// of the backups, each complete. If another process protects or removes one of them meanwhile, the backups before
    /// it are gone.
    pub fn remove_backups(&self, backups: &[Backup]) -> Result<()> {
        let _permit = self.engine.permit_deletion("forget backups")?;
        let now = self.now();
        let mut known = HashSet::new();
        let backups: Vec<&Backup> = backups.iter().filter(|backup| known.insert(backup.id)).collect();
        let removals = backups.iter().map(|backup| self.removal(backup, now)).collect::<Result<Vec<_>>>()?;
        // One at a time, so that no batch gets too long for the log, whatever their number. The flush takes as many as
        // fit.
        let done = backups.into_iter().zip(removals).try_for_each(|(backup, removal)| self.remove(backup, removal, now));
        // Removals before an error are flushed too.
        let flushed = self.engine.flush();
        done?;
        Ok(flushed?)
    }

    /// Removes one backup. If its record or its protection changes meanwhile, checks both again.
    fn remove(&self, backup: &Backup, mut removal: (Vec<Change>, Transaction), now: Now) -> Result<()> {
        while !self.engine.submit_if(&removal.0, removal.1)? {
            removal = self.removal(backup, now)?;
        }
        Ok(())
    }

    /// Returns the transaction that removes a backup, conditional on its record and its protection. Two concurrent
    /// removals must not drop its references twice.
    fn removal(&self, backup: &Backup, now: Now) -> Result<(Vec<Change>, Transaction)> {
        let partition = self.partition(&backup.name);
        let protection = self.engine.get(partition, &protection_key(&backup.id))?;
        let record = (partition, key(&backup.id), self.record(backup)?);
        let expected = vec![record, (partition, protection_key(&backup.id), protection)];
        if expected[0].2.is_none() {
            return Err(CatalogError::UnknownBackup { asked: backup.id.to_string(), candidates: Vec::new() });
        }
        if let Some(until_ns) = expected[1].2.as_ref().and_then(|value| Protection::of(value).end(now)) {
            return Err(CatalogError::Protected { id: backup.id, name: backup.name.clone(), until_ns });
        }
        let there = expected.iter().filter(|(.., value)| value.is_some());
        let mut changes: Vec<Change> = there.map(|(partition, key, _)| (*partition, key.clone(), None)).collect();
        changes.extend(self.engine.recalls().then(|| (partition, named_root_key(&backup.id), None)));
        Ok((expected, Transaction { changes, references: root_references(backup, -1) }))
    }

    /// Passes every backup in the scope to `visit`, in no particular order. Errors: a record is damaged; all other
    /// backups are passed first.
    pub fn visit(&self, visit: &mut dyn FnMut(Backup)) -> Result<()> {
        match &self.scope {
            None => self.visit_all(visit),
            Some(scope) => self.visit_all(&mut |backup| {
                if scope(&backup) {
                    visit(backup);
                }
            }),
        }
    }

    fn visit_all(&self, visit: &mut dyn FnMut(Backup)) -> Result<()> {
        let mut damaged = None;
        self.engine.for_each_object(keys::BACKUP, &mut |key, value| match self.decode(key, value) {
            Ok(backup) => visit(backup),
            Err(error) => damaged = Some(error),
        })?;
        damaged.map_or(Ok(()), Err)
    }

    /// Returns all backups, in the order in which they were made.
    pub fn list(&self) -> Result<Vec<Backup>> {
        let (backups, damage) = self.list_sound()?;
        damage.map_or(Ok(backups), Err)
    }

    /// Returns the backups whose records are sound, in the same order, and the error of one damaged record, if any.
    pub fn list_sound(&self) -> Result<(Vec<Backup>, Option<CatalogError>)> {
        let mut backups = Vec::new();
        let damage = match self.visit(&mut |backup| backups.push(backup)) {
            Err(error @ CatalogError::Damaged { .. }) => Some(error),
            visited => visited.map(|()| None)?,
        };
        backups.sort_by_key(Backup::order);
        Ok((backups, damage))
    }

    /// Returns whether the record of a backup exists, whatever its content.
    pub fn has(&self, backup: &Backup) -> Result<bool> {
        Ok(self.record(backup)?.is_some())
    }

    pub(crate) fn record(&self, backup: &Backup) -> Result<Option<Vec<u8>>> {
        Ok(self.engine.get(self.partition(&backup.name), &key(&backup.id))?)
    }

    /// Returns the newest backup that `wanted` accepts.
    pub fn newest(&self, mut wanted: impl FnMut(&Backup) -> bool) -> Result<Option<Backup>> {
        let mut newest: Option<Backup> = None;
        self.visit(&mut |backup| {
            if wanted(&backup) && newest.as_ref().is_none_or(|known| known.order() < backup.order()) {
                newest = Some(backup);
            }
        })?;
        Ok(newest)
    }

    /// Returns the backup that a user means. See [`Catalog::look_up`].
    pub fn find(&self, asked: &str) -> Result<Backup> {
        Ok(self.look_up(asked)?.backup)
    }

    /// Returns the backup that a user means:
    /// - a full id, or a unique prefix of one;
    /// - `latest`: the newest complete backup;
    /// - `latest:NAME`: the newest complete one of a backup group;
    /// - `latest#TAG` and `latest:NAME#TAG`: the newest complete one with a tag.
    ///
    /// If there is no complete backup, these mean the newest partial one. `latest-any` in place of `latest` means the
    /// newest, complete or not.
    pub fn look_up(&self, asked: &str) -> Result<Found> {
        let any = asked.strip_prefix("latest-any").map(|rest| (rest, true));
        let latest = any.or_else(|| asked.strip_prefix("latest").map(|rest| (rest, false)));
        if let Some((rest, any)) = latest.filter(|(rest, _)| rest.is_empty() || rest.starts_with([':', '#'])) {
            return match self.latest(rest, any)? {
                Some(found) => Ok(found),
                None => Err(self.unknown(asked)?),
            };
        }
        let prefix = asked.to_ascii_lowercase();
        let mut found = Vec::new();
        if !prefix.is_empty() && prefix.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let visited = self.visit(&mut |backup| {
                if found.len() <= CANDIDATES && backup.id.to_string().starts_with(&prefix) {
                    found.push(backup);
                }
            });
            match visited {
                // The damaged record of one backup must not hide the others.
                Err(CatalogError::Damaged { .. }) if !found.is_empty() => {}
                visited => visited?,
            }
        }
        match (found.pop(), found.is_empty()) {
            (Some(backup), true) => Ok(Found { backup, newer_partial: None }),
            (Some(backup), false) => {
                found.push(backup);
                let candidates = found.iter().take(CANDIDATES).map(|backup| format!("{} ({})", backup.id, backup.name)).collect();
                Err(CatalogError::AmbiguousBackup { asked: asked.to_owned(), candidates })
            }
            (None, _) => Err(self.unknown(asked)?),
        }
    }

    /// Goes on with only these backups of the catalog ([`Engine::hold`]). A command that only reads calls this as soon
    /// as it has found the backups, before it prints anything:
    ///
    /// ```text
    /// fn mode(&self) -> Mode { Mode::Snapshot }
    /// ...
    /// let _in_flight = engine.in_flight();     // in a daemon
    /// let backup = catalog.find(&options.backup)?;
    /// catalog.hold(&[&backup])?;               // in a process of its own, beside one that writes
    /// ```
    /// From then on the data of these backups stays readable, however long that takes, even if they are forgotten
    /// meanwhile.
    pub fn hold(&self, backups: &[&Backup]) -> Result<()> {
        let places: Vec<_> = backups.iter().map(|backup| (self.partition(&backup.name), key(&backup.id))).collect();
        Ok(self.engine.hold(&places)?)
    }

    /// Returns the backup for the text after `latest`: nothing, `:NAME`, `#TAG` or both. A name may contain a `#`
    /// itself.
    fn latest(&self, rest: &str, any: bool) -> Result<Option<Found>> {
        let (name, tag) = match rest.strip_prefix(':') {
            Some(name) => match self.newest_of(Some(name), None, any)? {
                None => name.rsplit_once('#').map_or((Some(name), None), |(name, tag)| (Some(name), Some(tag))),
                found => return Ok(found),
            },
            None => (None, rest.strip_prefix('#')),
        };
        self.newest_of(name, tag, any)
    }

    fn newest_of(&self, name: Option<&str>, tag: Option<&str>, any: bool) -> Result<Option<Found>> {
        let is_wanted = |backup: &Backup| {
            name.is_none_or(|name| backup.name == name) && tag.is_none_or(|tag| backup.tags.iter().any(|known| known == tag))
        };
        let (mut newest, mut newest_complete) = (None::<Backup>, None::<Backup>);
        self.visit(&mut |backup| {
            if !is_wanted(&backup) {
                return;
            }
            let is_newer = |known: &Option<Backup>| known.as_ref().is_none_or(|known| known.order() < backup.order());
            if !backup.is_partial() && is_newer(&newest_complete) {
                newest_complete = Some(backup.clone());
            }
            if is_newer(&newest) {
                newest = Some(backup);
            }
        })?;
        Ok(match (newest, newest_complete) {
            (Some(newest), Some(complete)) if !any && newest.id != complete.id => {
                Some(Found { backup: complete, newer_partial: Some(newest) })
            }
            (newest, _) => newest.map(|backup| Found { backup, newer_partial: None }),
        })
    }

    fn unknown(&self, asked: &str) -> Result<CatalogError> {
        let mut backups = self.list()?;
        backups.reverse();
        let candidates = backups.iter().take(CANDIDATES).map(|backup| format!("{} ({})", backup.id.short(), backup.name)).collect();
        Ok(CatalogError::UnknownBackup { asked: asked.to_owned(), candidates })
    }

    fn decode(&self, key: &[u8], value: &[u8]) -> Result<Backup> {
        Backup::decode_object(key, value, self.engine.digest_bytes())
            .map_err(|source| CatalogError::Damaged { what: "record of a backup", source })
    }

    pub(crate) fn partition(&self, name: &str) -> u16 {
        (checksum(name.as_bytes()) % u64::from(self.engine.object_partitions().max(1))) as u16
    }
}

fn encode_greatest(sequence: u64) -> Vec<u8> {
    let mut out = vec![GREATEST_VERSION];
    put_varint(&mut out, sequence);
    out
}

fn decode_greatest(value: &[u8]) -> std::result::Result<u64, WireError> {
    let mut reader = Reader::new(value);
    match reader.u8()? {
        GREATEST_VERSION => {}
        version => return Err(WireError::OutOfRange { what: "version", value: u64::from(version), offset_bytes: 0 }),
    }
    let sequence = reader.varint()?;
    reader.end()?;
    Ok(sequence)
}

/// Returns the references of a backup itself; the rest of its tree depends on them. The backups of one name are a
/// group, because they share most of their data.
fn root_references(backup: &Backup, change: i64) -> Vec<Reference> {
    let group = Group::new(keys::BACKUP, checksum(backup.name.as_bytes()));
    Reference::of(&backup.root.pieces, group, change).collect()
}
