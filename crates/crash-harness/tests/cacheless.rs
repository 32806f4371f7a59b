//! The trials of profile `cacheless`.

use onefold_crash_harness::{CACHELESS, readers, threads, trials};

#[test]
fn m0_18_a_crash_at_every_sync_of_a_whole_store_loses_nothing() {
    trials::crash_at_every_sync(&CACHELESS, 3);
}

#[test]
fn m0_18_random_crashes_of_whole_stores_lose_nothing() {
    trials::random_crashes(&CACHELESS, 300);
}

#[test]
fn a_full_disk_and_other_errors_of_a_whole_store_lose_nothing() {
    trials::errors(&CACHELESS, 150);
}

#[test]
fn a_disk_that_is_full_and_then_enlarged_loses_nothing() {
    trials::full_and_enlarged(&CACHELESS, 60);
}

#[test]
fn m0_18_a_killed_process_then_another_then_a_power_cut_lose_nothing_of_a_whole_store() {
    trials::kills(&CACHELESS, 2);
}

#[test]
fn m0_18_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing_of_a_whole_store() {
    trials::failures(&CACHELESS, 2);
}

#[test]
fn m0_19_a_query_that_fails_while_opening_or_reclaiming_loses_nothing_of_a_whole_store() {
    trials::failed_queries(&CACHELESS, 2);
}

#[test]
fn m0_18_crashes_in_the_middle_of_many_threads_lose_nothing() {
    threads::crash(&CACHELESS, 40);
}

#[test]
fn threads_without_a_crash_read_what_they_wrote_and_leave_a_clean_store() {
    threads::leave_a_clean_store(&CACHELESS, 40);
}

#[test]
fn b12_readers_beside_a_writer_see_the_store_as_of_their_moment_whatever_it_does() {
    readers::see_their_moment(&CACHELESS, 60);
}
