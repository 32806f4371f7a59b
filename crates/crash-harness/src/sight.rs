//! The interesting things that a run may meet.

/// What a run may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// The chunk index swept its changes into its pages.
    Sweep,
    /// A partition of the chunk index grew.
    Growth,
    /// A container was full.
    Seal,
    /// A frame that a client compressed was stored as it came.
    Supplied,
    /// Frames went into a container of an earlier opening.
    Continued,
    /// The log has a checkpoint of a container.
    Checkpoint,
    /// A memtable of a levelled store became a table.
    Table,
    /// Tables were merged into a deeper level.
    Compaction,
    /// Tables of a partition are in two directories: a move has not ended.
    HalfMoved,
    /// The log has a segment after the first.
    Segment,
    /// The start of the log was freed.
    Trim,
    /// Bytes in a container that no record names.
    TornFrame,
    /// A container with dead slots.
    Dead,
    /// A layer of a volume that a crash left while it was being dropped or taken in.
    LayerUnderWay,
    /// An old id of a container that was merged.
    Forward,
    /// A copy of a chunk that is elsewhere.
    Redirect,
    /// A crash in the commit of a filesystem left its names, though nobody was told.
    NewerNames,
    /// A crash left a file without its end, which was not stored.
    ShorterFile,
    /// A crash left a file with bytes of another moment than its names.
    OtherBytes,
    /// A removed file whose blocks a crash left to be freed.
    RemovedFile,
}

impl Sight {
    /// Everything in a store with a chunk index.
    pub const ALL: &[Sight] = &[
        Sight::Sweep,
        Sight::Growth,
        Sight::Seal,
        Sight::Supplied,
        Sight::Continued,
        Sight::Checkpoint,
        Sight::Segment,
        Sight::Trim,
        Sight::TornFrame,
        Sight::Dead,
        Sight::LayerUnderWay,
        Sight::Forward,
        Sight::NewerNames,
        Sight::ShorterFile,
        Sight::OtherBytes,
        Sight::RemovedFile,
    ];

    /// Everything in a store without one.
    pub const WITHOUT_INDEX: &[Sight] = &[
        Sight::Seal,
        Sight::Supplied,
        Sight::Continued,
        Sight::Checkpoint,
        Sight::Segment,
        Sight::Trim,
        Sight::TornFrame,
        Sight::Dead,
        Sight::LayerUnderWay,
        Sight::Forward,
        Sight::Redirect,
        Sight::NewerNames,
        Sight::ShorterFile,
        Sight::OtherBytes,
        Sight::RemovedFile,
    ];
}
