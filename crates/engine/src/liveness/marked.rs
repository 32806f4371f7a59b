//! Liveness by marks (M3.7, grouped mark-and-sweep): for each group, a file says which slots its objects need, directly
//! or through metadata chunks. Marks are made again, never adjusted: a lost or repeated update cannot harm them.
//!
//! # A run ([`Marked::run`])
//! 1. Under the lock of commits: the *floor* is the end of the log. Forget which groups were noted; begin to collect
//!    what is added. Then flush, and take a [`Moment`]. Marks count as of the floor, not as of the moment.
//! 2. Mark each group that changed since its marks. If references were only added, the old marks stay, and metadata
//!    chunks that have one are not read: what they lead to has marks. If one was dropped, begin with nothing. All other
//!    groups keep their files.
//! 3. To be swept are the origins where an old mark has no new one, those that are newer than the last sweep, and those
//!    that it left. Their list is durable with the new marks, in one transaction. Old files go afterwards.
//! 4. A chunk is unneeded if it was durable at the floor, no group has a mark for it, and nobody added a reference to
//!    it since the floor.
//!
//! # Why no needed chunk is called unneeded
//! * *A batch beside the beginning of a run.* It is noted before the floor: then the moment has it, as the flush comes
//!   later. Or it is noted after: then its position is not before the floor, so its group counts as changed in the next
//!   run, and what it adds is collected in this one. There is no third case: `note` and the floor are under one lock.
//! * *A moment later than the floor* lacks only what was dropped after the floor. What it has more are marks too many.
//!   If objects could not be read as of one moment, the run ends: a reference may have moved behind its back.
//! * *What is added after the floor* is collected until the run ends. It may lead to chunks that have no mark, through
//!   an unneeded metadata chunk that somebody found by its name. So the removal has all that was added followed
//!   ([`Liveness::settle`]) after its flush, down through metadata chunks, also what was dropped again.
//! * *What is added after that*, while the removal has its candidates on the watch list: whoever refers to a metadata
//!   chunk has asked for each chunk below it by name, under a guard younger than the list, which takes it off. Or he
//!   has copied references from an object that is visible: that object has marks, or was followed, or was itself made
//!   by somebody of whom all this is true. An object that was deleted before the floor is seen only under older guards,
//!   for which the removal waits.
//! * *Another run begins.* It has a later floor, and what was added before that was not collected by it. So no run
//!   begins between the following and the judging of a removal ([`Engine::survey`](crate::Engine::survey)), and marks
//!   that were read for one run are not used in another.
//! * *Something cannot be read.* If a metadata chunk has an old mark, and no chunk got another place since, all old
//!   marks stay. Otherwise something below it may lack a mark: then nothing is removed until a later run can read it.
//! * *A container file is missing.* Its chunks cannot be looked at, so it stays on the list of what is to be swept,
//!   until it comes back or a merge says that none of its chunks is left. In all other containers outside the list,
//!   what was there at the floor has marks.
//! * *A mark names an address, and the chunk is somewhere else now.* Batches that store a chunk again, also if it only
//!   may have been stored before, and repairs that restore chunks say that everything changed: the next run marks all
//!   groups from nothing, and sweeps everything. The place that the index names has a mark too, if it is another one,
//!   and so have the places where a copy that counts for itself was stored again.
//! * *A crash.* Until the transaction of a run is durable, the old marks count. A mark file that is missing or damaged
//!   makes its group begin from nothing, and every container is swept once.

mod file;
mod group;
mod liveness;
mod note;
mod objects;
mod origins;
mod run;
mod settle;
mod state;
mod sweep;
mod trace;
mod trial;

pub use file::decode_marks;
pub(crate) use origins::Origins;
pub use run::Marking;
pub use state::Marked;
pub(crate) use state::forget_marks;
pub use trace::{Roots, Tree};
pub(crate) use trace::{Step, Tracer};
pub use trial::Reached;
