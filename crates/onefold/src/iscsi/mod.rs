//! Volumes as logical units of iSCSI targets: what the daemon shows to which initiators.
//!
//! A volume is one logical unit, whatever targets show it: it has one identity, one set of reservations and one set of
//! unit attentions. The shown units follow the store's objects ([`onefold_targets`]) and its volumes: after each change
//! [`Iscsi::refresh`] updates the served targets.
//!
//! Lock: `state`, held while the served targets change and while a login looks one up. Its holder may change targets in
//! the store, not the other way round.

mod disk;
mod doors;
mod kept;
#[cfg(test)]
mod tests;

use crate::failure::{Failure, Result};
use crate::settings::{FileTarget, FileUnit};
use crate::units::{counted, printable, size};
use disk::VolumeDisk;
use onefold_engine::Engine;
use onefold_ground::checksum;
use onefold_iscsi::scsi::sense::Code;
use onefold_iscsi::scsi::{Disk, Identity, LogicalUnit, UnitOptions};
use onefold_iscsi::{Handle, Target};
use onefold_targets::{DEFAULT_TARGET, FILE_TARGET, Known, TargetError, Unit, change, forget_others, known, whole_name};
use onefold_volume::{VolumeInfo, Volumes};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

/// The product name that INQUIRY returns for every volume. The volume's name can change, and an initiator takes a
/// device with another product name for another device.
const PRODUCT: &str = "VOLUME";
/// Default size of a logical block, bytes.
pub const LOGICAL_BLOCK_BYTES: u32 = 512;

/// All targets of a daemon.
#[derive(Debug)]
pub struct Iscsi {
    engine: Arc<Engine>,
    volumes: Arc<Volumes>,
    options: Options,
    server: OnceLock<Handle>,
    state: Mutex<State>,
}

/// Options for serving targets.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether the store is open for reading only.
    pub is_read_only: bool,
    /// Whether targets without rules are open to everybody who can reach this machine.
    pub allows_open_off_loopback: bool,
    /// Initiators are warned when less than this part of the store's device is free, percent.
    pub low_space_percent: u64,
    /// Numbers of the target ports.
    pub ports: Vec<u16>,
    /// Targets of the settings file.
    pub targets: Vec<FileTarget>,
}

/// Returns a target of the file as if it were in the store. Missing volumes are left out.
pub fn as_known(target: &FileTarget, volumes: &BTreeMap<u32, VolumeInfo>) -> onefold_targets::Target {
    let unit = |(lun, unit): (&u16, &FileUnit)| {
        let info = volumes.values().find(|info| info.name == unit.volume)?;
        let is_removable = unit.is_removable;
        Some((*lun, Unit { volume: info.number, block_bytes: LOGICAL_BLOCK_BYTES, is_read_only: false, is_removable }))
    };
    let units = target.luns.iter().filter_map(unit).collect();
    onefold_targets::Target { number: FILE_TARGET, units, ..target.target.clone() }
}

#[derive(Debug, Default)]
struct State {
    units: HashMap<u32, ServedUnit>,
    /// Earlier units of volumes that have a newer unit, or may get one, as long as anybody uses them.
    former: HashMap<u32, Vec<Weak<LogicalUnit>>>,
    targets: BTreeMap<String, ServedTarget>,
}

impl State {
    /// Ends the unit of a volume. Its running work ends before the volume's next unit does anything.
    fn stop(&mut self, volume: u32, unit: &Arc<LogicalUnit>) {
        unit.stop();
        self.former.entry(volume).or_default().push(Arc::downgrade(unit));
    }
}

#[derive(Debug)]
struct ServedUnit {
    unit: Arc<LogicalUnit>,
    disk: Arc<VolumeDisk>,
    block_bytes: u32,
    is_removable: bool,
    size: u64,
}

#[derive(Clone, Debug)]
struct ServedTarget {
    record: onefold_targets::Target,
    target: Arc<Target>,
}

/// A unit as initiators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownUnit {
    /// Its LUN.
    pub lun: u16,
    /// The volume's name.
    pub volume: String,
    /// The volume's size, bytes.
    pub size: u64,
    /// Whether it is write-protected.
    pub is_read_only: bool,
}

impl Iscsi {
    /// Returns what initiators of a store see.
    pub fn new(engine: Arc<Engine>, volumes: Arc<Volumes>, options: Options) -> Result<Iscsi> {
        let iscsi = Iscsi { engine, volumes, options, server: OnceLock::new(), state: Mutex::default() };
        iscsi.check_file()?;
        iscsi.refresh()?;
        Ok(iscsi)
    }

    /// Checks that the settings file's targets fit the store.
    fn check_file(&self) -> Result<()> {
        let known = known(&self.engine)?;
        let mut shown: HashMap<&str, (u16, &str)> = HashMap::new();
        for FileTarget { target, luns, .. } in &self.options.targets {
            let name = target.name.as_str();
            if known.find(name).is_ok() {
                return Err(Failure::cannot_run(format!("two targets have the name {name}: one in the store, one in the settings file"))
                    .advise(format!("rename the one in the file, or run `onefold target delete {name}`")));
            }
            for (lun, FileUnit { volume, .. }) in luns {
                let shown_name = printable(volume.as_bytes());
                let info = self.volumes.list().into_iter().find(|info| info.name == *volume).ok_or_else(|| {
                    Failure::cannot_run(format!("there is no volume {shown_name}, but the settings file gives it to target {name}"))
                        .advise(format!("check the spelling, or create it with `onefold volume create {shown_name} --size SIZE`"))
                })?;
                let other = known.attached(info.number).or_else(|| shown.insert(volume, (*lun, name)));
                if let Some((lun, other)) = other {
                    return Err(Failure::cannot_run(format!(
                        "volume {shown_name} of target {name} is already LUN {lun} of target {other}"
                    ))
                    .advise("a volume can be in one target only: detach it from the other"));
                }
            }
        }
        Ok(())
    }

    /// Attaches the server that serves the targets.
    pub fn attach(&self, server: Handle) {
        let _ = self.server.set(server);
    }

    /// Returns the server's sessions. `None`: it does not run yet.
    pub fn server(&self) -> Option<&Handle> {
        self.server.get()
    }

    /// Returns the name of the target with all volumes, which exists until somebody creates one.
    pub fn default_name(engine: &Engine) -> String {
        let store = engine.descriptor().store;
        let hex = store[..8].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        whole_name(&hex).expect("hexadecimal digits make a name")
    }

    /// Updates the served targets from the store.
    pub fn refresh(&self) -> Result<()> {
        self.refresh_within(&mut self.state.lock())
    }

    fn refresh_within(&self, state: &mut State) -> Result<()> {
        let mut known = self.known_luns()?;
        let volumes = self.volumes_by_number();
        if !self.options.is_read_only && self.volumes.damaged().is_empty() {
            forget_others(&self.engine, &volumes.keys().copied().collect::<HashSet<_>>())?;
        }
        known.targets.extend(self.options.targets.iter().map(|target| as_known(target, &volumes)));
        if known.made().next().is_some() || !known.damaged.is_empty() {
            known.targets.retain(|target| target.number != DEFAULT_TARGET);
        } else {
            known.default_target().name = Iscsi::default_name(&self.engine);
        }
        let mut targets = BTreeMap::new();
        let mut units = HashMap::new();
        for record in known.targets {
            let old = state.targets.get(&record.name);
            let target = old.map_or_else(|| Arc::new(Target::new(record.name.clone())), |old| old.target.clone());
            let limit = if record.max_sessions == 0 { usize::MAX } else { record.max_sessions as usize };
            target.max_sessions.store(limit, Ordering::Relaxed);
            let mut shown = BTreeMap::new();
            for (lun, unit) in &record.units {
                let Some(info) = volumes.get(&unit.volume) else { continue };
                let is_protected = self.options.is_read_only || record.is_read_only || unit.is_read_only;
                match self.served_unit(state, info, unit, is_protected) {
                    Ok(served) => {
                        shown.insert(*lun, served.unit.clone());
                        units.insert(unit.volume, served);
                    }
                    Err(why) => {
                        tracing::error!("volume {} is not shown as LUN {lun} of {}: {why}", printable(info.name.as_bytes()), record.name);
                    }
                }
            }
            show(&target, shown);
            targets.insert(record.name.clone(), ServedTarget { record, target });
        }
        // Meanwhile nobody can make another unit of these volumes, so a volume never has two erasures.
        for (volume, served) in std::mem::replace(&mut state.units, units) {
            state.stop(volume, &served.unit);
        }
        state.former.retain(|_, units| {
            units.retain(|unit| unit.strong_count() > 0);
            !units.is_empty()
        });
        let before = std::mem::replace(&mut state.targets, targets);
        if let Some(server) = self.server() {
            before.keys().filter(|name| !state.targets.contains_key(*name)).for_each(|name| server.close_target(name));
        }
        Ok(())
    }

    fn volumes_by_number(&self) -> BTreeMap<u32, VolumeInfo> {
        self.volumes.list().into_iter().map(|info| (info.number, info)).collect()
    }

    /// Returns the targets of the store. LUNs of deleted volumes are free again. Until somebody creates a target, each
    /// volume has a LUN of the default target as long as it exists.
    fn known_luns(&self) -> Result<Known> {
        let assign = |known: &mut Known| {
            // Looked up while nobody else can assign LUNs: a LUN that was just assigned is of a volume in this list.
            let volumes = self.volumes_by_number();
            // A damaged volume is not in the list. It gets its LUNs back when it is repaired.
            if self.volumes.damaged().is_empty() {
                known.targets.iter_mut().for_each(|target| target.units.retain(|_, unit| volumes.contains_key(&unit.volume)));
            }
            if known.made().next().is_some() || !self.options.targets.is_empty() || !known.damaged.is_empty() {
                return;
            }
            let target = known.default_target();
            let new = volumes.keys().filter(|number| target.lun_of(**number).is_none()).copied().collect::<Vec<_>>();
            for volume in new {
                let unit = Unit { volume, block_bytes: LOGICAL_BLOCK_BYTES, is_read_only: false, is_removable: false };
                match target.free_lun() {
                    Some(lun) => drop(target.units.insert(lun, unit)),
                    None => tracing::warn!("no LUN is left for volume {volume}: make targets with `onefold target create`"),
                }
            }
        };
        let known = if self.options.is_read_only {
            let mut known = known(&self.engine)?;
            assign(&mut known);
            known
        } else {
            change(&self.engine, |known| -> std::result::Result<Known, TargetError> {
                assign(known);
                Ok(known.clone())
            })?
        };
        for problem in &known.damaged {
            tracing::error!("{problem}; the other targets are usable");
        }
        Ok(known)
    }

    /// Returns the unit of a volume: the existing one if it still fits.
    fn served_unit(&self, state: &mut State, info: &VolumeInfo, unit: &Unit, is_protected: bool) -> Result<ServedUnit> {
        let Unit { block_bytes, is_removable, .. } = *unit;
        match state.units.remove(&info.number) {
            Some(mut served) if (served.block_bytes, served.is_removable) == (block_bytes, is_removable) => {
                served.disk.protect(is_protected);
                if served.size != info.size {
                    served.size = info.size;
                    served.disk.resized(info.size);
                    served.unit.tell_all(Code::CAPACITY_DATA_HAS_CHANGED);
                }
                return Ok(served);
            }
            // Sessions may keep it a while longer. Only the new unit continues its erasure, and it reads below what is
            // left to erase.
            Some(other) => state.stop(info.number, &other.unit),
            None => {}
        }
        if info.size < u64::from(block_bytes) {
            return Err(Failure::failed(format!("its size, {}, is less than a logical block of {block_bytes} bytes", size(info.size))));
        }
        let disk = Arc::new(VolumeDisk::new(self.volumes.get(&info.name)?, info.size, is_protected, self.options.low_space_percent));
        let options = UnitOptions {
            identity: identity(&self.engine, info),
            logical_block_bytes: block_bytes,
            is_removable,
            ports: self.options.ports.clone(),
            reservations: kept::reservations(&self.engine, info.number)?,
        };
        let unit = LogicalUnit::new(disk.clone() as Arc<dyn Disk>, options, kept::reservations_keeper(self.engine.clone(), info.number));
        // It stays in the list: a newer unit may come before the work of these is over.
        let unit = unit.in_place_of(state.former.get(&info.number).cloned().unwrap_or_default());
        let unfinished = kept::sanitize(&self.engine, info.number)?;
        // In a read-only store the erasure waits, and the volume is not shown.
        let unit = match self.options.is_read_only {
            true => unit.with_waiting_sanitize(unfinished),
            false => unit.with_sanitize(unfinished, kept::sanitize_keeper(self.engine.clone(), info.number)),
        };
        Ok(ServedUnit { unit: Arc::new(unit), disk, block_bytes, is_removable, size: info.size })
    }

    /// Ends the background work of units, before the store is closed.
    pub fn stop(&self) {
        let units: Vec<Arc<LogicalUnit>> = self.state.lock().units.values().map(|served| served.unit.clone()).collect();
        units.iter().for_each(|unit| unit.stop());
    }

    /// Returns the targets with their units.
    pub fn shown(&self) -> Vec<(String, Vec<ShownUnit>)> {
        let state = self.state.lock();
        let volumes: BTreeMap<u32, VolumeInfo> = self.volumes.list().into_iter().map(|info| (info.number, info)).collect();
        let unit = |lun: &u16, unit: &Unit| {
            let (info, served) = (volumes.get(&unit.volume)?, state.units.get(&unit.volume)?);
            Some(ShownUnit { lun: *lun, volume: info.name.clone(), size: info.size, is_read_only: served.disk.read_only() })
        };
        let shown = |target: &ServedTarget| target.record.units.iter().filter_map(|(lun, of)| unit(lun, of)).collect();
        state.targets.iter().map(|(name, target)| (name.clone(), shown(target))).collect()
    }

    /// Runs `work` on a volume that no initiator sees. No initiator logs in to a target that shows it until the served
    /// targets match the store again.
    pub fn on_unused<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        let number = self.volumes.list().into_iter().find(|info| info.name == name).map(|info| info.number);
        for (target, served) in &state.targets {
            let shows = number.is_some_and(|number| served.record.lun_of(number).is_some());
            let sessions = self.server().map_or(0, |server| server.count_of(target)) as u64;
            if shows && sessions > 0 {
                let sessions = counted(sessions, "session has", "sessions have");
                return Err(Failure::failed(format!(
                    "volume {} is in use: {sessions} target {target} open over iSCSI",
                    printable(name.as_bytes())
                ))
                .advise("log the initiators out first, for example with `iscsiadm -m node -T TARGET --logout`"));
            }
        }
        let done = work();
        if let Err(failure) = self.refresh_within(&mut state) {
            // Whoever changes something refreshes again when it is done, and reports the failure to its caller.
            tracing::error!("the served volumes differ from the store: {}", failure.message);
        }
        done
    }
}

/// Shows these units. Initiators that are logged in are told.
fn show(target: &Target, shown: BTreeMap<u16, Arc<LogicalUnit>>) {
    let mut units = target.units.write();
    let is_same =
        units.len() == shown.len() && units.iter().zip(&shown).all(|((old, unit), (new, other))| old == new && Arc::ptr_eq(unit, other));
    if is_same {
        return;
    }
    *units = shown.clone();
    // Each command looks up its unit here. So a busy unit keeps no other command waiting.
    drop(units);
    shown.values().for_each(|unit| unit.tell_all(Code::REPORTED_LUNS_DATA_HAS_CHANGED));
}

/// Returns the identity of a volume for initiators. It is made of the store's random name and the volume's number,
/// which never change and are never reused.
fn identity(engine: &Engine, info: &VolumeInfo) -> Identity {
    let store = engine.descriptor().store;
    let whole = [&store[..], &info.number.to_be_bytes()].concat();
    let hex = store[..12].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    Identity { serial: format!("{hex}{:08x}", info.number), number: checksum(&whole) & (u64::MAX >> 4), product: PRODUCT.into() }
}
