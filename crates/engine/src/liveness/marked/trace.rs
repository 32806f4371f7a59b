//! Follows references down through metadata chunks.

use crate::liveness::ReferencesOf;
use crate::liveness::reference::Group;
use crate::{Engine, Moment, Piece, Recipe};
use onefold_fingerprint::Fingerprint;
use onefold_storage::{Address, ChunkKind, Origin};
use std::collections::HashMap;

/// Knows the objects of a store and what they refer to. For one run: it may remember what it has read.
pub trait Roots {
    /// Passes each group that has objects as of the moment, once or more often. Errors: some may be missing; the text
    /// says why.
    fn groups(&mut self, moment: &Moment<'_>, visit: &mut dyn FnMut(Group)) -> Result<(), String>;

    /// Passes what the objects of a group refer to. Errors: something may be missing; the text says why.
    fn of(&self, moment: &Moment<'_>, group: Group, visit: &mut dyn FnMut(Tree<'_>)) -> Result<(), String>;

    /// Passes what a directory chunk refers to. Errors: it cannot be decoded.
    fn directory(&self, content: &[u8], visit: &mut dyn FnMut(Tree<'_>)) -> Result<(), String>;
}

/// A recipe, and what its pieces of level 0 are.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Whether it spells a directory. Otherwise it spells data.
    pub is_directory: bool,
}

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Data,
    Directory,
    /// Pieces of this level.
    Pieces {
        level: u8,
        is_directory: bool,
    },
    /// The catalog of its container says it.
    Unknown,
}

/// A chunk on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) address: Address,
    pub(crate) fingerprint: Fingerprint,
    what: What,
}

impl Step {
    /// Returns a chunk of which no reference says what it is.
    pub(crate) fn unknown(address: Address, fingerprint: Fingerprint) -> Step {
        Step { address, fingerprint, what: What::Unknown }
    }

    /// Returns whether the chunk is known to refer to nothing.
    pub(crate) fn is_data(&self) -> bool {
        self.what == What::Data
    }

    /// Returns the same chunk at another address.
    pub(crate) fn at(self, address: Address) -> Step {
        Step { address, ..self }
    }

    /// Returns the kind of the chunk; `None`: no reference says it.
    pub(crate) fn kind(&self) -> Option<ChunkKind> {
        match self.what {
            What::Data => Some(ChunkKind::Data),
            What::Directory => Some(ChunkKind::Directory),
            What::Pieces { .. } => Some(ChunkKind::Recipe),
            What::Unknown => None,
        }
    }

    /// Returns the chunk as a piece of a recipe.
    pub(crate) fn piece(&self) -> Piece {
        Piece::Chunk { fingerprint: self.fingerprint, address: self.address, offset: 0, length: 0 }
    }
}

/// Chunks between two questions whether to go on.
const STEPS: usize = 1024;

/// Pushes what a chunk refers to. Errors: it cannot be read.
pub(crate) type Below<'a> = dyn FnMut(&Step, &mut Vec<Step>) -> Result<(), String> + 'a;

/// Follows references.
pub(crate) struct Tracer<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) go_on: &'a dyn Fn() -> bool,
}

impl Tracer<'_> {
    /// Returns the chunks that a tree begins with.
    pub(crate) fn begin(&self, tree: Tree<'_>, stack: &mut Vec<Step>) {
        push(&tree.recipe.pieces, of_level(tree.recipe.level, tree.is_directory), stack);
    }

    /// Passes each chunk on the stack to `enter`, and what the chunks that it returns true for refer to (`below` says
    /// it), and so on.
    /// Passes metadata chunks that cannot be read to `unreadable`, with the reason. Returns false if it was cut short.
    pub(crate) fn trace(
        &self,
        stack: &mut Vec<Step>,
        below: &mut Below<'_>,
        enter: &mut dyn FnMut(&Step) -> bool,
        unreadable: &mut dyn FnMut(&Step, String),
    ) -> bool {
        let mut steps = 0;
        while let Some(step) = stack.pop() {
            steps += 1;
            if steps % STEPS == 0 && !(self.go_on)() {
                return false;
            }
            if enter(&step)
                && let Err(why) = below(&step, stack)
            {
                unreadable(&step, why);
            }
        }
        true
    }

    /// Pushes what a chunk refers to, where only containers say what chunks are.
    pub(crate) fn below_any(
        &self,
        step: &Step,
        kinds: &mut Kinds,
        references: ReferencesOf<'_>,
        stack: &mut Vec<Step>,
    ) -> Result<(), String> {
        let kind = match kinds.of(self.engine, step) {
            Ok(kind) => kind,
            // Then it is followed where it is.
            Err(_) if self.is_elsewhere(step) => return Ok(()),
            Err(why) => return Err(why),
        };
        if kind != ChunkKind::Data {
            let content = self.engine.read_metadata(&step.piece()).map_err(|error| error.to_string())?;
            push(&references(kind, &content)?, What::Unknown, stack);
        }
        Ok(())
    }

    fn is_elsewhere(&self, step: &Step) -> bool {
        let mut is_elsewhere = false;
        let asked = self.engine.further_places(&[(step.fingerprint, step.address)], &mut |place| is_elsewhere |= place != step.address);
        asked.is_ok() && is_elsewhere
    }

    /// Pushes what a chunk refers to.
    pub(crate) fn below(&self, step: &Step, roots: &dyn Roots, stack: &mut Vec<Step>) -> Result<(), String> {
        let what = match step.what {
            What::Unknown => match Kinds::default().of(self.engine, step)? {
                ChunkKind::Data => What::Data,
                ChunkKind::Directory => What::Directory,
                ChunkKind::Recipe => What::Unknown,
            },
            known => known,
        };
        let piece = step.piece();
        match what {
            What::Data => Ok(()),
            What::Directory => {
                let content = self.engine.read_metadata(&piece).map_err(|error| error.to_string())?;
                roots.directory(&content, &mut |tree| self.begin(tree, stack))
            }
            What::Unknown | What::Pieces { .. } => {
                let pieces = self.engine.recipe_chunk(&piece).map_err(|error| error.to_string())?;
                let below = match what {
                    What::Pieces { level, is_directory } => of_level(level, is_directory),
                    _ => What::Unknown,
                };
                push(&pieces, below, stack);
                Ok(())
            }
        }
    }
}

/// The kinds of the chunks of the origin that was asked for last.
#[derive(Default)]
pub(crate) struct Kinds {
    origin: Option<Origin>,
    known: HashMap<(Address, Fingerprint), ChunkKind>,
}

impl Kinds {
    fn of(&mut self, engine: &Engine, step: &Step) -> Result<ChunkKind, String> {
        let origin = step.address.origin();
        // A container that is being filled may have got more since.
        if self.origin != Some(origin) || !self.known.contains_key(&(step.address, step.fingerprint)) {
            let (_, slots) = engine.storage().chunks_beside(origin).map_err(|error| error.to_string())?;
            self.known = slots.into_iter().map(|(address, slot)| ((address, slot.fingerprint), slot.kind)).collect();
            self.origin = Some(origin);
        }
        let kind = self.known.get(&(step.address, step.fingerprint)).copied();
        kind.ok_or_else(|| format!("chunk {} is not in container {origin}", step.fingerprint))
    }
}

/// Returns what a piece of a recipe of this level refers to.
fn of_level(level: u8, is_directory: bool) -> What {
    match (level, is_directory) {
        (0, false) => What::Data,
        (0, true) => What::Directory,
        (level, is_directory) => What::Pieces { level: level - 1, is_directory },
    }
}

fn push(pieces: &[Piece], what: What, stack: &mut Vec<Step>) {
    // Backwards, so that they come off the stack in order.
    stack.extend(pieces.iter().rev().filter_map(|piece| match *piece {
        Piece::Chunk { fingerprint, address, .. } => Some(Step { address, fingerprint, what }),
        Piece::Zeros { .. } => None,
    }));
}
