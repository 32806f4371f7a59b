//! The containers as a [`ChunkStore`].

use crate::containers::store::ContainerStore;
use crate::containers::writer::Writer;
use crate::{
    Address, Answering, ChunkStore, ChunkWriter, CommittedSlots, CompressedFrame, ContainerId, ContainerReport, ContainerSet, FileFigures,
    FrameVisitor, MAX_CHUNK_BYTES, NewChunk, Origin, Prepared, Result, Scope, ScrubThreads, Scrubbed, Slice, Slot, Usage,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::ReadBuffer;
use onefold_oplog::{Effects, PartitionClass, Position, Pressure};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl ChunkStore for ContainerStore {
    fn new_writer(self: Arc<Self>) -> Box<dyn ChunkWriter> {
        Box::new(ContainerStore::writer(&self))
    }

    fn longest_chunk_bytes(&self) -> usize {
        MAX_CHUNK_BYTES
    }

    fn load(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        ContainerStore::load(self, wanted, out)
    }

    fn load_short(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        ContainerStore::load_short(self, wanted, out)
    }

    fn prepare(&self, scope: Scope) -> Result<Prepared> {
        ContainerStore::prepare(self, scope)
    }

    fn committed(&self, prepared: Prepared, start: Position, end: Position) {
        ContainerStore::committed(self, prepared, start, end);
    }

    fn abandoned(&self, prepared: Prepared) {
        ContainerStore::abandoned(self, prepared);
    }

    fn unsynced_bytes(&self) -> u64 {
        ContainerStore::unsynced_bytes(self)
    }

    fn open_bytes(&self) -> u64 {
        self.statistics().open_frame_bytes
    }

    fn usage(&self, counted: Option<FileFigures>) -> Result<Usage> {
        let files = counted.map_or_else(|| self.count_files(), Ok)?;
        let (unsealed, unsealed_bytes) = self.unsealed_files()?;
        Ok(Usage { units: files.containers + unsealed, disk_bytes: files.bytes() + unsealed_bytes + self.parity_bytes()? })
    }

    fn damaged_owners(&self) -> Result<Vec<String>> {
        ContainerStore::damaged_owners(self)
    }

    fn apply(&self, _end: Position, effects: &Effects<'_>) -> Result<()> {
        let own = effects.replayed.iter().filter(|record| record.partition.class == PartitionClass::Container);
        for record in own {
            self.replay(effects.start, record)?;
        }
        Ok(())
    }

    fn recovered(&self, log_start: Position, log_end: Position) -> Result<()> {
        ContainerStore::recovered(self, log_start, log_end)
    }

    /// [`ContainerStore::trim_point`] has the last word, as a merge may begin meanwhile.
    fn position(&self) -> Position {
        self.oldest_needed().unwrap_or_else(|| self.required_end())
    }

    fn required_end(&self) -> Position {
        self.shared.log_end.get()
    }

    fn pressure(&self) -> Pressure {
        if self.has_pending_merges() { Pressure::Behind } else { Pressure::Idle }
    }

    /// Replaces the files of merged containers. If that fails (a full disk), only the log waits for it, and a later
    /// step retries it.
    fn step(&self) -> Result<bool> {
        self.shared.finish_or_warn();
        Ok(false)
    }

    fn checkpoint_before(&self, position: Position) -> Result<Prepared> {
        ContainerStore::checkpoint_before(self, position)
    }

    fn trim_point(&self, target: Position) -> Position {
        ContainerStore::trim_point(self, target)
    }

    fn leave(&self) {
        ContainerStore::release_room(self);
    }

    fn units(&self) -> Result<ContainerSet> {
        self.containers()
    }

    fn forwards(&self) -> Result<ContainerSet> {
        ContainerStore::forwards(self)
    }

    fn answering<'a>(&'a self, units: &'a ContainerSet, forwards: &ContainerSet) -> Result<Answering<'a>> {
        ContainerStore::answering(self, units, forwards)
    }

    fn verify(&self, unit: ContainerId, read_data: bool, buffer: &mut ReadBuffer, visit: &mut FrameVisitor<'_>) -> Result<ContainerReport> {
        self.verify_frames(unit, read_data, buffer, Some(visit))
    }

    fn scrub(
        &self,
        units: &[ContainerId],
        threads: &ScrubThreads,
        stop: &AtomicBool,
        found: &mut dyn FnMut(ContainerId, Scrubbed),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        ContainerStore::scrub(self, units, threads, stop, found, waiting)
    }

    fn unit_of(&self, origin: Origin) -> Result<ContainerId> {
        self.container_of(origin)
    }

    fn has_chunks_of(&self, origin: Origin) -> Result<bool> {
        self.has_file(origin)
    }

    fn listed(&self, origins: Vec<Origin>) -> Result<Vec<Origin>> {
        ContainerStore::listed(self, origins)
    }

    fn void(&self) -> ContainerSet {
        ContainerStore::void(self)
    }

    fn chunks_beside(&self, origin: Origin) -> Result<(ContainerId, Vec<(Address, Slot)>)> {
        self.slots_beside(origin)
    }

    fn committed_slots(&self) -> CommittedSlots {
        ContainerStore::committed_slots(self)
    }

    fn as_containers(self: Arc<Self>) -> Option<Arc<ContainerStore>> {
        Some(self)
    }
}

impl ChunkWriter for Writer {
    fn be_sequential(&mut self) {
        self.is_sequential = true;
    }

    fn append(&mut self, chunks: &[NewChunk<'_>]) -> Result<Vec<Address>> {
        Writer::append(self, chunks)
    }

    fn append_frame(&mut self, chunks: &[NewChunk<'_>], frame: &CompressedFrame<'_>) -> Result<Vec<Address>> {
        Writer::append_frame(self, chunks, frame)
    }
}
