//! Backups over a connection, of other programs beside ours, on the same corpus in the same run: `make bench-servers`.
//!
//! Client and server are processes of their own on loopback, and between them is a proxy that counts bytes and delays
//! them ([`proxy`]). Each contender gets the same two generations in the same place and an empty repository in memory,
//! and goes through the same steps: a first backup, an unchanged one, one of the second generation, a restore that is
//! compared with the original; ours also a first backup of the same data by another account. Runs go in turns.
//! `--many` measures many clients of one server of ours instead ([`many`]).

mod contenders;
mod many;
mod proxy;
mod results;
mod watched;

use crate::backups::{disk_bytes, text};
use crate::process::run;
use crate::runs::{self, Corpus, Run};
use crate::shell::{Shell, reason};
use crate::{corpus, processor};
use anyhow::Result;
use contenders::{CONTENDERS, Contender};
use proxy::Proxy;
use results::Outcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use watched::Watched;

/// What is compared, where, and how often.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: runs::Common,
    /// Milliseconds that each byte is on its way; several for one section each
    #[arg(long, value_delimiter = ',', default_value = "0")]
    delay: Vec<u64>,
    /// Measures so many clients of one server of ours instead, and what a small one gets beside large ones. `--memory`
    /// needs room for three times their data
    #[arg(long, value_name = "CLIENTS", value_parser = clap::value_parser!(u32).range(1..))]
    many: Option<u32>,
    /// Bytes of each of the clients of `--many`
    #[arg(long, default_value_t = 24_000_000)]
    many_size: u64,
    /// Where the report goes: this with `.md` and `.json` behind it
    #[arg(long, default_value = "servers")]
    out: PathBuf,
}

/// Everything of a run that the contenders share.
struct Runner<'a> {
    options: &'a runs::Common,
    corpus: Corpus,
    shell: Shell,
}

/// The repository, the client's side and, if there is one, the server of one run.
struct Stage<'a> {
    runner: &'a Runner<'a>,
    contender: &'a Contender,
    place: PathBuf,
    port: u16,
    server: Option<(Watched, Proxy)>,
}

/// Measures all contenders that are installed, or many clients, and writes the report.
pub fn measure(options: &Options) -> Result<()> {
    let common = &options.common;
    let (shell, place) = (common.shell()?, common.place()?);
    if let Some(clients) = options.many {
        let (text, figures) = many::measure(options, clients, &shell, place.path())?;
        return runs::write(&options.out, &text, &figures, &[]);
    }
    let ours = CONTENDERS[0].name;
    let is_ours = |contender: &Contender| contender.name.starts_with("onefold");
    common.check_only(CONTENDERS.iter().map(|contender| contender.name))?;
    let runner = Runner { options: common, corpus: Corpus::create(common, place.path())?, shell };

    let (mut missing, mut present) = (Vec::new(), Vec::new());
    for contender in &CONTENDERS {
        if !is_ours(contender) && !common.lets_in(contender.name) {
            continue;
        }
        match runner.shell.call(contender.version, &[]) {
            Ok(cost) => present.push((contender, runs::first_line(&cost.output))),
            Err(error) if is_ours(contender) => return Err(error.context("build it first: cargo build --release --bin onefold")),
            Err(_) => {
                eprintln!("not installed, and left out: {}", contender.programs);
                missing.push(contender.programs.to_owned());
            }
        }
    }
    let mut outcomes = Vec::new();
    for delay_ms in &options.delay {
        let mut runs: Vec<Vec<Run>> = present.iter().map(|_| Vec::new()).collect();
        for _ in 0..common.runs {
            for ((contender, _), runs) in present.iter().zip(&mut runs) {
                eprintln!("== {} ({}), round trip {} ms", contender.name, contender.settings, 2 * delay_ms);
                runs.push(runner.once(contender, Duration::from_millis(*delay_ms))?);
            }
        }
        outcomes.extend(present.iter().zip(runs).map(|((contender, version), runs)| together(contender, version, *delay_ms, runs)));
    }

    let versions = outcomes.iter().map(|outcome| format!("{}: {}", outcome.name, outcome.version));
    let lines = runner.corpus.lines("Repositories are as `du` counts them. Client, server and proxy share the processors.", versions);
    let text = results::markdown(&outcomes, &lines, &missing, ours);
    runs::write(&options.out, &text, &results::json(&outcomes, runner.corpus.about(), &missing), &[])
}

impl Runner<'_> {
    /// All steps of one contender. What it does wrong is in the result; errors are those of this program.
    fn once(&self, contender: &Contender, delay: Duration) -> Result<Run> {
        let temporary = tempfile::tempdir_in(&self.options.memory)?;
        let place = temporary.path().to_owned();
        for name in ["home", "home-two", "server", "restored"] {
            fs::create_dir(place.join(name))?;
        }
        let tree = place.join("tree");
        run(Path::new("cp"), &["-a", text(&self.corpus.pristine), text(&tree)])?;
        let mut result = Run::default();
        let mut stage = Stage { runner: self, contender, place, port: watched::free_port()?, server: None };
        if let Err(error) = stage.set_up(delay) {
            fails(&mut result, "set up", &reason(&error, &stage.place));
            return Ok(result);
        }
        for (step, _) in results::STEPS {
            let line = match step {
                "restore" => Some(contender.restore),
                "another" => contender.another,
                _ => Some(contender.backup),
            };
            let Some(line) = line else { continue };
            if step == "changed" {
                corpus::change(&tree, self.options.seed)?;
            }
            if stage.step(&mut result, step, line)?.is_none() {
                return Ok(result);
            }
            if step == "restore" {
                result.restored[0] = Some(stage.compare()?);
            }
        }
        if let Some((server, proxy)) = stage.server.take() {
            result.figures.insert("server: peak_bytes".into(), server.peak_bytes() as f64);
            drop(proxy);
            if let Err(error) = server.stop() {
                fails(&mut result, "end", &reason(&error, &stage.place));
                return Ok(result);
            }
        }
        result.figures.insert("end: repository_bytes".into(), disk_bytes(&stage.place.join("store"))? as f64);
        Ok(result)
    }
}

/// Notes that a step failed.
fn fails(result: &mut Run, step: &str, said: &str) {
    eprintln!("{step:<12}failed: {said}");
    result.failures.push((step.into(), said.into()));
}

impl Stage<'_> {
    /// Prepares the repository, starts the server and the proxy, and connects the client.
    fn set_up(&mut self, delay: Duration) -> Result<()> {
        let shell = &self.runner.shell;
        shell.call(self.contender.prepare, &self.variables("init"))?;
        if let Some(line) = self.contender.serve {
            let log = self.place.join("server.log");
            let server = Watched::start(shell.command(line, &self.variables("serve")), self.port, &log)?;
            let proxy = Proxy::start(server.address(), delay)?;
            self.server = Some((server, proxy));
        }
        shell.call(self.contender.connect, &self.variables("connect")).map(drop)
    }

    fn variables(&self, step: &str) -> [(&'static str, String); 9] {
        let path = |name: &str| self.place.join(name).display().to_string();
        let address = self.server.as_ref().map(|(_, proxy)| proxy.address());
        [
            ("HOME", path("home")),
            ("SERVER", path("server")),
            ("PLACE", self.place.display().to_string()),
            ("STORE", path("store")),
            ("TARGET", path("restored")),
            ("NAME", step.into()),
            ("PORT", self.port.to_string()),
            ("ADDRESS", address.map_or_else(String::new, |address| address.to_string())),
            ("VIA", address.map_or_else(String::new, |address| address.port().to_string())),
        ]
    }

    /// What the server and the connection took so far: seconds of processors, bytes to the server, bytes from it.
    fn so_far(&self) -> Result<[f64; 3]> {
        let Some((server, proxy)) = &self.server else { return Ok([0.0; 3]) };
        let cpu_s = server.cpu_s()?;
        let (sent, received) = proxy.passed_bytes();
        Ok([cpu_s, sent as f64, received as f64])
    }

    /// One step: its figures are known, or what it said.
    fn step(&self, result: &mut Run, step: &str, line: &str) -> Result<Option<()>> {
        let store = self.place.join("store");
        // The first backup makes all that the repository has.
        let size = if step == "first" { 0 } else { disk_bytes(&store)? };
        let before = self.so_far()?;
        let cost = match self.runner.shell.call(line, &self.variables(step)) {
            Ok(cost) => cost,
            Err(error) => {
                fails(result, step, &reason(&error, &self.place));
                return Ok(None);
            }
        };
        let after = self.so_far()?;
        let [server_cpu_s, sent, received] = std::array::from_fn(|at| after[at] - before[at]);
        eprintln!(
            "{step:<12}{:>9.2} s wall{:>9.2} s CPU{server_cpu_s:>9.2} s CPU of the server{:>9.1} MB on the wire",
            cost.wall_s,
            cost.cpu_s,
            (sent + received) / 1e6
        );
        let mut figures = vec![("wall_s", cost.wall_s), ("client_cpu_s", cost.cpu_s), ("client_peak_bytes", cost.peak_bytes as f64)];
        if self.server.is_some() {
            figures.extend([
                ("server_cpu_s", server_cpu_s),
                ("wire_bytes", sent + received),
                ("sent_bytes", sent),
                ("received_bytes", received),
            ]);
        }
        if step != "restore" {
            figures.push(("grows_bytes", disk_bytes(&store)? as f64 - size as f64));
        }
        result.figures.extend(figures.into_iter().map(|(kind, value)| (format!("{step}: {kind}"), value)));
        Ok(Some(()))
    }

    /// Compares what was restored with the tree.
    fn compare(&self) -> Result<String> {
        let (target, tree) = (self.place.join("restored"), self.place.join("tree"));
        let restored = if self.contender.restores_path { runs::with_path(&target, &tree)? } else { target.clone() };
        let said = runs::compared(&tree, &restored, &target, &self.place)?;
        eprintln!("{:<12}{said}", "");
        Ok(said)
    }
}

/// One outcome of several runs.
fn together(contender: &Contender, version: &str, delay_ms: u64, runs: Vec<Run>) -> Outcome {
    let Run { figures, failures, restored: [restored, _] } = Run::together(runs);
    Outcome {
        name: contender.name.into(),
        settings: contender.settings.into(),
        version: version.into(),
        delay_ms,
        figures,
        failures,
        restored,
    }
}
