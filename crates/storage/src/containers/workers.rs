//! The threads that compress frames and write them.

use crate::Frame;
use crate::components::STORAGE_WRITE;
use crate::containers::compression::Compressors;
use crate::containers::job::Job;
use crate::containers::open::{Form, Progress};
use crate::containers::store::Shared;
use crossbeam_channel::Receiver;
use onefold_ground::checksum;

/// Compresses and writes frames until the store is closed.
pub(crate) fn work(shared: &Shared, jobs: &Receiver<Job>) {
    let guard = PoisonOnPanic { shared };
    let mut compressors = Compressors::new(&shared.options);
    for job in jobs {
        if !shared.flow.is_closing() {
            shared.write_frame(job, &mut compressors);
        }
    }
    drop(guard);
}

/// Poisons the store when a worker dies, so that nobody waits forever for its frame.
pub(crate) struct PoisonOnPanic<'a> {
    pub(crate) shared: &'a Shared,
}

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.flow.poison("a storage worker has ended");
        }
    }
}

impl Shared {
    fn write_frame(&self, job: Job, compressors: &mut Compressors) {
        let Job { container, number, raw, form } = job;
        let raw_bytes = raw.len();
        let (codec, stored, place) = match &form {
            Form::Raw { is_sequential } => {
                let (codec, stored) = compressors.compress(*is_sequential, &raw, &self.profile);
                (codec, stored, None)
            }
            Form::Compressed { codec, stored, offset_bytes } => (*codec, &stored[..], Some(*offset_bytes)),
        };
        let checksum = checksum(stored);
        let (file, offset, keeps) = {
            let mut state = container.state.lock();
            let keeps = !self.options.discards_data || state.has_metadata(number);
            (state.file.clone(), place.unwrap_or_else(|| state.place(number, raw_bytes, stored.len())), keeps)
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
        self.counters.compressed(&frame, place.is_some());
        self.flow.note_compressed(frame.raw_bytes, frame.stored_bytes);
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
            Err(error) => (Progress::Failed(frame, stored.to_vec()), Some(error)),
        };
        let (released, is_complete) = {
            let mut state = container.state.lock();
            (state.settle_frame(number, progress), state.is_complete())
        };
        self.flow.settle_frame(released, failed);
        if is_complete && self.options.whole_files {
            self.puts.add(&container);
        }
    }
}
