//! More components than a profile tells apart. In a process of its own, because components are those of a process.

use onefold_ground::profile::{Component, Profile};

#[test]
fn components_without_a_place_count_as_other_ones() {
    let profile = Profile::default();
    for number in 0..40 {
        let name: &'static str = Box::leak(format!("component {number}").into_boxed_str());
        profile.add(&Component::new(name), 1, 10);
    }
    let report = profile.report();
    let (named, other) = report.split_at(report.len() - 1);
    assert_eq!(named.len(), 32);
    assert!(named.iter().all(|(_, usage)| usage.calls == 1));
    assert_eq!((other[0].0, other[0].1.calls, other[0].1.bytes), ("other", 8, 80));
}
