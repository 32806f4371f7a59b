//! The check and what keeps things from being deleted.

use onefold_engine::{Descriptor, Engine, Mode, Settings, Transaction};
use onefold_ground::{Ground, SimulatedGround};
use onefold_upkeep::{CheckOptions, NoMonitor, ProblemKind, check};
use std::sync::Arc;

#[test]
fn protections_and_a_mode_that_cannot_be_read_are_named() {
    let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
    let engine = Engine::open(ground, Settings { background: false, ..Settings::default() }, Mode::ReadWrite, "test").unwrap();
    engine.switch_append_only_on(b"open sesame").unwrap();
    assert!(check(&engine, CheckOptions::default(), &NoMonitor).unwrap().is_clean());
    let protection = [b"k".as_slice(), &[0xab; 16]].concat();
    let garbage = vec![(0, b"a".to_vec(), Some(vec![1, 2])), (0, protection, Some(vec![1]))];
    engine.submit(Transaction { changes: garbage, references: Vec::new() }).unwrap();
    engine.flush().unwrap();
    let report = check(&engine, CheckOptions::default(), &NoMonitor).unwrap();
    let found = |text: &str| report.problems.iter().any(|problem| problem.kind == ProblemKind::Object && problem.what.contains(text));
    assert!(report.problem_count == 2 && found(&"ab".repeat(16)) && found("append-only mode"), "{:?}", report.problems);
}
