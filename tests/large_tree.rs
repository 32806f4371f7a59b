//! A large real tree, the libraries and a part of the documentation of the Rust toolchain, backed up, restored and
//! compared.

use onefold_tests::{Scene, assert_same_tree};
use std::path::{Path, PathBuf};
use std::process::Command;

/// About 600 MB in a few thousand files.
fn toolchain() -> Vec<PathBuf> {
    let Ok(output) = Command::new("rustc").args(["--print", "sysroot"]).output() else { return Vec::new() };
    let root = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let parts = ["lib", "libexec", "share/doc/rust/html/std"].map(|part| root.join(part));
    parts.into_iter().filter(|part| part.is_dir()).collect()
}

#[test]
fn a_large_real_tree_comes_back_in_every_byte_and_attribute() {
    let parts = toolchain();
    if parts.is_empty() {
        println!("skipped: no rustc that says where its toolchain is");
        return;
    }
    let scene = Scene::new(&[], "");
    let backup = |name: &str| {
        let arguments = ["backup", "--json", "--name", name].map(Path::new);
        scene.run(arguments.into_iter().chain(parts.iter().map(PathBuf::as_path))).succeeds().json()
    };
    let first = backup("toolchain");
    assert_eq!((&first["problems"], &first["read_bytes"]), (&serde_json::json!([]), &first["logical_bytes"]));
    let second = backup("toolchain");
    assert_eq!((&second["read_bytes"], &second["files_unmodified"]), (&0.into(), &first["files"]));
    assert!(second["added_bytes"].as_u64().unwrap() < 4096, "{second}");

    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    for part in &parts {
        let part = std::fs::canonicalize(part).unwrap();
        assert_same_tree(&part, &scene.path("back").join(part.strip_prefix("/").unwrap()));
    }
    scene.check();
}
