//! Accounts of real stores.

use super::*;
use crate::secret;
use crate::testing::{open, store};
use crate::{CertificateRule, Permission};

fn accounts() -> (tempfile::TempDir, Arc<Engine>, Accounts) {
    let (directory, engine) = store();
    let accounts = Accounts::new(engine.clone()).unwrap();
    (directory, engine, accounts)
}

fn is_accepted(accounts: &Accounts, name: &str, secret: &Secret) -> bool {
    matches!(accounts.verify(name, &secret.text(), None).unwrap(), Verdict::Accepted(account) if account.name == name)
}

fn put(engine: &Engine, key: Vec<u8>, value: &[u8]) {
    engine.submit(Transaction { changes: vec![(PARTITION, key, Some(value.to_vec()))], references: Vec::new() }).unwrap();
}

#[test]
fn a_created_account_is_there_after_a_restart_and_knows_its_secret_only() {
    let (directory, engine, accounts) = accounts();
    let (account, secret) = accounts.create("ann", Settings::default()).unwrap();
    assert!(account.permissions.allows(Permission::Backup, "ann/x") && !account.permissions.allows(Permission::Forget, "ann/x"));
    assert_eq!((account.generation, account.limits), (1, Limits::default()));
    let (_, other) = accounts.create("bob", Settings::default()).unwrap();
    assert!(matches!(accounts.create("ann", Settings::default()), Err(AccountError::Exists { .. })));
    engine.close().unwrap();
    drop((accounts, engine));
    let engine = open(&directory);
    let accounts = Accounts::new(engine.clone()).unwrap();
    assert_eq!(accounts.get("ann").unwrap(), account);
    assert!(is_accepted(&accounts, "ann", &secret) && !is_accepted(&accounts, "ann", &other) && !is_accepted(&accounts, "bob", &secret));
    let names: Vec<String> = accounts.list().unwrap().accounts.into_iter().map(|account| account.name).collect();
    assert_eq!(names, ["ann", "bob"]);
    engine.close().unwrap();
}

#[test]
fn names_and_settings_out_of_bounds_are_refused_and_change_nothing() {
    let (_directory, engine, accounts) = accounts();
    for name in ["", "Ann", "a/b", "..", &"x".repeat(65)] {
        assert!(matches!(accounts.create(name, Settings::default()), Err(AccountError::Name { .. })), "{name}");
        assert!(matches!(accounts.get(name), Err(AccountError::NotFound { .. })), "{name}");
    }
    let limits = Limits { connections: 0, ..Limits::default() };
    assert!(matches!(accounts.create("ann", Settings { limits, ..Settings::default() }), Err(AccountError::Range { .. })));
    accounts.create("ann", Settings::default()).unwrap();
    let many = |account: &mut Account| {
        (0..65).for_each(|number| account.permissions.grant(Namespace::new(&format!("n{number}")).unwrap(), "read".parse().unwrap()));
    };
    assert!(matches!(accounts.set("ann", many), Err(AccountError::TooMany { limit: 64, .. })));
    assert_eq!(accounts.get("ann").unwrap().permissions.grants().count(), 1);
    engine.close().unwrap();
}

#[test]
fn a_locked_account_lets_nobody_in_until_it_is_unlocked() {
    let (_directory, engine, accounts) = accounts();
    let (_, secret) = accounts.create("ann", Settings::default()).unwrap();
    accounts.lock("ann").unwrap();
    assert_eq!(accounts.verify("ann", &secret.text(), None).unwrap(), Verdict::Refused(Refusal::Locked));
    accounts.unlock("ann").unwrap();
    assert!(is_accepted(&accounts, "ann", &secret));
    engine.close().unwrap();
}

#[test]
fn a_new_secret_ends_the_old_one_at_once_or_after_the_grace() {
    let (_directory, engine, accounts) = accounts();
    let (_, first) = accounts.create("ann", Settings::default()).unwrap();
    let (account, second) = accounts.rotate("ann", None).unwrap();
    assert_eq!((account.generation, account.former_until_ns()), (2, None));
    let salt = account.recipe.salt;
    assert!(!is_accepted(&accounts, "ann", &first) && is_accepted(&accounts, "ann", &second));
    let (account, third) = accounts.rotate("ann", Some(Duration::from_secs(3600))).unwrap();
    assert!(account.former_until_ns().unwrap() > account.rotated_ns && account.recipe.salt == salt);
    assert!(is_accepted(&accounts, "ann", &second) && is_accepted(&accounts, "ann", &third) && !is_accepted(&accounts, "ann", &first));
    let (_, fourth) = accounts.rotate("ann", Some(Duration::from_millis(1))).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert!(!is_accepted(&accounts, "ann", &third) && is_accepted(&accounts, "ann", &fourth));
    let (account, fifth) = accounts.rotate("ann", None).unwrap();
    assert!(account.recipe.salt != salt && is_accepted(&accounts, "ann", &fifth) && !is_accepted(&accounts, "ann", &fourth));
    engine.close().unwrap();
}

#[test]
fn every_refusal_costs_one_hash_and_says_nothing_else() {
    let (_directory, engine, accounts) = accounts();
    let (_, secret) = accounts.create("ann", Settings::default()).unwrap();
    let (_, locked) = accounts.create("bob", Settings::default()).unwrap();
    accounts.lock("bob").unwrap();
    let must = Certificates { accepted: vec![CertificateFingerprint([1; 32])], rule: CertificateRule::Must };
    let (_, certified) = accounts.create("eve", Settings { certificates: must, ..Settings::default() }).unwrap();
    put(&engine, keys::account("dan"), &[9, 9]);
    for (name, given, refusal) in [
        ("nobody", secret.text(), Refusal::UnknownName),
        ("no body", secret.text(), Refusal::UnknownName),
        ("", String::new(), Refusal::UnknownName),
        ("ann", locked.text(), Refusal::WrongSecret),
        ("ann", "guess".to_owned(), Refusal::WrongSecret),
        ("ann", "x".repeat(1 << 20), Refusal::WrongSecret),
        ("bob", locked.text(), Refusal::Locked),
        ("bob", secret.text(), Refusal::WrongSecret),
        ("eve", certified.text(), Refusal::WrongCertificate),
        ("dan", secret.text(), Refusal::Damaged),
    ] {
        let before = secret::hashes();
        assert_eq!(accounts.verify(name, &given, None).unwrap(), Verdict::Refused(refusal), "{name}");
        assert_eq!(secret::hashes() - before, 1, "{name}");
    }
    let own = CertificateFingerprint([1; 32]);
    assert!(matches!(accounts.verify("eve", &certified.text(), Some(&own)).unwrap(), Verdict::Accepted(_)));
    engine.close().unwrap();
}

#[test]
fn an_account_with_backups_is_deleted_only_if_that_is_said() {
    let (_directory, engine, accounts) = accounts();
    accounts.create("ann", Settings::default()).unwrap();
    accounts.create("bob", Settings::default()).unwrap();
    crate::quotas::tests::commit_backup(&engine, "ann/laptop", 1);
    assert!(matches!(accounts.delete("ann", false), Err(AccountError::HasBackups { backups: 1, .. })));
    accounts.delete("bob", false).unwrap();
    assert!(matches!(accounts.delete("bob", false), Err(AccountError::NotFound { .. })));
    accounts.delete("ann", true).unwrap();
    assert!(accounts.list().unwrap().accounts.is_empty());
    assert_eq!(Catalog::new(engine.clone()).list().unwrap().len(), 1, "the backups stay");
    engine.close().unwrap();
}

#[test]
fn a_damaged_account_is_told_of_can_be_deleted_and_stops_no_other() {
    let (_directory, engine, accounts) = accounts();
    let (_, secret) = accounts.create("ann", Settings::default()).unwrap();
    put(&engine, keys::account("bob"), &[1, 2, 3]);
    put(&engine, keys::account("NO NAME"), &[1]);
    put(&engine, keys::day("ann"), &[7]);
    let listed = accounts.list().unwrap();
    assert_eq!((listed.accounts.len(), listed.damaged.len()), (1, 2), "{listed:?}");
    let wrong = damaged(&engine).unwrap();
    assert!(wrong.len() == 3 && wrong.iter().any(|what| what.contains("account bob is damaged")), "{wrong:?}");
    assert!(is_accepted(&accounts, "ann", &secret));
    assert!(matches!(accounts.lock("bob"), Err(AccountError::Damaged { .. })));
    assert!(matches!(accounts.create("bob", Settings::default()), Err(AccountError::Exists { .. })));
    accounts.delete("bob", false).unwrap();
    accounts.create("bob", Settings::default()).unwrap();
    engine.close().unwrap();
}

#[test]
fn accounts_beside_lost_keys_are_listed() {
    let range = |from: &str, to: &str| (from.as_bytes().to_vec(), to.as_bytes().to_vec());
    for (lost, expected) in [
        (vec![], vec![range("za", "zb")]),
        (vec![range("zac", "zad")], vec![range("za", "zac"), range("zad", "zb")]),
        (vec![range("za", "zad"), range("zad", "zae")], vec![range("zae", "zb")]),
        (vec![range("v", "zad"), range("zaz", "zz")], vec![range("zad", "zaz")]),
        (vec![range("v", "zz")], vec![]),
    ] {
        assert_eq!(between(&lost, b"za", b"zb"), expected, "{lost:?}");
    }
}

#[test]
fn changes_of_one_account_at_the_same_time_are_all_made() {
    let (_directory, engine, accounts) = accounts();
    accounts.create("ann", Settings::default()).unwrap();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let accounts = &accounts;
            scope.spawn(move || {
                let namespace = Namespace::new(&format!("n{number}")).unwrap();
                accounts.set("ann", |account| account.permissions.grant(namespace.clone(), "read".parse().unwrap())).unwrap();
            });
        }
    });
    assert_eq!(accounts.get("ann").unwrap().permissions.grants().count(), 9);
    engine.close().unwrap();
}

#[test]
fn one_of_several_who_create_the_same_account_does() {
    let (_directory, engine, accounts) = accounts();
    let made: Vec<bool> = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..4).map(|_| scope.spawn(|| accounts.create("ann", Settings::default()).is_ok())).collect();
        tries.into_iter().map(|made| made.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|made| **made).count(), 1);
    engine.close().unwrap();
}

#[test]
fn a_session_goes_on_while_its_secret_is_accepted() {
    let (_directory, engine, accounts) = accounts();
    let (then, _) = accounts.create("ann", Settings::default()).unwrap();
    let hour = Some(Duration::from_secs(3600));
    accounts.set("ann", |account| account.limits.connections = 3).unwrap();
    assert_eq!(accounts.of_session(&then).unwrap().limits.connections, 3);
    accounts.rotate("ann", hour).unwrap();
    assert!(accounts.of_session(&then).is_ok(), "the secret before is accepted");
    accounts.rotate("ann", hour).unwrap();
    assert!(accounts.of_session(&then).unwrap_err().contains("new secret"), "the one before that is not");
    let then = accounts.get("ann").unwrap();
    accounts.rotate("ann", Some(Duration::from_nanos(1))).unwrap();
    assert!(accounts.of_session(&then).is_err(), "its time is over");
    let then = accounts.lock("ann").unwrap();
    assert!(accounts.of_session(&then).unwrap_err().contains("locked"));
    accounts.delete("ann", false).unwrap();
    assert!(accounts.of_session(&then).is_err());
    accounts.create("ann", Settings::default()).unwrap();
    assert!(accounts.of_session(&then).unwrap_err().contains("deleted"));
    engine.close().unwrap();
}
