//! The machine's clocks: the date, which anybody with the right may set, and the time since boot, which nobody can set.

use std::fmt;
use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the kernel names the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Time namespaces of a process and of its future children. The offsets file says what the children's namespace adds to
/// the clocks.
const NAMESPACES: [&str; 2] = ["/proc/self/ns/time", "/proc/self/ns/time_for_children"];
const NAMESPACE_OFFSETS: &str = "/proc/self/timens_offsets";

/// All clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The date, nanoseconds since 1970; 0 for earlier dates.
    pub wall_ns: i64,
    /// The id of this boot. Values of `boot_ns` compare only within one boot.
    pub boot: u128,
    /// Nanoseconds since boot, including sleep, without the offset of a time namespace.
    pub boot_ns: u64,
}

impl Reading {
    /// Reads the machine's clocks.
    pub fn now() -> Reading {
        static BOOT: OnceLock<Boot> = OnceLock::new();
        let boot = BOOT.get_or_init(Boot::find);
        let boot_time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let since_boot = u64::try_from(boot_time.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
        Reading {
            wall_ns: SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0),
            boot: boot.name,
            boot_ns: since_boot.saturating_add(u64::try_from(boot_time.tv_nsec).unwrap_or(0)).saturating_sub_signed(boot.added_ns),
        }
    }
}

/// The boot in which this process runs.
struct Boot {
    name: u128,
    /// What this process's time namespace adds to the time since boot. Anybody may create a namespace with any offset.
    added_ns: i64,
}

impl Boot {
    /// Asks the kernel. If it does not tell everything, each process counts as a boot of its own.
    fn find() -> Boot {
        let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default().replace('-', "");
        match (u128::from_str_radix(text.trim(), 16), namespace_adds_ns()) {
            (Ok(name), Some(added_ns)) => Boot { name, added_ns },
            _ => {
                let mut bytes = [0; 16];
                // Without random bytes, 0 is as good an id as any.
                let _ = crate::fill_random(&mut bytes);
                Boot { name: u128::from_le_bytes(bytes), added_ns: 0 }
            }
        }
    }
}

/// Returns what this process's time namespace adds to the time since boot. `None`: unknown.
fn namespace_adds_ns() -> Option<i64> {
    match NAMESPACES.map(std::fs::read_link) {
        // The kernel shows the offsets of the children's namespace.
        [Ok(own), Ok(children)] if own == children => boot_offset_ns(&std::fs::read_to_string(NAMESPACE_OFFSETS).ok()?),
        // The kernel has no time namespaces.
        [Err(own), Err(_)] if own.kind() == ErrorKind::NotFound => Some(0),
        _ => None,
    }
}

/// Finds the line of the time since boot: name or number of the clock, seconds, nanoseconds.
fn boot_offset_ns(offsets: &str) -> Option<i64> {
    offsets.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        words.next().filter(|clock| matches!(*clock, "boottime" | "7"))?;
        let (seconds, nanoseconds): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
    })
}

/// The source of readings: the machine, or a test.
#[derive(Clone, Default)]
pub struct TimeSource(Option<Arc<dyn Fn() -> Reading + Send + Sync>>);

impl TimeSource {
    /// Creates a source whose readings a test decides.
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

    #[test]
    fn offsets_of_a_time_namespace_are_understood() {
        assert_eq!(boot_offset_ns("monotonic           7         8\nboottime            -2         500\n"), Some(-1_999_999_500));
        assert_eq!(boot_offset_ns("1 7 8\n7 2 5\n"), Some(2_000_000_005));
        assert_eq!(boot_offset_ns("monotonic 0 0\n"), None);
        assert_eq!(boot_offset_ns("boottime 9223372036854775807 0\n"), None);
    }

    #[test]
    fn a_6_a_time_namespace_makes_no_time_pass() {
        const INSIDE: &str = "ONEFOLD_TEST_IN_TIME_NAMESPACE";
        let now = Reading::now();
        if std::env::var_os(INSIDE).is_some() {
            return println!("reading {} {}", now.boot, now.boot_ns);
        }
        for offset in ["1000000000", "-60", "0"] {
            let mut command = std::process::Command::new("unshare");
            command.args(["--user", "--map-root-user", "--fork", "--time", "--boottime", offset]).arg(std::env::current_exe().unwrap());
            command.args(["--exact", "--nocapture", "time::tests::a_6_a_time_namespace_makes_no_time_pass"]).env(INSIDE, "1");
            let said = command.output().map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
            let Some(reading) = said.split_once("reading ").map(|(_, reading)| reading) else {
                return eprintln!("SKIPPED: no time namespaces here");
            };
            let mut numbers = reading.split_ascii_whitespace().map(|number| number.parse::<u128>().unwrap());
            let (boot, boot_ns) = (numbers.next().unwrap(), numbers.next().unwrap());
            assert_eq!(boot, now.boot);
            assert!((boot_ns - u128::from(now.boot_ns)) < 30_000_000_000, "{boot_ns} after {now:?}");
        }
    }
}
