//! The trials of profile `exact`, with bounds so small that everything happens.

use onefold_crash_harness::{EXACT, liveness, readers, threads, trials};

#[test]
fn m0_18_a_crash_at_every_sync_of_a_whole_store_loses_nothing() {
    trials::crash_at_every_sync(&EXACT, 3);
}

#[test]
fn m0_18_random_crashes_of_whole_stores_lose_nothing() {
    trials::random_crashes(&EXACT, 300);
}

#[test]
fn a_full_disk_and_other_errors_of_a_whole_store_lose_nothing() {
    trials::errors(&EXACT, 150);
}

#[test]
fn a_disk_that_is_full_and_then_enlarged_loses_nothing() {
    trials::full_and_enlarged(&EXACT, 60);
}

#[test]
fn m0_18_a_killed_process_then_another_then_a_power_cut_lose_nothing_of_a_whole_store() {
    trials::kills(&EXACT, 2);
}

#[test]
fn m0_18_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing_of_a_whole_store() {
    trials::failures(&EXACT, 2);
}

#[test]
fn m0_19_a_query_that_fails_while_opening_or_reclaiming_loses_nothing_of_a_whole_store() {
    trials::failed_queries(&EXACT, 2);
}

#[test]
fn m0_18_crashes_in_the_middle_of_many_threads_lose_nothing() {
    threads::crash(&EXACT, 40);
}

#[test]
fn threads_without_a_crash_read_what_they_wrote_and_leave_a_clean_store() {
    threads::leave_a_clean_store(&EXACT, 40);
}

#[test]
fn m0_19_counts_and_sets_of_references_call_the_same_chunks_unneeded_after_any_history() {
    liveness::agree_with_sets(&EXACT, 6);
}

#[test]
fn b12_readers_beside_a_writer_see_the_store_as_of_their_moment_whatever_it_does() {
    readers::see_their_moment(&EXACT, 60);
}
