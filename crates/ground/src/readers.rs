//! Reads many places at once.
//!
//! A device works on many requests at a time, but a thread has only one in flight. [`Readers`] is a bounded pool of
//! threads. A caller hands it the places that it wants and gets each one as soon as it is read.
//!
//! Handing a read to another thread costs some microseconds, several times a read from the system's memory. So the
//! caller's own thread does the reads that need no wait for a device ([`File::try_read_at`]), and one of the others.
//!
//! We use threads, not io_uring. Modelled devices, simulated disks and overlays answer through [`File`], and a ring
//! would bypass it. A ring also needs `unsafe`.
//!
//! Invariants:
//! * At most `in_flight` threads read, and a caller has at most twice as many buffers.
//! * Each request gets exactly one answer, even after failures and panics.
//! * A caller waits only for its own requests.

use crate::{File, Result};
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Reads need little stack.
const STACK_BYTES: usize = 256 << 10;

/// Takes the number of a request and its bytes. After an error the bytes mean nothing.
pub type EachRead<'a> = dyn FnMut(usize, &[u8], Result<()>) + 'a;

/// A place to read in a file.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The file.
    pub file: Arc<dyn File>,
    /// Where to start.
    pub offset: u64,
    /// How many bytes to read.
    pub length_bytes: usize,
}

/// A bounded pool of reader threads. They start on demand and end with the pool.
pub struct Readers {
    in_flight: usize,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A place that is being read, or has been read. Dropping it discards the bytes.
#[derive(Debug)]
pub struct Reading(Begun);

#[derive(Debug)]
enum Begun {
    Waiting(Receiver<Answer>),
    Read(Vec<u8>, Result<()>),
}

impl Reading {
    /// Returns whether a device reads it: it was not in memory.
    pub fn is_from_device(&self) -> bool {
        matches!(self.0, Begun::Waiting(_))
    }

    /// Waits until it is read, and calls `take` with its bytes. After an error they mean nothing.
    pub fn wait(self, mut take: impl FnMut(&[u8], Result<()>)) {
        match self.0 {
            Begun::Waiting(answered) => drop(pass_on(&answered, &mut |_, bytes, read| take(bytes, read))),
            Begun::Read(bytes, read) => take(&bytes, read),
        }
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signalled for each job that an idle thread should take, and at the end.
    has_work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that exist.
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    has_ended: bool,
}

struct Job {
    number: usize,
    request: ReadRequest,
    buffer: Vec<u8>,
    answers: Sender<Answer>,
}

#[derive(Debug)]
struct Answer {
    number: usize,
    buffer: Vec<u8>,
    /// The outer error: the file's implementation panicked.
    read: std::result::Result<Result<()>, Box<dyn Any + Send>>,
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Readers {
    /// Creates a pool of at most `in_flight` threads. With 0 or 1 the caller's own thread reads.
    pub fn new(in_flight: usize) -> Readers {
        Readers { in_flight, shared: Arc::default(), threads: Mutex::default() }
    }

    /// Reads all of `requests`, many at a time. Calls `each` on the caller's thread, in any order, with the number of a
    /// request and its bytes. After an error the bytes mean nothing. Returns for how many requests it waited for the
    /// device. With one in flight it does not know, and returns 0.
    pub fn read_each(&self, requests: &mut dyn Iterator<Item = ReadRequest>, each: &mut EachRead<'_>) -> usize {
        let mut waited = 0;
        let (answers, answered): (Sender<Answer>, Receiver<Answer>) = channel();
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        // `waiting`: requests in the pool. `own`: the place that this thread reads itself when it has nothing else to
        // do.
        let (mut waiting, mut own) = (0, None);
        for (number, request) in requests.enumerate() {
            let mut buffer = buffers.pop().unwrap_or_default();
            buffer.resize(request.length_bytes, 0);
            let read = if self.in_flight > 1 {
                request.file.try_read_at(request.offset, &mut buffer)
            } else {
                request.file.read_at(request.offset, &mut buffer).map(|()| true)
            };
            if let Ok(false) = read {
                waited += 1;
                if let Some(job) = own.replace(Job { number, request, buffer, answers: answers.clone() }) {
                    self.submit(job);
                    waiting += 1;
                }
            } else {
                each(number, &buffer, read.map(drop));
                buffers.push(buffer);
            }
            while waiting >= 2 * self.in_flight {
                buffers.push(pass_on(&answered, each));
                waiting -= 1;
            }
        }
        if let Some(job) = own {
            job.run();
            waiting += 1;
        }
        for _ in 0..waiting {
            pass_on(&answered, each);
        }
        waited
    }

    /// Begins to read a place that is needed later. Returns `None` if there is no pool to read it.
    pub fn begin(&self, request: ReadRequest) -> Option<Reading> {
        if self.in_flight < 2 {
            return None;
        }
        let mut buffer = vec![0; request.length_bytes];
        Some(Reading(match request.file.try_read_at(request.offset, &mut buffer) {
            Ok(false) => {
                let (answers, answered) = channel();
                self.submit(Job { number: 0, request, buffer, answers });
                Begun::Waiting(answered)
            }
            read => Begun::Read(buffer, read.map(drop)),
        }))
    }

    fn submit(&self, job: Job) {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads < self.in_flight {
            let shared = self.shared.clone();
            match Builder::new().name("onefold-read".to_owned()).stack_size(STACK_BYTES).spawn(move || shared.work()) {
                Ok(thread) => {
                    queue.threads += 1;
                    self.threads.lock().push(thread);
                }
                // The system has no more threads. The existing ones do the job, or this one.
                Err(_) if queue.threads > 0 => {}
                Err(_) => {
                    let job = queue.jobs.pop_back();
                    drop(queue);
                    job.into_iter().for_each(Job::run);
                    return;
                }
            }
        }
        drop(queue);
        self.shared.has_work.notify_one();
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.queue.lock().has_ended = true;
        self.shared.has_work.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            // It cannot have panicked: jobs catch their panics.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job.run();
                queue = self.queue.lock();
            } else if queue.has_ended {
                return;
            } else {
                queue.idle += 1;
                self.has_work.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

impl Job {
    fn run(self) {
        let Job { number, request, mut buffer, answers } = self;
        let read = catch_unwind(AssertUnwindSafe(|| request.file.read_at(request.offset, &mut buffer)));
        drop(request);
        // If the caller panicked, nobody waits any more.
        let _ = answers.send(Answer { number, buffer, read });
    }
}

/// Waits for an answer and passes it on. Returns the buffer for reuse.
fn pass_on(answered: &Receiver<Answer>, each: &mut EachRead<'_>) -> Vec<u8> {
    let Answer { number, buffer, read } = answered.recv().expect("a job is answered before its sender goes");
    match read {
        Ok(read) => each(number, &buffer, read),
        Err(panic) => resume_unwind(panic),
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, DelegatingFile, DeviceModel, Ground, ModelledGround, ModelledPart, SimulatedGround};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// A file whose reads take a millisecond, or panic at one place. It counts concurrent reads.
    #[derive(Debug)]
    struct SlowFile {
        file: Arc<dyn File>,
        now: AtomicUsize,
        most: AtomicUsize,
        panics_at: u64,
    }

    impl DelegatingFile for SlowFile {
        fn below(&self) -> &dyn File {
            &*self.file
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            assert!(offset != self.panics_at, "as the test wants it");
            self.most.fetch_max(self.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            let read = File::read_at(&*self.file, offset, buffer);
            self.now.fetch_sub(1, Ordering::Relaxed);
            read
        }

        fn try_read_at(&self, _: u64, _: &mut [u8]) -> Result<bool> {
            Ok(false)
        }
    }

    const PLACE_BYTES: usize = 512;

    fn slow(places: u64, panics_at: u64) -> Arc<SlowFile> {
        let file = SimulatedGround::new(1).create("file").unwrap();
        for place in 0..places {
            file.write_at(place * PLACE_BYTES as u64, &[place as u8; PLACE_BYTES]).unwrap();
        }
        Arc::new(SlowFile { file, now: AtomicUsize::new(0), most: AtomicUsize::new(0), panics_at })
    }

    fn requests(file: &Arc<SlowFile>, places: u64) -> impl Iterator<Item = ReadRequest> {
        let file = file.clone();
        (0..places).map(move |place| ReadRequest { file: file.clone(), offset: place * PLACE_BYTES as u64, length_bytes: PLACE_BYTES })
    }

    #[test]
    fn many_places_are_read_at_once_but_no_more_than_allowed_and_each_is_given_once() {
        let file = slow(200, u64::MAX);
        let readers = Readers::new(8);
        for _ in 0..2 {
            let mut seen = vec![0; 201];
            readers.read_each(&mut requests(&file, 201), &mut |number, bytes, read| {
                seen[number] += 1;
                // The last place is past the end of the file.
                assert_eq!(read.is_ok(), number < 200);
                assert!(number == 200 || *bytes == [number as u8; PLACE_BYTES]);
            });
            assert!(seen.iter().all(|times| *times == 1));
        }
        // The caller reads one of them.
        assert!((8..=9).contains(&file.most.load(Ordering::Relaxed)));
    }

    #[test]
    fn callers_share_the_pool() {
        let file = slow(50, u64::MAX);
        let readers = Readers::new(16);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut places = 0;
                    readers.read_each(&mut requests(&file, 50), &mut |_, _, read| {
                        read.unwrap();
                        places += 1;
                    });
                    assert_eq!(places, 50);
                });
            }
        });
        // Each of the four callers reads one itself.
        assert!(file.most.load(Ordering::Relaxed) <= 16 + 4);
    }

    #[test]
    fn what_is_in_memory_and_a_single_place_need_no_thread() {
        let file = SimulatedGround::new(1).create("file").unwrap();
        file.write_at(0, &[7; PLACE_BYTES]).unwrap();
        let readers = Readers::new(8);
        let in_memory = ReadRequest { file, offset: 0, length_bytes: PLACE_BYTES };
        let mut is_missed = false;
        readers.read_each(&mut (0..100).map(|_| in_memory.clone()), &mut |_, bytes, read| {
            read.unwrap();
            is_missed |= *bytes != [7; PLACE_BYTES];
        });
        assert!(!is_missed);
        readers.read_each(&mut requests(&slow(1, u64::MAX), 1), &mut |_, _, read| read.unwrap());
        assert_eq!(readers.threads.lock().len(), 0);
        let one = Readers::new(1);
        one.read_each(&mut requests(&slow(3, u64::MAX), 3), &mut |_, _, read| read.unwrap());
        assert_eq!(one.threads.lock().len(), 0);
    }

    #[test]
    fn a_panic_in_a_read_is_the_callers_and_the_pool_goes_on() {
        let file = slow(20, 10 * PLACE_BYTES as u64);
        let readers = Readers::new(4);
        let read = || readers.read_each(&mut requests(&file, 20), &mut |_, _, _| ());
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
        let mut places = 0;
        readers.read_each(&mut requests(&file, 10), &mut |_, _, read| {
            read.unwrap();
            places += 1;
        });
        assert_eq!(places, 10);
    }

    #[test]
    fn a_modelled_device_works_on_as_many_reads_as_its_queue_has_places() {
        let disk = SimulatedGround::new(1);
        disk.create_directory("index").unwrap();
        disk.create("index/pages").unwrap().set_len(1 << 20).unwrap();
        let model = DeviceModel { read_us: 2000, queue: 16, ..DeviceModel::default() };
        let part = ModelledPart { name: "index".into(), prefix: "index/".into(), model: Some(model) };
        let file = Ground::open(&ModelledGround::new(Arc::new(disk), vec![part]), "index/pages", Access::Read).unwrap();
        let readers = Readers::new(32);
        let start = Instant::now();
        let mut requests = (0..161).map(|page| ReadRequest { file: file.clone(), offset: page * 4096, length_bytes: 4096 });
        readers.read_each(&mut requests, &mut |_, _, read| read.unwrap());
        // Eleven rounds of sixteen: 22 ms. One after another they would take 322 ms.
        assert!(start.elapsed() < Duration::from_millis(150), "{:?}", start.elapsed());
    }
}
