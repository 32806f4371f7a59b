//! The mutations of `tests/mutations` do not rot: `make mutations` finds each of them where it can be tried.

use onefold_tests::installed;
use std::path::Path;
use std::process::Command;

#[test]
fn every_mutation_still_applies_and_names_a_test_that_is_there() {
    if !installed(&["git", "python3"]) {
        return;
    }
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/mutations");
    let output = Command::new(tool).arg("--check").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
