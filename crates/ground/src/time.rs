//! The clocks of the machine: the date, which anybody with the right may set, and the time since boot, which nobody can.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the kernel names the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What all clocks show at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The date, nanoseconds since 1970; 0 if it lies before.
    pub wall_ns: i64,
    /// The name of this boot: `boot_ns` compares only within one.
    pub boot: u128,
    /// Nanoseconds since boot, sleep included.
    pub boot_ns: u64,
}

impl Reading {
    /// Reads the machine's clocks.
    pub fn now() -> Reading {
        static BOOT: OnceLock<u128> = OnceLock::new();
        let boot_time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let since_boot = u64::try_from(boot_time.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
        Reading {
            wall_ns: SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0),
            boot: *BOOT.get_or_init(boot),
            boot_ns: since_boot.saturating_add(u64::try_from(boot_time.tv_nsec).unwrap_or(0)),
        }
    }
}

/// The name of this boot. Where the kernel tells none, every process counts as a boot of its own.
fn boot() -> u128 {
    let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default().replace('-', "");
    u128::from_str_radix(text.trim(), 16).unwrap_or_else(|_| {
        let mut bytes = [0; 16];
        // Without random bytes either, 0 is as good a name as any.
        let _ = crate::fill_random(&mut bytes);
        u128::from_le_bytes(bytes)
    })
}

/// Where readings come from: the machine, or a test.
#[derive(Clone, Default)]
pub struct TimeSource(Option<Arc<dyn Fn() -> Reading + Send + Sync>>);

impl TimeSource {
    /// Makes a source of readings that a test decides on.
    pub fn of(read: impl Fn() -> Reading + Send + Sync + 'static) -> TimeSource {
        TimeSource(Some(Arc::new(read)))
    }

    /// Reads the clocks.
    pub fn read(&self) -> Reading {
        self.0.as_ref().map_or_else(Reading::now, |read| read())
    }
}

impl PartialEq for TimeSource {
    fn eq(&self, other: &TimeSource) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for TimeSource {}

impl fmt::Debug for TimeSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "a test's clock" } else { "the machine's clocks" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_since_boot_passes_and_the_boot_keeps_its_name() {
        let (one, two) = (Reading::now(), Reading::now());
        assert!(one.boot == two.boot && one.boot != 0 && one.boot_ns <= two.boot_ns && one.boot_ns > 0 && one.wall_ns > 0);
    }
}
