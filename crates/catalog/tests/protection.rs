//! Tests protected backups and append-only mode: what the library lets nobody remove.

use onefold_catalog::{Backup, BackupId, Catalog, CatalogError, Statistics};
use onefold_engine::{Descriptor, Engine, EngineError, Mode, Recipe, Settings, Transaction};
use onefold_ground::time::{Reading, TimeSource};
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

const SECRET: &[u8] = b"open sesame";
const HOUR_NS: i64 = 3_600_000_000_000;

fn store() -> SimulatedGround {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    Engine::create(&shared, &Descriptor { object_partitions: 4, ..Descriptor::new().unwrap() }).unwrap();
    ground
}

fn open(ground: &SimulatedGround) -> Catalog {
    let settings = Settings { background: false, ..Settings::default() };
    Catalog::new(Engine::open(Arc::new(ground.clone()), settings, Mode::ReadWrite, "test").unwrap())
}

fn backup(catalog: &Catalog, number: u8) -> Backup {
    let mut backup = Backup {
        id: BackupId::from_bytes([number; 16]),
        sequence: 0,
        seen_ns: 0,
        name: format!("group {}", number % 3),
        host: "h".into(),
        user: "u".into(),
        started_ns: i64::from(number),
        finished_ns: i64::from(number),
        tags: vec![],
        paths: vec![],
        options: "{}".into(),
        root: Recipe::flat(Vec::new()),
        statistics: Statistics::default(),
    };
    catalog.commit_backup(&mut backup).unwrap();
    backup
}

fn in_hours(hours: i64) -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64 + hours * HOUR_NS
}

fn is_append_only(error: CatalogError) -> bool {
    matches!(error, CatalogError::Engine(EngineError::AppendOnly { .. }))
}

#[test]
fn a_backup_that_was_committed_is_there_after_a_power_failure() {
    let ground = store();
    let catalog = open(&ground);
    let committed = backup(&catalog, 1);
    drop(catalog);
    assert_eq!(open(&ground.restart(CrashPolicy::DropAll)).list().unwrap(), [committed]);
}

#[test]
fn a_protected_backup_stays_until_its_day_and_none_is_removed_with_it() {
    let ground = store();
    let catalog = open(&ground);
    let backups: Vec<Backup> = (1..5).map(|number| backup(&catalog, number)).collect();
    let until_ns = in_hours(1);
    catalog.protect(&backups[1..3], Some(until_ns)).unwrap();
    drop(catalog);
    let catalog = open(&ground.restart(CrashPolicy::DropAll));
    assert_eq!(catalog.protected().unwrap(), [(backups[1].id, until_ns), (backups[2].id, until_ns)].into());
    let error = catalog.remove_backups(&backups).unwrap_err();
    assert!(matches!(error, CatalogError::Protected { id, until_ns: until, .. } if id == backups[1].id && until == until_ns), "{error}");
    assert_eq!(catalog.list().unwrap(), backups);

    // A protection that is over protects nothing, and is removed with its backup.
    catalog.protect(&backups[1..2], Some(in_hours(-1))).unwrap();
    catalog.protect(&backups[2..3], None).unwrap();
    assert!(catalog.protected().unwrap().is_empty());
    catalog.remove_backups(&backups).unwrap();
    assert!(catalog.list().unwrap().is_empty());
    let mut left = 0;
    catalog.engine().for_each_object(b'k', &mut |_, _| left += 1).unwrap();
    assert_eq!(left, 0, "protections without a backup");
    let gone = catalog.protect(&backups[..1], Some(until_ns)).unwrap_err();
    assert!(matches!(gone, CatalogError::UnknownBackup { .. }), "{gone}");
}

/// A machine for tests, which set its date, boot and time since boot, in hours.
#[derive(Clone)]
struct Machine(Arc<Mutex<(i64, u128, i64)>>);

impl Machine {
    fn set(&self, date: i64, boot: u128, since_boot: i64) {
        *self.0.lock().unwrap() = (date, boot, since_boot);
    }

    fn open(&self, ground: &SimulatedGround) -> Catalog {
        let clocks = self.0.clone();
        let time = TimeSource::of(move || {
            let (date, boot, since_boot) = *clocks.lock().unwrap();
            Reading { wall_ns: date * HOUR_NS, boot, boot_ns: (since_boot * HOUR_NS) as u64 }
        });
        let settings = Settings { background: false, time, ..Settings::default() };
        Catalog::new(Engine::open(Arc::new(ground.clone()), settings, Mode::ReadWrite, "test").unwrap())
    }
}

#[test]
fn a_6_a_date_that_was_set_forward_ends_no_protection() {
    let (ground, machine) = (store(), Machine(Arc::new(Mutex::new((1000, 1, 10)))));
    let catalog = machine.open(&ground);
    let backup = backup(&catalog, 1);
    let backup = std::slice::from_ref(&backup);
    let is_protected = |catalog: &Catalog| {
        let listed = catalog.protected().unwrap().contains_key(&backup[0].id);
        // Removal gives the same answer.
        assert!(!listed || matches!(catalog.remove_backups(backup), Err(CatalogError::Protected { .. })));
        listed
    };
    catalog.protect(backup, Some(1100 * HOUR_NS)).unwrap();
    machine.set(90_000, 1, 11);
    assert!(is_protected(&catalog), "while the store is open");
    assert!(catalog.engine().clock_jump().is_some(), "a daemon sees it too");
    drop(catalog);
    let ground = ground.restart(CrashPolicy::DropAll);
    let catalog = machine.open(&ground);
    assert!(catalog.engine().clock_jump().is_some_and(|jump| jump.by_ns == 88_999 * HOUR_NS));
    assert!(is_protected(&catalog), "by another process");
    // A later date by the wrong clock does not shorten it either.
    catalog.protect(backup, Some(90_001 * HOUR_NS)).unwrap();
    machine.set(90_002, 1, 13);
    assert!(is_protected(&catalog));
    catalog.engine().close().unwrap();
    // The date is corrected, and the machine restarted.
    machine.set(1010, 2, 0);
    let ground = ground.restart(CrashPolicy::DropAll);
    let catalog = machine.open(&ground);
    catalog.protect(backup, None).unwrap();
    catalog.protect(backup, Some(1030 * HOUR_NS)).unwrap();
    machine.set(1029, 2, 19);
    assert!(is_protected(&catalog));
    // Time passes without a running daemon.
    catalog.engine().close().unwrap();
    machine.set(1030, 2, 20);
    let ground = ground.restart(CrashPolicy::DropAll);
    let catalog = machine.open(&ground);
    assert!(!is_protected(&catalog));
    catalog.remove_backups(backup).unwrap();
}

#[test]
fn append_only_mode_lets_protections_grow_only_and_removes_nothing() {
    let catalog = open(&store());
    let (one, two) = (backup(&catalog, 1), backup(&catalog, 2));
    let one = std::slice::from_ref(&one);
    catalog.protect(one, Some(in_hours(10))).unwrap();
    catalog.engine().switch_append_only_on(SECRET).unwrap();
    assert!(is_append_only(catalog.remove_backups(std::slice::from_ref(&two)).unwrap_err()));
    assert!(is_append_only(catalog.protect(one, Some(in_hours(9))).unwrap_err()));
    assert!(is_append_only(catalog.protect(one, None).unwrap_err()));
    // All or none: the second could be protected, but the first not for so short a time.
    assert!(is_append_only(catalog.protect(&[two.clone(), one[0].clone()], Some(in_hours(9))).unwrap_err()));
    assert_eq!(catalog.protected().unwrap().len(), 1);
    catalog.protect(&[two.clone(), one[0].clone()], Some(in_hours(11))).unwrap();
    assert_eq!(catalog.protected().unwrap().len(), 2);
    let three = backup(&catalog, 3);
    assert_eq!(catalog.list().unwrap().len(), 3, "backups go on");

    catalog.engine().switch_append_only_off(SECRET).unwrap();
    catalog.protect(&[two.clone(), one[0].clone()], None).unwrap();
    catalog.remove_backups(&[one[0].clone(), two, three]).unwrap();
    assert!(catalog.list().unwrap().is_empty());
}

#[test]
fn a_protection_that_cannot_be_read_protects_until_it_is_set_anew() {
    let catalog = open(&store());
    let backup = backup(&catalog, 3);
    catalog.protect(std::slice::from_ref(&backup), Some(in_hours(1))).unwrap();
    assert_eq!(catalog.damaged_protections().unwrap(), [""; 0]);
    let key = [b"k".as_slice(), backup.id.as_bytes()].concat();
    let partition = (0..4).find(|partition| catalog.engine().get(*partition, &key).unwrap().is_some()).unwrap();
    let garbage = vec![(partition, key, Some(vec![9])), (0, b"key".to_vec(), Some(vec![1, 0]))];
    catalog.engine().submit(Transaction { changes: garbage, references: Vec::new() }).unwrap();
    let wrong = catalog.damaged_protections().unwrap();
    assert!(wrong.len() == 2 && wrong.iter().any(|wrong| wrong.contains(&backup.id.to_string())), "{wrong:?}");
    assert_eq!(catalog.protected().unwrap(), [(backup.id, i64::MAX)].into());
    let backup = std::slice::from_ref(&backup);
    assert!(matches!(catalog.remove_backups(backup), Err(CatalogError::Protected { .. })));
    catalog.engine().switch_append_only_on(SECRET).unwrap();
    assert!(is_append_only(catalog.protect(backup, Some(in_hours(1))).unwrap_err()));
    catalog.engine().switch_append_only_off(SECRET).unwrap();
    catalog.protect(backup, None).unwrap();
    catalog.remove_backups(backup).unwrap();
}

#[test]
fn after_a_crash_each_backup_is_there_or_gone_with_its_protection() {
    for operation in 1.. {
        let ground = store();
        let catalog = open(&ground);
        let backups: Vec<Backup> = (1..5).map(|number| backup(&catalog, number)).collect();
        catalog.protect(&backups[..1], Some(in_hours(-1))).unwrap();
        ground.crash_after_operations(operation);
        let removed = catalog.remove_backups(&backups[..3]);
        let crashed = ground.is_crashed();
        drop(catalog);
        let catalog = open(&ground.restart(CrashPolicy::Random { seed: operation }));
        let left = catalog.list().unwrap();
        assert!(left.iter().all(|backup| backups.contains(backup)) && left.contains(&backups[3]), "operation {operation}");
        assert!(left.len() == 1 || removed.is_err(), "operation {operation}: {} are left", left.len());
        let is_protected = catalog.protected_until(&backups[0]).unwrap().is_some();
        assert_eq!(left.contains(&backups[0]), is_protected, "operation {operation}");
        // The rest can be removed.
        catalog.remove_backups(&left).unwrap();
        if !crashed {
            return;
        }
    }
}
