//! Time and bytes by component (M0.22): where the wall time of the data path goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Something that time is spent on. The crate that does it names it, in a `static`:
/// `pub static LOG: Component = Component::new("log");`. Two with one name are one.
#[derive(Debug)]
pub struct Component {
    name: &'static str,
    /// Its place in all profiles, from its first use on.
    place: OnceLock<usize>,
}

/// The most components of a process that are told apart. What is used for the first time after them counts as
/// [`OTHER`].
const MAX_COMPONENTS: usize = 32;
/// The component of those that have no place of their own.
const OTHER: &str = "other";

/// The names of all components that were used, by place.
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

fn names() -> MutexGuard<'static, Vec<&'static str>> {
    // A name is there or not: the list is whole at any time.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Component {
    /// Names a component.
    pub const fn new(name: &'static str) -> Component {
        Component { name, place: OnceLock::new() }
    }

    /// Returns its name in reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn place(&self) -> usize {
        *self.place.get_or_init(|| {
            let mut names = names();
            names.iter().position(|name| *name == self.name).unwrap_or_else(|| {
                // Measuring never fails what it measures.
                if names.len() < MAX_COMPONENTS {
                    names.push(self.name);
                    names.len() - 1
                } else {
                    MAX_COMPONENTS
                }
            })
        })
    }
}

/// The sums of one component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Calls.
    pub calls: u64,
    /// Wall time, nanoseconds.
    pub time_ns: u64,
    /// Bytes handled.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Cell {
    calls: AtomicU64,
    time_ns: AtomicU64,
    bytes: AtomicU64,
}

impl Cell {
    fn usage(&self) -> Usage {
        Usage {
            calls: self.calls.load(Ordering::Relaxed),
            time_ns: self.time_ns.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Sums for all components of one store. Cheap enough to stay on: two clock reads per batch.
#[derive(Debug, Default)]
pub struct Profile {
    /// By place.
    cells: [Cell; MAX_COMPONENTS],
    other: Cell,
}

impl Profile {
    /// Runs `work` and adds its time and `bytes` to `component`.
    pub fn time<T>(&self, component: &Component, bytes: u64, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(component, start.elapsed().as_nanos() as u64, bytes);
        result
    }

    /// Adds one call.
    pub fn add(&self, component: &Component, time_ns: u64, bytes: u64) {
        let cell = self.cell(component);
        cell.calls.fetch_add(1, Ordering::Relaxed);
        cell.time_ns.fetch_add(time_ns, Ordering::Relaxed);
        cell.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The sums so far.
    pub fn usage(&self, component: &Component) -> Usage {
        self.cell(component).usage()
    }

    fn cell(&self, component: &Component) -> &Cell {
        self.cells.get(component.place()).unwrap_or(&self.other)
    }

    /// All components with at least one call, by name.
    pub fn report(&self) -> Vec<(&'static str, Usage)> {
        let names = names().clone();
        let named = names.into_iter().zip(&self.cells);
        let all = named.chain([(OTHER, &self.other)]).map(|(name, cell)| (name, cell.usage()));
        let mut report: Vec<_> = all.filter(|(_, usage)| usage.calls > 0).collect();
        report.sort_unstable_by_key(|(name, _)| *name);
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static CUTTING: Component = Component::new("cutting");
    static HASHING: Component = Component::new("hashing");
    static CUTTING_ELSEWHERE: Component = Component::new("cutting");

    #[test]
    fn m0_22_time_and_bytes_are_summed_by_component() {
        let profile = Profile::default();
        assert_eq!(profile.time(&CUTTING, 100, || 7), 7);
        profile.add(&CUTTING, 5, 50);
        let usage = profile.usage(&CUTTING);
        assert_eq!((usage.calls, usage.bytes), (2, 150));
        assert!(usage.time_ns >= 5);
        assert_eq!(profile.report(), [("cutting", usage)]);
    }

    #[test]
    fn components_of_one_name_are_one_and_others_are_apart() {
        let profile = Profile::default();
        profile.add(&HASHING, 1, 10);
        profile.add(&CUTTING, 2, 20);
        profile.add(&CUTTING_ELSEWHERE, 3, 30);
        let cutting = Usage { calls: 2, time_ns: 5, bytes: 50 };
        assert_eq!(profile.usage(&CUTTING), cutting);
        assert_eq!(profile.report(), [("cutting", cutting), ("hashing", Usage { calls: 1, time_ns: 1, bytes: 10 })]);
        assert!(Profile::default().report().is_empty());
    }
}
