//! Concurrent clients, each of which writes or reads its volume from beginning to end, and what is observed of them
//! from outside.

use super::face::{Way, WayError};
use super::{Result, RunError, Watcher, measure};
use crate::results::Latency;
use crate::spec::RunSpec;
use onefold_ground::PartCounters;
use onefold_ground::histogram::Histogram;
use onefold_traffic::Stream;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The most spans in the course of throughput, and the shortest span.
const SPANS: f64 = 100.0;
const LEAST_SPAN_S: f64 = 0.1;

/// How often a run checks whether to stop.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Counters of the parts of a store.
pub(super) type Traffic = Vec<(String, PartCounters)>;

/// A client before it begins.
pub(super) struct Client {
    pub(super) way: Box<dyn Way>,
    pub(super) task: Task,
}

/// What a client does.
pub(super) enum Task {
    /// It writes this.
    Write(Box<Stream>),
    /// It reads so many bytes, changes the first byte of each request, and writes it back.
    Rewrite(u64),
    /// It reads so many bytes.
    Read(u64),
}

/// The work of all clients together.
#[derive(Default)]
pub(super) struct Written {
    /// Time from the first write to the end of the last flush.
    pub(super) wall_s: f64,
    pub(super) bytes: u64,
    /// `None`: the clients never wrote all at once.
    pub(super) steady: Option<Steady>,
    pub(super) source_cpu_s: f64,
    /// Latency in the steady state, or of all requests without one.
    pub(super) latency: Latency,
    pub(super) course_mb_s: Vec<f64>,
    pub(super) span_s: f64,
}

/// The time in which all clients wrote.
pub(super) struct Steady {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) at_begin: Traffic,
    pub(super) at_end: Traffic,
}

/// A moment.
struct Mark {
    at: Instant,
    bytes: u64,
    traffic: Traffic,
}

/// When all clients had begun, and when the first one ended.
#[derive(Default)]
struct Marks {
    begin: Option<Mark>,
    end: Option<Mark>,
}

/// State shared by the clients.
struct Shared<'a> {
    run: &'a RunSpec,
    traffic: &'a (dyn Fn() -> Traffic + Sync),
    clients: usize,
    barrier: Barrier,
    /// When the first of them began.
    begun_at: OnceLock<Instant>,
    /// Answered bytes of all clients.
    bytes: AtomicU64,
    /// Clients that have begun to write.
    begun: AtomicUsize,
    is_steady: AtomicBool,
    stops: AtomicBool,
    marks: Mutex<Marks>,
}

impl Shared<'_> {
    fn mark(&self) -> Mark {
        Mark { at: Instant::now(), bytes: self.bytes.load(Ordering::SeqCst), traffic: (self.traffic)() }
    }

    /// Notes that a client starts writing. The last one to start begins the steady state, unless a client has ended
    /// already.
    fn begins(&self) {
        if self.begun.fetch_add(1, Ordering::SeqCst) + 1 == self.clients {
            let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
            if marks.end.is_none() {
                marks.begin = Some(self.mark());
                self.is_steady.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Notes that a client has nothing more to write. The first one ends the steady state.
    fn ends(&self) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.end.is_none() {
            self.is_steady.store(false, Ordering::SeqCst);
            marks.end = Some(self.mark());
        }
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }
}

/// A client's report at its end.
struct Told {
    source_cpu_s: f64,
    steady: Histogram,
    all: Histogram,
    ended_at: Instant,
}

/// Runs all clients until all have flushed. Errors: the first client that fails, which stops the others; the run is
/// cancelled.
pub(super) fn write(clients: Vec<Client>, run: &RunSpec, traffic: &(dyn Fn() -> Traffic + Sync), watcher: &dyn Watcher) -> Result<Written> {
    let shared = Shared {
        run,
        traffic,
        clients: clients.len(),
        barrier: Barrier::new(clients.len()),
        begun_at: OnceLock::new(),
        bytes: AtomicU64::new(0),
        begun: AtomicUsize::new(0),
        is_steady: AtomicBool::new(false),
        stops: AtomicBool::new(false),
        marks: Mutex::default(),
    };
    let (told, samples) = std::thread::scope(|scope| {
        let (ended, has_ended) = mpsc::channel();
        for (number, client) in clients.into_iter().enumerate() {
            let (ended, shared) = (ended.clone(), &shared);
            scope.spawn(move || {
                shared.barrier.wait();
                shared.begun_at.get_or_init(Instant::now);
                let told = Worker::new(client.way, shared, number).work(client.task);
                if told.is_err() {
                    shared.stops.store(true, Ordering::SeqCst);
                }
                // The receiver lives as long as the clients.
                let _ = ended.send(told);
            });
        }
        drop(ended);
        watch(&shared, &has_ended, watcher)
    });
    let told = told.into_iter().collect::<std::result::Result<Vec<Told>, WayError>>()?;
    if shared.stops() {
        return Err(RunError::Cancelled);
    }
    let begun_at = *shared.begun_at.get_or_init(Instant::now);
    let marks = shared.marks.into_inner().unwrap_or_else(PoisonError::into_inner);
    let steady = match (marks.begin, marks.end) {
        (Some(begin), Some(end)) if end.bytes > begin.bytes => Some(Steady {
            bytes: end.bytes - begin.bytes,
            seconds: (end.at - begin.at).as_secs_f64(),
            at_begin: begin.traffic,
            at_end: end.traffic,
        }),
        _ => None,
    };
    let (mut all, mut of_steady) = (Histogram::new(), Histogram::new());
    for one in &told {
        all.add_all(&one.all);
        of_steady.add_all(&one.steady);
    }
    let (course_mb_s, span_s) = course(&samples);
    Ok(Written {
        wall_s: told.iter().map(|one| one.ended_at).max().map_or(0.0, |ended_at| (ended_at - begun_at).as_secs_f64()),
        bytes: shared.bytes.into_inner(),
        steady,
        source_cpu_s: told.iter().map(|one| one.source_cpu_s).sum(),
        latency: latency(if of_steady.count() > 0 { &of_steady } else { &all }),
        course_mb_s,
        span_s,
    })
}

/// The result of a client.
type Ended = std::result::Result<Told, WayError>;

/// Waits for all clients, shows their progress, and stops them if the run is cancelled. Returns their reports, and how
/// many bytes were written when.
fn watch(shared: &Shared<'_>, has_ended: &mpsc::Receiver<Ended>, watcher: &dyn Watcher) -> (Vec<Ended>, Vec<(f64, u64)>) {
    let (mut told, mut samples, mut shown) = (Vec::new(), vec![(0.0, 0)], 0);
    loop {
        let ended = has_ended.recv_timeout(LOOK_INTERVAL);
        let bytes = shared.bytes.load(Ordering::SeqCst);
        if let Some(begun_at) = shared.begun_at.get() {
            samples.push((begun_at.elapsed().as_secs_f64(), bytes));
        }
        watcher.advance(bytes - std::mem::replace(&mut shown, bytes));
        match ended {
            Ok(one) => told.push(one),
            Err(mpsc::RecvTimeoutError::Disconnected) => return (told, samples),
            Err(mpsc::RecvTimeoutError::Timeout) if watcher.is_cancelled() => shared.stops.store(true, Ordering::SeqCst),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}

/// A client at work.
struct Worker<'a> {
    way: Box<dyn Way>,
    shared: &'a Shared<'a>,
    /// Its number, from 0.
    number: usize,
    /// Requests in flight: start and bytes.
    sent: HashMap<u64, (Instant, usize)>,
    spare: Vec<Vec<u8>>,
    told: Told,
}

impl<'a> Worker<'a> {
    fn new(way: Box<dyn Way>, shared: &'a Shared<'a>, number: usize) -> Worker<'a> {
        let told = Told { source_cpu_s: 0.0, steady: Histogram::new(), all: Histogram::new(), ended_at: Instant::now() };
        Worker { way, shared, number, sent: HashMap::new(), spare: Vec::new(), told }
    }

    /// Works from beginning to end, and flushes.
    fn work(mut self, mut task: Task) -> Ended {
        let (mut offset, mut tag) = (0, 0);
        while !self.shared.stops() {
            // Data is made before its time has come.
            let made = if matches!(task, Task::Write(_)) { Some(self.next_of(&mut task, offset)?) } else { None };
            // The time to read is that of the request, the time to make data is not.
            let sent_at = self.wait_for_turn(offset);
            let next = made.map_or_else(|| self.next_of(&mut task, offset), Ok)?;
            let Some(buffer) = next else { break };
            if tag == 0 {
                self.shared.begins();
            }
            let length = buffer.len();
            self.sent.insert(tag, (sent_at, length));
            if matches!(task, Task::Read(_)) {
                self.answered(tag, buffer);
            } else {
                self.way.submit(tag, offset, buffer)?;
            }
            offset += length as u64;
            tag += 1;
            // Before making the next data: with one request in flight, no latency includes that time.
            while self.sent.len() >= self.shared.run.depth {
                self.take_answer()?;
            }
        }
        while !self.sent.is_empty() {
            self.take_answer()?;
        }
        self.shared.ends();
        // A store that is deleted at once need not be durable.
        if !self.shared.stops() {
            self.way.flush()?;
        }
        Ok(Told { ended_at: Instant::now(), ..self.told })
    }

    /// Waits until the request at `offset` is due at the rate of the run; clients take turns. Returns when the request
    /// begins: now, or when it was due if earlier ones took so long. So a delay counts for all requests that it holds
    /// up.
    fn wait_for_turn(&self, offset: u64) -> Instant {
        let now = Instant::now();
        let (rate, begun_at) = (self.shared.run.rate_bytes_per_s, self.shared.begun_at.get());
        let (Some(begun_at), true) = (begun_at, rate > 0) else { return now };
        let sent_before = offset as f64 * self.shared.clients as f64 + (self.number * self.shared.run.request_bytes) as f64;
        let due_at = *begun_at + Duration::from_secs_f64(sent_before / rate as f64);
        if due_at <= now {
            return due_at;
        }
        while !self.shared.stops() {
            let left = due_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK_INTERVAL));
        }
        Instant::now()
    }

    /// Returns the data of the next request, at `offset`. `None`: there is no more.
    fn next_of(&mut self, task: &mut Task, offset: u64) -> std::result::Result<Option<Vec<u8>>, WayError> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(self.shared.run.request_bytes, 0);
        match task {
            Task::Write(stream) => {
                let cpu_before = measure::thread_cpu_s();
                let length = stream.fill(&mut buffer);
                self.told.source_cpu_s += measure::thread_cpu_s() - cpu_before;
                buffer.truncate(length);
            }
            Task::Rewrite(bytes) | Task::Read(bytes) => {
                buffer.truncate(bytes.saturating_sub(offset).min(buffer.len() as u64) as usize);
                self.way.read(offset, &mut buffer)?;
            }
        }
        if let (Task::Rewrite(_), Some(first)) = (task, buffer.first_mut()) {
            *first ^= 1;
        }
        Ok((!buffer.is_empty()).then_some(buffer))
    }

    fn take_answer(&mut self) -> std::result::Result<(), WayError> {
        let (tag, buffer) = self.way.wait()?;
        self.answered(tag, buffer);
        Ok(())
    }

    /// Notes that a request is done.
    fn answered(&mut self, tag: u64, buffer: Vec<u8>) {
        if let Some((at, length)) = self.sent.remove(&tag) {
            let took_ns = at.elapsed().as_nanos() as u64;
            self.told.all.add(took_ns);
            if self.shared.is_steady.load(Ordering::SeqCst) {
                self.told.steady.add(took_ns);
            }
            self.shared.bytes.fetch_add(length as u64, Ordering::SeqCst);
        }
        self.spare.push(buffer);
    }
}

fn latency(of: &Histogram) -> Latency {
    if of.count() == 0 {
        return Latency::default();
    }
    let at = |share: f64| of.quantile(share) as f64 / 1e6;
    Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), greatest: of.maximum() as f64 / 1e6 }
}

/// Returns MB/s per time span, and the length of a span, from samples of the written bytes.
fn course(samples: &[(f64, u64)]) -> (Vec<f64>, f64) {
    let Some(&(end, _)) = samples.last() else { return (Vec::new(), LEAST_SPAN_S) };
    let span_s = (end / SPANS).max(LEAST_SPAN_S);
    let mut at = 0;
    // Bytes between two samples count as evenly spread.
    let mut bytes_until = |time: f64| {
        while at + 1 < samples.len() && samples[at + 1].0 < time {
            at += 1;
        }
        let (begin, bytes) = samples[at];
        match samples.get(at + 1) {
            Some((next, more)) if *next > begin => bytes as f64 + (more - bytes) as f64 * ((time - begin) / (next - begin)).clamp(0.0, 1.0),
            _ => bytes as f64,
        }
    };
    let spans = (end / span_s).ceil().max(1.0) as usize;
    let mut before = 0.0;
    let mut of_span = |span: usize| {
        let (begin, until) = (span as f64 * span_s, ((span + 1) as f64 * span_s).min(end));
        let bytes = bytes_until(until);
        (bytes - std::mem::replace(&mut before, bytes)) / 1e6 / (until - begin).max(1e-9)
    };
    ((0..spans).map(&mut of_span).collect(), span_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_course_has_all_bytes_in_their_spans() {
        let (course, span_s) = course(&[(0.0, 0), (0.05, 1_000_000), (0.15, 3_000_000), (0.2, 3_000_000), (0.25, 4_000_000)]);
        assert_eq!(span_s, 0.1);
        let rounded: Vec<f64> = course.iter().map(|rate| (rate * 1000.0).round() / 1000.0).collect();
        assert_eq!(rounded, [20.0, 10.0, 20.0]);
        let samples: Vec<(f64, u64)> = (0..=5000).map(|step| (f64::from(step) * 0.05, step as u64 * 500_000)).collect();
        let (course, span_s) = super::course(&samples);
        assert_eq!((course.len(), span_s), (100, 2.5));
        assert!(course.iter().all(|rate| (rate - 10.0).abs() < 1e-6), "{course:?}");
    }

    #[test]
    fn percentiles_are_milliseconds() {
        let mut histogram = Histogram::new();
        (1..=1000).for_each(|step| histogram.add(step * 1_000_000));
        let latency = latency(&histogram);
        assert!((495.0..=500.0).contains(&latency.p50) && (980.0..=990.0).contains(&latency.p99), "{latency:?}");
        assert_eq!((latency.greatest, super::latency(&Histogram::new())), (1000.0, Latency::default()));
    }
}
