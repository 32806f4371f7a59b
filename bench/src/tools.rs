//! Other backup programs on the same corpus in the same run, those of them that are installed: what is a small repository here, what is quick.

use crate::backups::disk_bytes;
use crate::process::{Cost, run};
use crate::report::Report;
use crate::{Options, corpus};
use anyhow::Result;
use std::fs;
use std::path::Path;

/// How a program is called, as arguments of `env`. `{store}`, `{tree}` and `{name}` are put in.
struct Tool {
    name: &'static str,
    init: &'static [&'static str],
    backup: &'static [&'static str],
}

const TOOLS: [Tool; 2] = [
    Tool {
        name: "restic",
        init: &["RESTIC_PASSWORD=bench", "restic", "-q", "--no-cache", "-r", "{store}", "init"],
        backup: &["RESTIC_PASSWORD=bench", "restic", "-q", "--no-cache", "-r", "{store}", "backup", "{tree}"],
    },
    Tool {
        name: "borg",
        init: &["borg", "init", "-e", "none", "{store}"],
        backup: &["BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes", "borg", "create", "-C", "zstd,1", "{store}::{name}", "{tree}"],
    },
];

/// First, unchanged and changed backup by each program.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    report.group("Other programs, store in memory, one run");
    for tool in &TOOLS {
        if run(Path::new("env"), &[tool.name, "--version"]).is_err() && run(Path::new("env"), &[tool.name, "version"]).is_err() {
            eprintln!("{} is not installed: left out", tool.name);
            continue;
        }
        let place = tempfile::tempdir_in(&options.memory)?;
        let (tree, store) = (place.path().join("tree"), place.path().join("store"));
        corpus::create(&tree, options.size, options.seed)?;
        let gigabytes = corpus::measure(&tree).0 as f64 / 1e9;
        // Its caches and keys go where they are deleted with the rest.
        let home = format!("HOME={}", place.path().display());
        let call = |arguments: &[&str], name: &str| -> Result<Cost> {
            let put_in = |argument: &&str| {
                let argument = argument.replace("{store}", &store.display().to_string());
                argument.replace("{tree}", &tree.display().to_string()).replace("{name}", name)
            };
            let arguments: Vec<String> = std::iter::once(home.clone()).chain(arguments.iter().map(put_in)).collect();
            run(Path::new("env"), &arguments.iter().map(String::as_str).collect::<Vec<_>>())
        };
        call(tool.init, "")?;
        let mut size = disk_bytes(&store)?;
        for generation in ["first", "unchanged", "changed"] {
            if generation == "changed" {
                corpus::change(&tree, options.seed)?;
            }
            let cost = call(tool.backup, generation)?;
            let now = disk_bytes(&store)?;
            report.add(format!("{}, {generation}: wall", tool.name), cost.wall_s, "s");
            report.add(format!("{}, {generation}: CPU", tool.name), cost.cpu_s / gigabytes, "s/GB");
            report.add(format!("{}, {generation}: peak memory", tool.name), cost.peak_bytes as f64 / 1e6, "MB");
            report.add(format!("{}, {generation}: repository grows by", tool.name), (now as f64 - size as f64) / 1e6, "MB");
            size = now;
        }
        fs::remove_dir_all(&store)?;
    }
    Ok(())
}
