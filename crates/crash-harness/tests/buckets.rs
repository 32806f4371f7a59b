//! The trials of stores in a bucket.

use onefold_crash_harness::{EXACT, MARKED, SAMPLED, buckets};

#[test]
fn failing_requests_and_lost_directories_lose_nothing_of_an_exact_store() {
    buckets::random_failures(&EXACT, 150);
}

#[test]
fn failing_requests_and_lost_directories_lose_nothing_of_a_marked_store() {
    buckets::random_failures(&MARKED, 60);
}

#[test]
fn failing_requests_and_lost_directories_lose_nothing_of_a_sampled_store() {
    buckets::random_failures(&SAMPLED, 60);
}

#[test]
fn a_store_that_is_taken_over_loses_nothing_that_anybody_was_told() {
    buckets::taken_over(&EXACT, 40);
    buckets::taken_over(&SAMPLED, 20);
}

#[test]
fn requests_of_upkeep_follow_what_is_there_and_not_the_numbers_of_containers() {
    buckets::requests_follow_what_is_there(&EXACT, 10);
    buckets::requests_follow_what_is_there(&MARKED, 10);
    buckets::requests_follow_what_is_there(&SAMPLED, 10);
}
