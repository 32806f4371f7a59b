//! Damage, as in `damage`, of stores without a chunk index: hooks and marks are among the files that are damaged
//! (M3.4 to M3.7).

#[path = "../damage/actions.rs"]
mod actions;
#[path = "../damage/came_back.rs"]
mod came_back;
#[path = "../damage/common.rs"]
mod common;
#[path = "../damage/holes.rs"]
mod holes;
#[path = "../damage/lost.rs"]
mod lost;
#[path = "../damage/matrix.rs"]
mod matrix;
#[path = "../damage/merging.rs"]
mod merging;
#[path = "../damage/scene.rs"]
mod scene;

use onefold_engine::StoreProfile;

const PROFILE: StoreProfile = StoreProfile::Sampled;

include!("../damage/suite.rs");

#[test]
fn m3_7_damage_of_marks_spoils_nothing() {
    let scene = Scene::new();
    let marks = files(&scene, |path| path.starts_with("marks/"));
    assert!(marks.len() >= 3, "marks of the volume, of the backups, and the list of what is to be swept: {marks:?}");
    for path in marks {
        for action in actions(scene.length(&path), &[0, 9, 17, 25, 29, 33, 40]) {
            try_it(&scene, &path, action);
        }
    }
}
