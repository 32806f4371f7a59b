//! Progress of long work: how much of how much, how fast, how much time is left, which file.
//!
//! * [`Watch`]: the monitor of backups, restores and analyses. It shows a bar on a terminal, or lines for programs. It
//!   prints problems as they come and keeps them for the result.
//! * [`Course`]: rate and time left, from the counters of such work.
//! * [`bar`], [`titled_bar`], [`steps`]: bars of other work, on a terminal only.

mod course;
mod watch;

pub use course::Course;
pub use watch::{Shown, Watch, problems_json, said, summary};

use crate::talk::Talk;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Returns a bar over `total_bytes`; invisible if nobody watches.
pub fn bar(talk: Talk, total_bytes: u64) -> ProgressBar {
    styled(
        talk,
        total_bytes,
        "{elapsed_precise} [{bar:16}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left {wide_msg}",
    )
}

/// Returns a bar below a title line. With 0 bytes, the total is unknown, and there is only the line.
pub fn titled_bar(talk: Talk, total_bytes: u64, title: String) -> ProgressBar {
    let template = match total_bytes {
        0 => "{elapsed_precise} {spinner} {wide_msg}",
        _ => "{wide_msg}\n{elapsed_precise} [{bar:16}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
    };
    let bar = styled(talk, total_bytes, template);
    bar.set_message(title);
    bar
}

/// Returns a bar over steps that are not counted in bytes. Its message names the step.
pub fn steps(talk: Talk) -> ProgressBar {
    styled(talk, 0, "{elapsed_precise} {msg} [{bar:30}] {pos}/{len}, {eta} left")
}

/// Returns whether anybody watches a bar.
pub fn is_shown(talk: Talk) -> bool {
    !talk.quiet && !talk.verbose && std::io::stderr().is_terminal()
}

fn styled(talk: Talk, length: u64, template: &str) -> ProgressBar {
    if !is_shown(talk) {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
