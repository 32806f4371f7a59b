//! The page has all required statements, escapes text from files, and is self-contained.

use super::fixture::results;
use super::{ReadError, html, read};
use crate::results::{Results, Side, Taken, VERSION};

fn text_of(runs: &[Results]) -> String {
    serde_json::to_string(runs).unwrap()
}

#[test]
fn a_file_is_a_run_or_a_list_of_runs() {
    let runs = vec![results(), results()];
    let list = read(text_of(&runs).as_bytes()).unwrap();
    let one = read(serde_json::to_string(&runs[0]).unwrap().as_bytes()).unwrap();
    assert_eq!((list.len(), one.len()), (2, 1));
    for read in list.iter().chain(&one) {
        assert!(read.about == runs[0].about && read.variants.len() == runs[0].variants.len());
    }
}

#[test]
fn files_of_another_version_and_damaged_ones_are_refused() {
    let mut other = serde_json::to_value(results()).unwrap();
    other["version"] = (VERSION + 1).into();
    // A later version may lack fields that this one requires, so its number is checked first.
    other.as_object_mut().unwrap().remove("machine");
    let error = read(other.to_string().as_bytes()).unwrap_err();
    assert!(matches!(error, ReadError::OtherVersion { found } if found == u64::from(VERSION) + 1), "{error}");
    let whole = text_of(&[results()]);
    for damaged in ["", "{}", "null", "[1]", "{\"version\": -1}", &whole[..whole.len() / 2], &whole.replace("wall_s", "wall")] {
        assert!(matches!(read(damaged.as_bytes()), Err(ReadError::NotResults(_))), "{damaged}");
    }
    assert!(matches!(read(b"[]"), Err(ReadError::Empty)));
}

#[test]
fn the_page_says_what_is_modelled_reconstructed_and_thrown_away() {
    let page = html(&[results()]);
    for said in [
        "Devices are modelled.",
        "Bytes of chunks were thrown away",
        "Generation 1 is reconstructed.",
        "generation 1 (ours: reconstructed)",
        "Less data than in the paper.",
        "4 devices of a make that is not",
        "Imaginary 9000",
        "160.3 ± 4.3",
        "2,848",
        "✓ 2 held",
        "“4 SSDs” at most 50",
        "60.0 bytes a chunk",
        "✗ 1 not",
        "1 not measured",
        "as in the paper",
        "a system that the paper compares itself with",
        "p50 / p99 / p99.9",
        "Because it is made up.",
        "<p>A second paragraph.</p>",
    ] {
        assert!(page.contains(said), "{said}");
    }
    let mut plain = results();
    plain.size_bytes = plain.full_size_bytes;
    for variant in &mut plain.variants {
        variant.modelled.clear();
        variant.discards_data = false;
        variant.settings = "[workload]\nset = \"unique-files\"\n".into();
    }
    let page = html(&[plain]);
    for not_said in ["Devices are modelled", "thrown away", "reconstructed", "Less data"] {
        assert!(!page.contains(not_said), "{not_said}");
    }
}

#[test]
fn nothing_from_a_file_becomes_part_of_the_page() {
    let evil = "</title></style><script>alert('x')</script>\" onload=\"x\" &amp; <img src=x>";
    let mut run = results();
    run.about.id = evil.into();
    run.about.title = evil.into();
    run.about.text = evil.into();
    run.about.paper = evil.into();
    run.about.differs = evil.into();
    run.about.figures[0].variant = evil.into();
    run.about.expectations[0].more = Side::Variant(evil.into());
    run.onefold = evil.into();
    run.machine.processor = evil.into();
    run.machine.system = evil.into();
    run.machine.file_system = evil.into();
    let variant = &mut run.variants[0];
    variant.name = evil.into();
    variant.face = evil.into();
    variant.settings = evil.into();
    variant.failure = Some(evil.into());
    variant.modelled.insert(evil.into(), evil.into());
    variant.fills[0].directories.insert(evil.into(), Taken::default());
    variant.fills[0].steps.push((evil.into(), 1.0));
    for measured in variant.repetitions.iter_mut().flatten() {
        measured.components_s.insert(evil.into(), 1.0);
        measured.steps.push((evil.into(), 1.0));
    }
    let page = html(&[run]);
    for part in ["<script", "<img", "\" onload", "alert('x')</script"] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("&lt;script&gt;"));
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let page = html(&[results()]);
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""));
    // The only address in it is the name of SVG's name space, which is never loaded.
    let addresses = page.matches("http").count() - page.matches("http-equiv").count();
    assert_eq!(addresses, page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    assert!(!page.contains("src="));
    assert_eq!(page.matches("<svg ").count(), page.matches("<svg role=\"img\" aria-label=\"").count());
}

#[test]
fn runs_that_ended_early_or_measured_odd_things_are_shown() {
    let mut run = results();
    run.variants[0].failure = Some("the disk was full".into());
    run.variants[0].repetitions.truncate(1);
    run.variants[0].repetitions[0].truncate(1);
    run.variants[1].repetitions.clear();
    let page = html(&[run.clone()]);
    for said in ["4 SSDs ended early: ", "the disk was full", "Some were run once."] {
        assert!(page.contains(said), "{said}");
    }
    // Impossible numbers must not make drawing fail or run for ever.
    let odd = &mut run.variants[0].repetitions[0][0];
    (odd.steady_s, odd.wall_s, odd.written_bytes, odd.steady_bytes) = (1e-300, -5.0, u64::MAX, u64::MAX);
    (odd.span_s, odd.cpu_s) = (1e300, -1e300);
    odd.course_mb_s = vec![1e308, -1e308, 0.0];
    odd.components_s = [("log".into(), -3.0), ("chunking".into(), 1e308)].into();
    odd.generation = u32::MAX;
    run.about.figures[0].value = 1e308;
    run.about.figures[1].value = -1e308;
    run.about.figures[2].plus_minus = Some(1e308);
    run.took_s = -1.0;
    (run.began_unix_s, run.size_bytes) = (u64::MAX, 0);
    html(&[run]);
    html(&[]);
}

#[test]
fn one_experiment_may_be_there_twice() {
    let page = html(&[results(), results()]);
    assert!(page.contains("id=\"experiment-1\"") && page.contains("href=\"#experiment-2\""));
}
