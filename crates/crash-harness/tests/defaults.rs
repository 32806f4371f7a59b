//! The trials of profile `exact` with the defaults of `init` and `serve`: the sizes that most stores have.

use onefold_crash_harness::{DEFAULTS, threads, trials};

#[test]
fn m0_18_random_crashes_of_whole_stores_with_defaults_lose_nothing() {
    trials::random_crashes(&DEFAULTS, 40);
}

#[test]
fn a_full_disk_and_other_errors_of_a_whole_store_with_defaults_lose_nothing() {
    trials::errors(&DEFAULTS, 20);
}

#[test]
fn m0_18_crashes_in_the_middle_of_many_threads_with_defaults_lose_nothing() {
    threads::crash(&DEFAULTS, 8);
}
