//! What the binary says to wrong input: what happened, what to do, exit code 2; and never a panic or a dump of insides.

mod support;

use onefold_engine::{FORMAT, FORMAT_WITH_OWN_PARTITION};
use std::process::Stdio;
use support::{Run, Scene, noise};

#[test]
fn an_unknown_flag_is_answered_with_the_one_that_was_meant() {
    let scene = Scene::new();
    scene.run(["backup", "--nmae", "x", "/etc"]).ends_with(2).says(&["--nmae", "--name"]);
    scene.run(["bakup"]).ends_with(2).says(&["bakup", "backup"]);
    scene.run(["backup", "--name", "x"]).ends_with(2).says(&["PATH"]);
    scene.run(["frobnicate"]).ends_with(2);
    let run = scene.run::<&str>([]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("Usage"));
}

#[test]
fn help_and_version_go_to_standard_output() {
    let scene = Scene::new();
    for command in [
        "analyze",
        "init",
        "backup",
        "restore",
        "serve",
        "volume",
        "stats",
        "check",
        "scrub",
        "ls",
        "diff",
        "dump",
        "backups",
        "completions",
        "forget",
        "protect",
        "append-only",
        "account",
    ] {
        assert!(scene.run([command, "--help"]).succeeds().out.contains("Usage: onefold"), "{command}");
    }
    assert!(scene.run(["--version"]).succeeds().out.starts_with("onefold "));
    assert!(scene.run(["--help"]).succeeds().out.contains("Examples:"));
}

#[test]
fn completions_and_manual_page_come_from_the_parser() {
    let scene = Scene::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(scene.run(["completions", shell]).succeeds().out.contains("one-file-system"), "{shell}");
    }
    assert!(scene.run(["manpage"]).succeeds().out.contains(".TH onefold"));
}

#[test]
fn bad_sizes_are_refused_by_name() {
    let scene = Scene::new();
    for (size, expected) in [
        ("8XiB", "`XiB` in `8XiB` is not a unit"),
        ("big", "`big` is not a size"),
        ("1.3B", "not a whole number"),
        ("99999999999999999999", "16EiB"),
    ] {
        scene.run(["init", "s", "--chunk-size", size]).ends_with(2).says(&["--chunk-size", expected]);
    }
    scene.run(["init", "s", "--chunk-size", "1B"]).ends_with(2);
    scene.run(["init", "s", "--chunk-size", "9000"]).ends_with(2).says(&["power of two"]);
    scene.run(["init", "s", "--container-size", "1TiB"]).ends_with(2).says(&["container"]);
    scene.run(["init", "s", "--frame-size", "1"]).ends_with(2).says(&["frame"]);
    scene.run(["init", "s", "--compression", "zstd:99"]).ends_with(2).says(&["--compression", "zstd"]);
    scene.run(["init", "s", "--compression", "rar"]).ends_with(2).says(&["--compression"]);
    scene.run(["init", "s", "--profile", "magic"]).ends_with(2).says(&["exact"]);
    scene.run(["init", "s", "--fingerprint", "sha25"]).ends_with(2).says(&["sha256"]);
    assert!(!scene.path("s").join("descriptor").exists());
}

#[test]
fn m3_5_a_capacity_says_how_many_chunks_have_a_hook_and_needs_memory_for_the_containers() {
    let scene = Scene::new();
    scene.run(["init", "s", "--capacity", "1TiB"]).ends_with(2).says(&["capacity", "`sampled`", "`exact`"]);
    scene.run(["init", "s", "--sampled-index", "1GiB"]).ends_with(2).says(&["--sampled-index", "no hooks"]);
    let sampled = ["init", "s", "--profile", "sampled"];
    let with = |more: &[&'static str]| [&sampled[..], more].concat();
    scene.run(with(&["--sampled-index", "1KiB"])).ends_with(2).says(&["--sampled-index", "4KiB"]);
    scene.run(with(&["--capacity", "1B"])).ends_with(2).says(&["capacity", "one container"]);
    let needed = "--sampled-index 889MiB";
    scene.run(with(&["--capacity", "500TiB"])).ends_with(2).says(&["at least 889MiB", "131,072,000 containers", needed]);
    assert!(!scene.path("s").exists(), "a refusal leaves nothing behind");
    let made = scene.run(with(&["--capacity", "500TiB", "--sampled-index", "889MiB"])).succeeds();
    assert!(made.out.contains("at 500TiB one chunk of 496 has a hook"), "{}", made.out);
    let settings = std::fs::read_to_string(scene.path("s/onefold.toml")).unwrap();
    assert!(settings.lines().any(|line| line == "sampled_index = \"889MiB\""), "{settings}");
    let made = scene.run(["init", "t", "--profile", "sampled", "--capacity", "1GiB", "--json"]).succeeds().json();
    assert_eq!((&made["capacity_bytes"], &made["chunks_for_hook"]), (&(1u64 << 30).into(), &1.into()));
    let made = scene.run(["init", "u", "--json"]).succeeds().json();
    assert!(made["capacity_bytes"].is_null() && made["chunks_for_hook"].is_null());
}

#[test]
fn m3_5_a_capacity_that_is_exceeded_is_said() {
    let scene = Scene::new();
    let small = ["--container-size", "64KiB", "--chunk-size", "1KiB", "--compression", "none"];
    scene.run([&["init", "store", "--profile", "sampled", "--capacity", "1MiB"], &small[..]].concat()).succeeds();
    let stats = scene.run(["stats", "--json"]).succeeds().json();
    assert_eq!((&stats["capacity_bytes"], &stats["capacity_exceeded"]), (&(1 << 20).into(), &false.into()));
    std::fs::write(scene.path("file"), noise(1, 2 << 20)).unwrap();
    scene.run(["backup", "--name", "x", "file"]).succeeds();
    assert_eq!(scene.run(["stats", "--json"]).succeeds().json()["capacity_exceeded"], true);
    assert!(scene.run(["stats"]).succeeds().out.contains("more is stored than the capacity of 1MiB"));
}

#[test]
fn a_place_that_is_no_store_is_named() {
    let scene = Scene::new();
    scene.run(["backups"]).ends_with(2).says(&["there is no store at", "onefold init"]);
    std::fs::create_dir(scene.store()).unwrap();
    std::fs::write(scene.store().join("letter"), "dear").unwrap();
    scene.run(["stats"]).ends_with(2).says(&["not a onefold store", "onefold init"]);
    scene.run(["serve", "--nbd"]).ends_with(2).says(&["not a onefold store"]);
    assert_eq!(std::fs::read_dir(scene.store()).unwrap().count(), 1, "nothing is left behind");
    scene.run(["init", "store"]).ends_with(2).says(&["not empty"]);
    std::fs::write(scene.path("file"), "x").unwrap();
    scene.run(["backups", "--store", "file"]).ends_with(2).says(&["file"]);
    scene.run(["init", "file"]).ends_with(2).says(&["file"]);
}

#[test]
fn a_store_is_not_made_twice() {
    let scene = Scene::with_store(&[]);
    scene.run(["init", "store"]).ends_with(2).says(&["not empty"]);
    scene.run(["backups"]).succeeds();
}

#[test]
fn a_store_of_a_newer_or_an_earlier_version_is_refused() {
    let scene = Scene::with_store(&[]);
    let text = std::fs::read_to_string(scene.store().join("descriptor")).unwrap();
    for (format, advice) in [(FORMAT_WITH_OWN_PARTITION + 1, "newer onefold"), (1, "earlier onefold")] {
        let body = text.replace(&format!("format = {FORMAT}"), &format!("format = {format}"));
        let body = &body[..body.rfind("checksum").unwrap()];
        let text = format!("{body}checksum = \"{:016x}\"\n", onefold_ground::checksum(body.as_bytes()));
        // An earlier onefold wrote both.
        ["descriptor", "descriptor.copy"].iter().for_each(|name| std::fs::write(scene.store().join(name), &text).unwrap());
        scene.run(["backups"]).ends_with(2).says(&[&format!("format {format}"), advice]);
        scene.run(["check", "--repair"]).ends_with(2).says(&[&format!("format {format}"), advice]);
    }
}

#[test]
fn a_damaged_descriptor_is_refused() {
    let scene = Scene::with_store(&[]);
    let descriptor = scene.store().join("descriptor");
    let text = std::fs::read_to_string(&descriptor).unwrap().replace("8192", "4096");
    std::fs::write(&descriptor, text).unwrap();
    // Its second copy is enough for readers.
    scene.run(["backups"]).succeeds();
    let found = scene.run(["check", "--json"]).ends_with(1).json();
    assert_eq!(found["problems"][0]["kind"], "spare");
    scene.run(["volume", "create", "disk", "--size", "1MiB"]).ends_with(2).says(&["descriptor", "damaged"]);
    std::fs::copy(&descriptor, scene.store().join("descriptor.copy")).unwrap();
    let run = scene.run(["backups"]).ends_with(2).says(&["descriptor", "damaged", "from a copy"]);
    assert!(!run.err.contains("onefold check --read-data"), "a check cannot open it either: {}", run.err);
}

#[test]
fn what_keeps_a_store_from_opening_is_listed_by_check() {
    let files = ["descriptor", "owner", "log", "index/0000/header", "objects/0000.redb"];
    for file in files {
        let scene = Scene::with_store(&[]);
        let mut path = scene.store().join(file);
        if path.is_dir() {
            path = std::fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
        }
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        std::fs::write(&path, vec![b'x'; bytes.len()]).unwrap();
        if file == "descriptor" {
            std::fs::copy(&path, scene.store().join("descriptor.copy")).unwrap();
        }
        let found = scene.run(["check", "--json"]).ends_with(1).json();
        assert_eq!((&found["clean"], &found["problem_count"]), (&false.into(), &1.into()), "{file}: {found}");
        assert_eq!(found["problems"][0]["kind"], "opening", "{file}");
        assert!(found["problems"][0]["what"].as_str().unwrap().contains(name), "{file}: {found}");
        let run = scene.run(["check"]).ends_with(1).says(&["nothing else could be checked", "from a copy"]);
        assert!(run.out.contains(name), "{file}: {}", run.out);
        if file != "descriptor" {
            std::fs::remove_file(&path).unwrap();
            let run = scene.run(["check"]).ends_with(1);
            // Of a log without segments only the log has a name.
            assert!(run.out.contains(if file == "log" { file } else { name }), "{file} deleted: {}{}", run.out, run.err);
            scene.run(["check", "--repair", "--dry-run"]).ends_with(1);
            scene.run(["check", "--repair"]).succeeds();
            scene.run(["check"]).succeeds();
        }
    }
}

#[test]
fn an_unknown_setting_is_refused_with_file_line_and_nearest() {
    let scene = Scene::with_store(&[]);
    std::fs::write(scene.store().join("onefold.toml"), "[memory]\nframe_cash = \"1MiB\"\n").unwrap();
    scene.run(["backups"]).ends_with(2).says(&["onefold.toml", "line 2", "`frame_cash`", "did you mean `frame_cache`?"]);
    std::fs::write(scene.path("other.toml"), "[ndb]\n").unwrap();
    scene.run(["serve", "--config", "other.toml"]).ends_with(2).says(&["other.toml", "line 1", "[nbd]"]);
    scene.run(["serve", "--config", "absent.toml"]).ends_with(2).says(&["absent.toml", "No such file"]);
}

#[test]
fn serving_without_tls_to_other_machines_must_be_allowed() {
    let scene = Scene::with_store(&[]);
    scene.run(["serve", "--nbd", "0.0.0.0:0"]).ends_with(2).says(&["0.0.0.0:0", "loopback", "--allow-plain-off-loopback"]);
    scene.run(["serve", "--nbd", "nonsense"]).ends_with(2).says(&["nonsense"]);
    for nothing in [&["serve"][..], &["serve", "--nbd", "none"], &["serve", "--iscsi", "none"]] {
        scene.run(nothing).ends_with(2).says(&["nothing to serve", "--nbd-socket", "--nbd ", "--iscsi"]);
    }
    scene
        .run(["serve", "--nbd", "127.0.0.1:0", "--tls-certificate", "absent.pem", "--tls-key", "absent.key"])
        .ends_with(2)
        .says(&["absent.pem"]);
    scene.run(["serve", "--tls-required"]).ends_with(2).says(&["tls_certificate"]);
}

#[test]
fn a_store_in_use_names_its_holder() {
    let scene = Scene::with_store(&[]);
    let served = scene.serve(&[]);
    scene.run(["volume", "export", "v", "file"]).ends_with(2).says(&["in use", "`serve`", "process", "stop the daemon"]);
    let address = served.event["addresses"][0].as_str().unwrap().trim_start_matches("nbd://").trim_end_matches('/').to_owned();
    scene.run(["init", "other"]).succeeds();
    scene.run(["serve", "--store", "other", "--nbd", &address]).ends_with(2).says(&[&address, "another process listens there"]);
    assert_eq!(served.stop().0, 0);
    scene.run(["backups"]).succeeds();
}

#[test]
fn names_with_newlines_are_refused() {
    let scene = Scene::with_store(&[]);
    scene.run(["backup", "--name", "a\nb", "."]).ends_with(2).says(&["--name", "control characters"]);
    scene.run(["backup", "--name", "", "."]).ends_with(2).says(&["--name"]);
    scene.run(["volume", "create", "a\nb", "--size", "1GiB"]).ends_with(2);
    scene.run(["volume", "create", "a/b", "--size", "1GiB"]).ends_with(2);
}

#[test]
fn missing_files_are_named() {
    let scene = Scene::with_store(&[]);
    scene.run(["backup", "--name", "x", "absent"]).ends_with(2).says(&["absent"]);
    scene.run(["volume", "import", "v", "absent"]).says(&["absent"]);
    scene.run(["ls", "latest"]).ends_with(1).says(&["latest", "onefold backups"]);
    scene.run(["restore", "abcd", "--target", "t"]).ends_with(1).says(&["abcd", "onefold backups"]);
    scene.run(["volume", "export", "v", "f"]).ends_with(1).says(&["v"]);
    scene.run(["volume", "delete", "v"]).ends_with(1).says(&["v"]);
}

#[test]
fn a_closed_standard_output_ends_quietly() {
    let scene = Scene::with_store(&[]);
    for arguments in [&["stats"][..], &["completions", "bash"], &["manpage"]] {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let child = scene.command(arguments).stdout(write).stderr(Stdio::piped()).spawn().unwrap();
        let run = Run::from(child.wait_with_output().unwrap()).ends_with(141);
        assert_eq!(run.err, "", "{arguments:?}");
    }
}
