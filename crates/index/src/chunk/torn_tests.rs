//! Lookups in parallel with a sweep, with its writes seen in part.

use super::crash_tests::{PARTITIONS, created, log, model_of};
use super::tests::{apply, open};
use super::*;
use parking_lot::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The sweep writes while it holds a lock. A lookup that saw a half-written page waits for that lock and reads again.
#[test]
fn m0_14_a_page_that_a_lookup_sees_half_written_is_read_again() {
    const LOOKS: usize = 12;
    let (disk, ground) = created(1);
    let log = log(12, 200);
    let index = Arc::new(open(&ground, PARTITIONS, Access::ReadWrite, 1).unwrap());
    let expected = Arc::new(Mutex::new(Arc::new(model_of(&[]))));
    let lookups = Arc::new(Mutex::new(Vec::new()));
    let waited = Arc::new(Mutex::new(0));
    let look = {
        let (index, expected, lookups, waited) = (index.clone(), expected.clone(), lookups.clone(), waited.clone());
        move |path: &str| {
            if !path.contains("/pages-") || lookups.lock().len() == LOOKS {
                return;
            }
            let (index, expected) = (index.clone(), expected.lock().clone());
            let (ended, has_ended) = mpsc::channel();
            let lookup = thread::spawn(move || {
                let wanted: Vec<_> = expected.keys().copied().collect();
                let mut found = Vec::new();
                let result = index.lookup(&wanted, &mut found);
                // The write went on and nobody waited.
                let _ = ended.send(());
                result.unwrap();
                assert!(expected.values().zip(&found).all(|(entry, found)| *found == Some(*entry)));
            });
            if has_ended.recv_timeout(Duration::from_millis(200)).is_err() {
                *waited.lock() += 1;
            }
            lookups.lock().push(Some(lookup));
        }
    };
    for (number, batch) in log.iter().enumerate() {
        apply(&index, batch);
        *expected.lock() = Arc::new(model_of(&log[..=number]));
        if number == 5 {
            // There are now enough pages that none grows during a look.
            disk.during_writes(look.clone());
        }
        index.sweep_all().unwrap();
        // The waiting lookups find the result of this batch, not of the next.
        let waited: Vec<_> = lookups.lock().iter_mut().filter_map(Option::take).collect();
        waited.into_iter().for_each(|lookup| lookup.join().unwrap());
    }
    disk.during_writes(|_| ());
    assert_eq!(lookups.lock().len(), LOOKS);
    assert!(*waited.lock() > 0, "no lookup met a page that was half written");
}
