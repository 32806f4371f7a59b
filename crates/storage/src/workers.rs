//! The threads that compress frames and write them, and the bound on what waits for them.

use crate::components::STORAGE_WRITE;
use crate::compression::Compressors;
use crate::open::{FrameJob, OpenContainer, Progress};
use crate::store::Shared;
use crate::{Codec, Frame, Result, StorageError};
use crossbeam_channel::Receiver;
use onefold_ground::{GroundError, checksum};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One frame to be compressed and written.
pub(crate) struct Job {
    pub(crate) container: Arc<OpenContainer>,
    pub(crate) number: u32,
    pub(crate) raw: Arc<Vec<u8>>,
    pub(crate) is_sequential: bool,
}

impl Job {
    pub(crate) fn new(container: &Arc<OpenContainer>, number: u32, frame: FrameJob) -> Job {
        Job { container: container.clone(), number, raw: frame.raw, is_sequential: frame.is_sequential }
    }
}

/// What is on the way, and why nothing may be.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Raw bytes of frames handed over and not in their file.
    pub(crate) in_flight_bytes: usize,
    /// The last write that failed, until it is tried again.
    pub(crate) failed: Option<Arc<GroundError>>,
    /// Why nothing is written any more.
    pub(crate) poisoned: Option<Arc<str>>,
    /// The store is being closed: frames that wait are dropped.
    pub(crate) closing: bool,
}

impl Flow {
    pub(crate) fn check_poison(&self) -> Result<()> {
        match &self.poisoned {
            Some(why) => Err(StorageError::Poisoned { why: why.clone() }),
            None => Ok(()),
        }
    }
}

/// Compresses and writes frames until the store is closed.
pub(crate) fn work(shared: &Shared, jobs: &Receiver<Job>) {
    let guard = PoisonOnPanic { shared };
    let mut compressors = Compressors::new(&shared.options);
    for job in jobs {
        if !shared.flow.lock().closing {
            shared.write_frame(job, &mut compressors);
        }
    }
    drop(guard);
}

/// Nobody shall wait for ever for the frame of a worker that died.
struct PoisonOnPanic<'a> {
    shared: &'a Shared,
}

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.poison("a storage worker died");
        }
    }
}

impl Shared {
    fn write_frame(&self, job: Job, compressors: &mut Compressors) {
        let Job { container, number, raw, is_sequential } = job;
        let raw_bytes = raw.len();
        let (codec, stored) = compressors.compress(is_sequential, &raw, &self.profile);
        let checksum = checksum(stored);
        let (file, offset, keeps) = {
            let mut state = container.state.lock();
            let keeps = !self.options.discards_data || state.has_metadata(number);
            (state.file.clone(), state.place(number, raw_bytes, stored.len()), keeps)
        };
        let frame = Frame {
            number,
            first_slot: 0, // known when the frames before it are
            slots: 0,
            offset_bytes: offset as u32,
            stored_bytes: stored.len() as u32,
            raw_bytes: raw_bytes as u32,
            codec,
            checksum,
        };
        self.count_frame(&frame);
        let file = file.expect("a writer's container has its file open");
        let result = self.profile.time(&STORAGE_WRITE, stored.len() as u64, || match keeps {
            true => file.write_at(offset, stored),
            false => file.pretend_write(offset, stored.len() as u64),
        });
        let (progress, failed) = match result {
            Ok(()) => {
                if keeps {
                    file.start_writeback(offset, stored.len() as u64);
                }
                (Progress::Written(frame), None)
            }
            Err(error) => (Progress::Failed(frame, stored.to_vec()), Some(Arc::new(error))),
        };
        let released = container.state.lock().settle_frame(number, progress);
        let mut flow = self.flow.lock();
        flow.in_flight_bytes -= released;
        if failed.is_some() {
            flow.failed = failed;
        }
        drop(flow);
        self.flow_changed.notify_all();
    }

    fn count_frame(&self, frame: &Frame) {
        let counters = &self.counters;
        counters.frames.fetch_add(1, Relaxed);
        counters.plain_frames.fetch_add(u64::from(frame.codec == Codec::Plain), Relaxed);
        counters.raw_bytes.fetch_add(u64::from(frame.raw_bytes), Relaxed);
        counters.stored_bytes.fetch_add(u64::from(frame.stored_bytes), Relaxed);
        if frame.raw_bytes > 0 {
            // A moving average over about eight frames; a lost update of another worker does no harm.
            let now = u64::from(frame.stored_bytes) * 1024 / u64::from(frame.raw_bytes);
            let before = self.stored_per_1024.load(Relaxed);
            self.stored_per_1024.store((before * 7 + now).div_ceil(8), Relaxed);
        }
    }

    /// The flow without a failed write: one that there was, maybe before there was room again, is tried once more here. So an error is one of
    /// now. The caller holds no state of a container.
    pub(crate) fn sound_flow(&self) -> Result<MutexGuard<'_, Flow>> {
        loop {
            let flow = self.flow.lock();
            flow.check_poison()?;
            if flow.failed.is_none() {
                return Ok(flow);
            }
            drop(flow);
            self.write_failed_frames()?;
        }
    }

    /// Waits until a frame of `raw_bytes` may be handed over, and counts it as handed over.
    pub(crate) fn reserve_flow(&self, raw_bytes: usize) -> Result<()> {
        loop {
            let mut flow = self.sound_flow()?;
            if flow.in_flight_bytes == 0 || flow.in_flight_bytes + raw_bytes <= self.options.in_flight_bytes {
                flow.in_flight_bytes += raw_bytes;
                return Ok(());
            }
            self.flow_changed.wait(&mut flow);
        }
    }

    /// Gives back what was reserved or is written.
    pub(crate) fn release_flow(&self, raw_bytes: usize) {
        if raw_bytes > 0 {
            self.flow.lock().in_flight_bytes -= raw_bytes;
            self.flow_changed.notify_all();
        }
    }

    /// Nothing is written any more until the store is opened again.
    pub(crate) fn poison(&self, why: &str) {
        tracing::error!(why, "containers are not written any more");
        self.flow.lock().poisoned.get_or_insert_with(|| why.into());
        self.flow_changed.notify_all();
    }
}
