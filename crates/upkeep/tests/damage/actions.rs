//! What is done to the files of a store, and what must hold whatever it was.

use crate::scene::{Look, Scene, look};
use onefold_engine::Mode;
use onefold_ground::{Access, Ground, SimulatedGround};

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Flip(u64),
    Zero(u64, u64),
    Cut(u64),
    Delete,
}

impl Action {
    pub fn apply(self, ground: &SimulatedGround, path: &str) {
        match self {
            Action::Flip(at) => ground.corrupt(path, at, 0x20).unwrap(),
            Action::Zero(at, length) => {
                ground.open(path, Access::ReadWrite).unwrap().write_at(at, &vec![0; length as usize]).unwrap();
            }
            Action::Cut(length) => ground.open(path, Access::ReadWrite).unwrap().set_len(length).unwrap(),
            Action::Delete => ground.remove(path).unwrap(),
        }
    }
}

/// The usual changes of a file of `length` bytes: flips and zeros at `places`, all cuts, nothing left.
pub fn actions(length: u64, places: &[u64]) -> Vec<Action> {
    let mut actions: Vec<Action> = places.iter().filter(|at| **at < length).map(|at| Action::Flip(*at)).collect();
    actions.extend(places.iter().filter(|at| *at + 64 <= length).map(|at| Action::Zero(*at, 64)));
    actions.extend([
        Action::Cut(0),
        Action::Cut(length / 2),
        Action::Cut(length.saturating_sub(1)),
        Action::Zero(0, length),
        Action::Delete,
    ]);
    actions
}

/// Damages a copy, looks at it for reading and for writing, and holds what must always hold. Returns the look for
/// reading.
pub fn try_it(scene: &Scene, path: &str, action: Action) -> Look {
    try_change(scene, path, &format!("{action:?}"), &|ground| action.apply(ground, path))
}

/// Does the same with any change of a file.
pub fn try_change(scene: &Scene, path: &str, what: &str, change: &dyn Fn(&SimulatedGround)) -> Look {
    let what = format!("{path} {what}");
    let expected = scene.states.last().unwrap();
    let mut first = None;
    for mode in [Mode::ReadOnly, Mode::ReadWrite] {
        let ground = scene.copy();
        change(&ground);
        let found = look(&ground, mode, expected);
        let state = scene.states.iter().rposition(|state| found.agrees(state));
        // Only the log may lose its end, and then the store is what it was before.
        let allowed = if path.starts_with("log/") { 0 } else { scene.states.len() - 1 };
        assert!(state.is_some_and(|state| state >= allowed), "{what} {mode:?}: wrong content, state {state:?}");
        if let Some(error) = &found.refused {
            let part = path.split('/').next().unwrap();
            assert!(error.contains(path) || error.contains(part), "{what} {mode:?}: the error does not say where: {error}");
        }
        found.assert_named(&what);
        first.get_or_insert(found);
    }
    first.unwrap()
}

/// Tries all actions that change something and requires that each is found.
pub fn all_found(scene: &Scene, path: &str, actions: impl IntoIterator<Item = Action>) {
    let bytes = scene.bytes(path);
    let changes = |action: &Action| match *action {
        Action::Zero(at, length) => bytes[at as usize..][..length as usize].iter().any(|byte| *byte != 0),
        Action::Cut(length) => length < bytes.len() as u64,
        Action::Flip(_) | Action::Delete => true,
    };
    for action in actions.into_iter().filter(changes) {
        assert!(try_it(scene, path, action).is_found(), "{path} {action:?}: not found");
    }
}

/// Tries all actions and requires that none of them is felt.
pub fn all_harmless(scene: &Scene, path: &str, actions: impl IntoIterator<Item = Action>) {
    for action in actions {
        let found = try_it(scene, path, action);
        let problems: Vec<_> = found.report.problems.iter().map(|problem| &problem.what).collect();
        assert!(!found.is_found(), "{path} {action:?}: {:?} {problems:?}", found.refused);
        assert!(found.agrees(scene.states.last().unwrap()), "{path} {action:?}");
    }
}

pub fn files(scene: &Scene, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let files: Vec<String> = scene.files().into_iter().filter(|path| wanted(path)).collect();
    assert!(!files.is_empty());
    files
}
