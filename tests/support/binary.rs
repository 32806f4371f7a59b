//! Where the program under test is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The program, of the same profile as the test that asks: beside the test's own file, built first if it is absent or
/// older than its source. The environment variable `ONEFOLD_BINARY` names another one.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| std::env::var_os("ONEFOLD_BINARY").map_or_else(built, PathBuf::from))
}

fn built() -> PathBuf {
    // TARGET/PROFILE/deps/TEST
    let test = std::env::current_exe().unwrap();
    let profile_directory = test.parent().and_then(Path::parent).unwrap();
    let binary = profile_directory.join("onefold");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let newest_source = [root.join("Cargo.toml"), root.join("crates")].iter().filter_map(|path| newest(path)).max();
    let is_current = binary.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|built| Some(built) >= newest_source);
    if !is_current {
        let profile = match profile_directory.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        };
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
        cargo.args(["build", "--quiet", "--package", "onefold", "--bin", "onefold", "--profile", profile, "--target-dir"]);
        let status = cargo.arg(profile_directory.parent().unwrap()).current_dir(root).status().unwrap();
        assert!(status.success(), "the program under test cannot be built");
    }
    binary
}

/// When what the program is built from was changed last: sources and manifests below `path`, tests and benchmarks left
/// out.
fn newest(path: &Path) -> Option<SystemTime> {
    let metadata = path.symlink_metadata().ok()?;
    if metadata.is_dir() {
        if path.ends_with("tests") || path.ends_with("benches") {
            return None;
        }
        return std::fs::read_dir(path).ok()?.filter_map(|entry| newest(&entry.ok()?.path())).max();
    }
    let counts = path.extension().is_some_and(|extension| extension == "rs" || extension == "toml");
    if counts { metadata.modified().ok() } else { None }
}
