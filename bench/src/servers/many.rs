//! Many clients of one server of ours: how long they take together, what memory the server has, and what a small client
//! gets beside three that send without end.
//!
//! All data is random: nothing is a duplicate, and nothing compresses. There is no proxy between.

use super::watched::{Watched, free_port};
use super::{Options, processor};
use crate::corpus::write_random;
use crate::process::Cost;
use crate::random::Random;
use crate::report::{Report, median};
use crate::shell::Shell;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Clients that send without end.
const STREAMS: usize = 3;
/// What a stream sends at most: the memory for the store is bounded.
const STREAM_BYTES: u64 = 1_500_000_000;
/// Account, backup and file of the client that is measured beside them.
const SMALL: &str = "small";

const PREPARE: &str = "$ONEFOLD init $STORE --compression zstd:1 && for name in $NAMES; do \
    $ONEFOLD account create --quiet --store $STORE $name --secret-file $PLACE/$name.secret; done";
const SERVE: &str = "exec $ONEFOLD serve --json --store $STORE --nbd none --iscsi none --backup 127.0.0.1:$PORT";
/// `$NAME` is account and name of the backup, `$DATA` what is backed up.
const BACKUP: &str = "exec $ONEFOLD backup --quiet --store onefold://$NAME@127.0.0.1:$PORT --secret-file $PLACE/$NAME.secret \
    --server-fingerprint $(sed -n 's/.*\"backup_fingerprint\":\"\\([0-9a-f:]*\\)\".*/\\1/p' $PLACE/server.log) --name $NAME $DATA";

/// A server with its store.
struct Scene<'a> {
    shell: &'a Shell,
    place: &'a Path,
    port: u16,
    server: Watched,
}

/// The report as Markdown and as JSON.
pub fn measure(options: &Options, clients: u32, shell: &Shell, place: &Path) -> Result<(String, Value)> {
    let mut report = Report::default();
    report.group(format!("{clients} clients at once, {} MB of random data each, store in memory", options.many_size as f64 / 1e6));
    all_at_once(options, clients, &Scene::new(shell, place, clients)?, &mut report)?;
    fs::remove_dir_all(place)?;
    fs::create_dir(place)?;
    report.group(format!("A client of {} MB beside {STREAMS} that send without end, store in memory", options.many_size as f64 / 1e6));
    beside_streams(options, &Scene::new(shell, place, 0)?, &mut report)?;
    let processors = thread::available_parallelism().map_or(0, usize::from);
    let about = json!({
        "processor": processor(), "processors": processors, "clients": clients, "bytes_of_each": options.many_size,
        "seed": options.common.seed, "runs": options.common.runs,
    });
    let lines = format!("# Many clients of one server\n\n{processors} x {}; clients and server share the processors.\n", processor());
    Ok((lines + &report.text(), report.json(about)))
}

/// Measures clients that begin at the same moment; medians of the runs.
fn all_at_once(options: &Options, clients: u32, scene: &Scene, report: &mut Report) -> Result<()> {
    let mut random = Random::new(options.common.seed);
    let mut rows: Vec<[f64; 6]> = Vec::new();
    for _ in 0..options.common.runs {
        for client in 0..clients {
            write_random(&scene.place.join(name(client)), options.many_size, &mut random)?;
        }
        let server_s = scene.server.cpu_s()?;
        let begun = Instant::now();
        let costs = thread::scope(|scope| {
            let threads: Vec<_> = (0..clients).map(|client| scope.spawn(move || scene.backup(&name(client)))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<Result<Vec<Cost>>>()
        })?;
        let wall_s = begun.elapsed().as_secs_f64();
        let times = costs.iter().map(|cost| cost.wall_s);
        rows.push([
            wall_s,
            times.clone().fold(f64::MAX, f64::min),
            times.fold(0.0, f64::max),
            costs.iter().map(|cost| cost.cpu_s).sum(),
            scene.server.cpu_s()? - server_s,
            costs.iter().map(|cost| cost.peak_bytes as f64 / 1e6).fold(0.0, f64::max),
        ]);
    }
    let middle = |at: usize| median(rows.iter().map(|row| row[at]).collect());
    let bytes = f64::from(clients) * options.many_size as f64;
    report.add("all clients", middle(0), "s");
    report.add("rate of all together", bytes / middle(0) / 1e6, "MB/s");
    report.add("the quickest client", middle(1), "s");
    report.add("the slowest client", middle(2), "s");
    report.add("CPU of all clients", middle(3), "s");
    report.add("CPU of the server", middle(4), "s");
    report.add("peak memory of the greatest client", middle(5), "MB");
    report.add("peak memory of the server", scene.server.peak_bytes() as f64 / 1e6, "MB");
    Ok(())
}

/// Measures one client alone, then beside others that do not stop.
fn beside_streams(options: &Options, scene: &Scene, report: &mut Report) -> Result<()> {
    let mut random = Random::new(options.common.seed ^ 0xfa17);
    let mut small = || -> Result<Vec<Cost>> {
        let runs = options.common.runs.max(3);
        let once = |_| {
            write_random(&scene.place.join(SMALL), options.many_size, &mut random)?;
            scene.backup(SMALL)
        };
        (0..runs).map(once).collect()
    };
    let alone = small()?;
    let streams = (0..STREAMS).map(|number| Stream::start(scene, number)).collect::<Result<Vec<_>>>()?;
    // They have logged in, and what the client holds back is full.
    thread::sleep(Duration::from_secs(1));
    let sent_bytes = || streams.iter().map(|stream| stream.sent_bytes.load(Ordering::SeqCst)).sum::<u64>();
    let (sent_before, begun) = (sent_bytes(), Instant::now());
    let beside = small()?;
    let rate = (sent_bytes() - sent_before) as f64 / begun.elapsed().as_secs_f64() / STREAMS as f64;
    for stream in streams {
        stream.stop()?;
    }
    let seconds = |costs: &[Cost]| median(costs.iter().map(|cost| cost.wall_s).collect());
    let (alone_s, beside_s) = (seconds(&alone), seconds(&beside));
    report.add("alone", alone_s, "s");
    report.add("beside the others", beside_s, "s");
    report.add("times as long", beside_s / alone_s, "");
    report.add("rate of the client beside the others", options.many_size as f64 / beside_s / 1e6, "MB/s");
    report.add("rate of each of the others meanwhile", rate / 1e6, "MB/s");
    report.add("peak memory of the server", scene.server.peak_bytes() as f64 / 1e6, "MB");
    Ok(())
}

/// Account, backup and file of a client.
fn name(client: u32) -> String {
    format!("client-{client}")
}

impl<'a> Scene<'a> {
    fn new(shell: &'a Shell, place: &'a Path, clients: u32) -> Result<Scene<'a>> {
        let streams = (0..STREAMS).map(|number| format!("stream-{number}"));
        let names: Vec<_> = (0..clients).map(name).chain(streams).chain([SMALL.to_owned()]).collect();
        for directory in ["home", "server"] {
            fs::create_dir(place.join(directory))?;
        }
        let port = free_port()?;
        let mut variables = variables(place, port, "", "");
        variables.push(("NAMES", names.join(" ")));
        shell.call(PREPARE, &variables).context("no store with accounts")?;
        let server = Watched::start(shell.command(SERVE, &variables), port, &place.join("server.log"))?;
        Ok(Scene { shell, place, port, server })
    }

    /// Backs up the file of this name.
    fn backup(&self, name: &str) -> Result<Cost> {
        let data = self.place.join(name).display().to_string();
        self.shell.call(BACKUP, &variables(self.place, self.port, name, &data))
    }
}

fn variables(place: &Path, port: u16, name: &str, data: &str) -> Vec<(&'static str, String)> {
    let path = |name: &str| place.join(name).display().to_string();
    vec![
        ("HOME", path("home")),
        ("PLACE", place.display().to_string()),
        ("STORE", path("store")),
        ("PORT", port.to_string()),
        ("NAME", name.into()),
        ("DATA", data.into()),
    ]
}

/// A client that backs up random data until it is stopped; killed when dropped.
struct Stream {
    client: Child,
    sent_bytes: Arc<AtomicU64>,
    feeder: Option<JoinHandle<()>>,
}

impl Stream {
    fn start(scene: &Scene, number: usize) -> Result<Stream> {
        let name = format!("stream-{number}");
        let mut command = scene.shell.command(BACKUP, &variables(scene.place, scene.port, &name, "--stdin endless"));
        let mut client = command.stdin(Stdio::piped()).spawn()?;
        let mut input = client.stdin.take().context("a client without an input")?;
        let sent_bytes = Arc::<AtomicU64>::default();
        let of_feeder = Arc::clone(&sent_bytes);
        let feeder = thread::spawn(move || {
            let mut random = Random::new(0x57e0 + number as u64);
            let mut buffer = vec![0; 1 << 20];
            while of_feeder.load(Ordering::SeqCst) < STREAM_BYTES {
                random.fill(&mut buffer);
                // It was killed, or has said what is wrong.
                if input.write_all(&buffer).is_err() {
                    return;
                }
                of_feeder.fetch_add(buffer.len() as u64, Ordering::SeqCst);
            }
        });
        Ok(Stream { client, sent_bytes, feeder: Some(feeder) })
    }

    /// Ends it. Errors: it had ended before, or its data had, so that it was not there all the time.
    fn stop(mut self) -> Result<()> {
        if self.client.try_wait()?.is_some() || self.sent_bytes.load(Ordering::SeqCst) >= STREAM_BYTES {
            bail!("a client that should send without end has ended too soon: the small one was not beside it all the time");
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Its backup is not wanted.
        let _ = self.client.kill();
        let _ = self.client.wait();
        let _ = self.feeder.take().map(JoinHandle::join);
    }
}
