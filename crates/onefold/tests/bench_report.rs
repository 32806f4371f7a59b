//! `onefold bench report`: a page of results, and what is said of files that are none.

mod support;

use serde_json::{Value, json};
use std::fs;
use support::Scene;

/// Results of an experiment with one variant that was run once.
fn results(id: &str) -> Value {
    let measured = json!({
        "generation": 1, "written_bytes": 8_000_000, "wall_s": 2.0, "steady_bytes": 6_000_000, "steady_s": 1.0, "settle_s": 0.5,
        "cpu_s": 1.0, "source_cpu_s": 0.1, "peak_memory_bytes": 1 << 26, "present_new_bytes": 4_000_000, "stored_new_bytes": 5_000_000,
        "disk_bytes": 5_100_000, "components_s": {"chunking": 1.0, "log": 3.0}, "parts": {}, "steady_parts": {},
        "latency_ms": {"p50": 1.0, "p90": 2.0, "p99": 3.0, "p999": 4.0, "greatest": 5.0}, "course_mb_s": [4.0, 4.0], "span_s": 1.0,
    });
    json!({
        "version": 1,
        "about": {"id": id, "title": "A title", "text": "", "paper": "a paper", "figures": [], "expectations": [], "differs": ""},
        "machine": {"processor": "a processor", "processors": 1, "memory_bytes": 1 << 30, "system": "a system", "file_system": "tmpfs"},
        "onefold": "0.1.0", "began_unix_s": 1_800_000_000, "took_s": 3.0, "size_bytes": 8_000_000, "full_size_bytes": 8_000_000,
        "variants": [{
            "name": "the only one", "face": "in-process", "clients": 1, "modelled": {}, "discards_data": false, "settings": "",
            "repetitions": [[measured]], "failure": null,
        }],
    })
}

#[test]
fn a_page_is_made_of_several_files() {
    let scene = Scene::new();
    fs::write(scene.path("one.json"), results("E9.1").to_string()).unwrap();
    fs::write(scene.path("list.json"), json!([results("E9.2"), results("E9.3")]).to_string()).unwrap();
    fs::write(scene.path("page.html"), "an old page").unwrap();
    scene.run(["bench", "report", "one.json", "list.json", "--out", "page.html"]).succeeds().says(&["wrote page.html: 3 experiments"]);
    let page = fs::read_to_string(scene.path("page.html")).unwrap();
    for said in ["<!DOCTYPE html>", "E9.1: A title", "E9.2: A title", "E9.3: A title", "the only one", "<svg "] {
        assert!(page.contains(said), "{said}");
    }
    assert_eq!(fs::read_dir(scene.path("")).unwrap().count(), 3);
    let out = scene.command(["bench", "report", "one.json", "-q", "--out", "/dev/stdout"]).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty() && out.stdout.starts_with(b"<!DOCTYPE html>"));
}

#[test]
fn files_that_are_no_results_are_refused_and_leave_no_page() {
    let scene = Scene::new();
    let mut other = results("E9.1");
    other["version"] = json!(7);
    for (text, said, advice) in [
        (
            other.to_string(),
            "these results have version 7, and this program reads version 1",
            "make the report with the version of onefold",
        ),
        ("{".to_owned(), "these are no results of experiments", "run the experiments again"),
        ("[]".to_owned(), "there are no results in it", "run the experiments again"),
    ] {
        fs::write(scene.path("bad.json"), text).unwrap();
        let run = scene.run(["bench", "report", "bad.json", "--out", "page.html"]).ends_with(2);
        run.says(&["cannot read bad.json", said, advice]);
        assert!(!scene.path("page.html").exists());
    }
    scene.run(["bench", "report", "none.json", "--out", "page.html"]).ends_with(2).says(&["none.json", "onefold bench run --out"]);
    fs::write(scene.path("good.json"), results("E9.1").to_string()).unwrap();
    scene
        .run(["bench", "report", "good.json", "--out", "no/page.html"])
        .ends_with(1)
        .says(&["cannot write no/page.html", "hint: give a file"]);
}
