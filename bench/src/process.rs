//! What a program costs: wall time, processor time and peak memory of a child.
//!
//! The child is started by a small process of its own (this program, called as `measured`): peak memory of a process
//! counts what its parent had when it was started, and `getrusage` sums over all children.

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// What one run took.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Wall time, seconds.
    pub wall_s: f64,
    /// Time of processors, user and system, seconds.
    pub cpu_s: f64,
    /// Greatest resident memory, bytes.
    pub peak_bytes: u64,
    /// What it wrote to standard output.
    pub output: Vec<u8>,
}

impl Cost {
    /// The output as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.output).with_context(|| format!("not JSON: {}", String::from_utf8_lossy(&self.output)))
    }
}

/// Time of processors that this process took so far, user and system, all threads, seconds.
pub fn own_cpu_s() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

/// Times of processors in the text of `/proc/PID/stat`, user and system, seconds: its own, and those of children that
/// ended.
pub fn times_s(stat: &str) -> Result<(f64, f64)> {
    // Fields are counted behind the name, which is in brackets and may have blanks: utime, stime, cutime and cstime are
    // the 12th to the 15th.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).context("no times");
    // Clock ticks of the interface are hundredths of a second on Linux.
    Ok(((ticks(11)? + ticks(12)?) / 100.0, (ticks(13)? + ticks(14)?) / 100.0))
}

/// Greatest resident memory of a running process so far, bytes; `None`: it has ended.
pub fn peak_bytes(pid: u32) -> Option<u64> {
    peak_in_status(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// `VmHWM` in the text of `/proc/PID/status`.
fn peak_in_status(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()? * 1024)
}

/// Runs a program to its end; a failure is an error.
pub fn run(program: &Path, arguments: &[&str]) -> Result<Cost> {
    let output = Command::new(std::env::current_exe()?)
        .arg("measured")
        .arg("--")
        .arg(program)
        .args(arguments)
        .stderr(Stdio::piped())
        .output()
        .context("cannot start this program again")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{} {} failed: {errors}", program.display(), arguments.join(" "));
    }
    let last = errors.lines().last().unwrap_or_default();
    let cost: Value = serde_json::from_str(last).with_context(|| format!("no cost was reported: {errors}"))?;
    let number = |key: &str| cost[key].as_f64().with_context(|| format!("{key} is missing in {last}"));
    Ok(Cost { wall_s: number("wall_s")?, cpu_s: number("cpu_s")?, peak_bytes: number("peak_bytes")? as u64, output: output.stdout })
}

/// The process in between: runs its command and writes the cost as the last line of standard error.
pub fn measured(command: &[String]) -> Result<ExitCode> {
    let (program, arguments) = command.split_first().context("no command was given")?;
    let start = Instant::now();
    let status = Command::new(program).args(arguments).status().with_context(|| format!("cannot run {program}"))?;
    let wall_s = start.elapsed().as_secs_f64();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let cpu_us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    eprintln!("{}", json!({"wall_s": wall_s, "cpu_s": cpu_us as f64 / 1e6, "peak_bytes": usage.max_rss() * 1024}));
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_status() {
        assert_eq!(peak_in_status("Name:\ta\nVmPeak:\t  9 kB\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n"), Some(12345 * 1024));
        assert_eq!(peak_in_status("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn times_are_found_behind_a_name_with_blanks_and_brackets() {
        let stat = "2735 (a) b (c)) S 2722 2722 31635 0 -1 4194560 611 136143 8 12 150 50 82 37 20 0 1 0 1857324 15826944 2214";
        assert_eq!(times_s(stat).unwrap(), (2.0, 1.19));
        assert!(times_s("2735 (sshd) S 2722").is_err());
    }
}
