//! What a run is made of, where new data goes, and whose run lengths are used.

/// What a run is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// U: data that appeared nowhere before.
    Unique,
    /// I: data that repeats within the generation.
    Internal,
    /// T: data of the previous generation.
    Temporal,
}

impl State {
    /// All states.
    pub const ALL: [State; 3] = [State::Unique, State::Internal, State::Temporal];

    /// Returns the letter that the papers use.
    pub fn letter(self) -> char {
        match self {
            State::Unique => 'U',
            State::Internal => 'I',
            State::Temporal => 'T',
        }
    }
}

/// How new data is placed among old data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Runs are rounded up to 4 KiB, and new data overwrites as much of the previous generation. Old data keeps its
    /// place, as on a disk.
    #[default]
    Block,
    /// Runs have any length, and new data is inserted. Old data moves, as in an archive of files.
    Floating,
}

impl Placement {
    /// Returns the trace that the papers use with this placement.
    pub fn trace(self) -> Trace {
        match self {
            Placement::Block => Trace::Upb6,
            Placement::Floating => Trace::Upb21S,
        }
    }
}

/// The trace of real backups from which second generations take run lengths and transitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trace {
    /// The papers' choice for [`Placement::Block`].
    #[default]
    Upb6,
    /// The papers' choice for floating second generations.
    Upb21S,
}

impl Trace {
    /// Returns the probabilities of: internal after unique, unique after internal, and internal after temporal. In each
    /// case the only other possible follower has the remaining probability. No state follows itself.
    pub(crate) fn switches(self) -> [f64; 3] {
        let share = |counted: u32, other: u32| f64::from(counted) / f64::from(counted + other);
        match self {
            // The counts come from data/state-switches.csv.
            Trace::Upb6 => [share(4810, 22224), share(4706, 2161), share(2057, 22328)],
            Trace::Upb21S => [share(4519, 27300), share(4247, 1103), share(831, 27572)],
        }
    }
}
