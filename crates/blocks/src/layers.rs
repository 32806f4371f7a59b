//! The layers of a store in memory: their order, and where to find a block.
//!
//! Invariants:
//! * A layer below another one, or below a read-only space, never changes what it shows. None of its mappings is
//!   replaced. Moving mappings within it, or taking in its parent, leaves every block as it is.
//! * A layer that a space writes to has no other user.
//! * The table changes after the object index, and before the mappings of removed layers are dropped. A search holds
//!   the table from its first to its last lookup, so it never goes through a layer whose mappings are being dropped.

use crate::error::{Result, SpaceError};
use crate::layer::{LAYERS_FROM, LAYERS_TO, Layer, damaged, layer_key, layer_number};
use crate::mapping::{encode_zeros, first_mapping_block, keys_under, mapping_block, mapping_key};
use onefold_engine::components::OBJECT_INDEX;
use onefold_engine::{Change, Engine};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Objects read in one step. In tests there are few, so that small spaces take several steps.
pub(crate) const STEP_OBJECTS: usize = if cfg!(test) { 4 } else { 256 };

/// A layer in memory.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) number: u32,
    /// The partition of the object index with the layer and its maps. It is the same for all layers of a chain.
    pub(crate) partition: u16,
    /// As of the last change of its shape. The current number of keys is in `mappings`.
    pub(crate) layer: Layer,
    /// The number of keys in its maps ([`Layer::mappings`]). Locked from reading the number until the transaction that
    /// changes it is submitted.
    pub(crate) mappings: Arc<Mutex<u64>>,
}

impl Node {
    pub(crate) fn new(number: u32, partition: u16, layer: Layer) -> Node {
        Node { number, partition, mappings: Arc::new(Mutex::new(layer.mappings)), layer }
    }

    /// Returns the same layer with another shape.
    pub(crate) fn with(&self, layer: Layer) -> Node {
        Node { layer, ..self.clone() }
    }

    /// Returns the change that writes the layer with this number of mappings to the object index.
    pub(crate) fn change(&self, mappings: u64) -> Change {
        (self.partition, layer_key(self.number), Some(Layer { mappings, ..self.layer.clone() }.encode()))
    }
}

/// The table of layers.
#[derive(Debug)]
pub(crate) struct Layers {
    engine: Arc<Engine>,
    nodes: RwLock<BTreeMap<u32, Arc<Node>>>,
}

/// Blocks with a mapping, with the topmost mapping of each, and the block at which to continue.
pub(crate) type Mapped = (BTreeMap<u64, Vec<u8>>, u64);

impl Layers {
    /// Reads all layers. Reports damaged layers in `problems`, and leaves out these and the layers above them.
    pub(crate) fn open(engine: &Arc<Engine>, problems: &mut Vec<String>) -> Result<Layers> {
        let mut nodes: BTreeMap<u32, Arc<Node>> = BTreeMap::new();
        for_each_object(engine, LAYERS_FROM, LAYERS_TO, |partition, key, value| {
            let read = layer_number(key).and_then(|number| Ok((number, Layer::decode(number, value)?)));
            match read.map(|(number, layer)| (number, nodes.insert(number, Arc::new(Node::new(number, partition, layer))))) {
                Ok((_, None)) => {}
                Ok((number, Some(other))) => {
                    problems.push(
                        damaged(number, format!("both partition {} and partition {partition} have one", other.partition)).to_string(),
                    );
                }
                Err(error) => problems.push(error.to_string()),
            }
            Ok(())
        })?;
        // Parents are older than their children, so one pass finds all layers above those left out.
        let mut sound: BTreeMap<u32, Arc<Node>> = BTreeMap::new();
        for (number, node) in nodes {
            let why = match sound.get(&node.layer.parent) {
                _ if node.layer.parent == 0 => None,
                None => Some("which is missing or damaged"),
                Some(parent) if parent.layer.is_dropped => Some("which is being dropped"),
                Some(parent) if parent.partition != node.partition => Some("which is in another partition"),
                Some(parent) if parent.layer.block_bytes != node.layer.block_bytes => Some("which has blocks of another size"),
                Some(_) => None,
            };
            match why {
                Some(why) => problems.push(damaged(number, format!("its parent is layer {}, {why}", node.layer.parent)).to_string()),
                None => drop(sound.insert(number, node)),
            }
        }
        Ok(Layers { engine: engine.clone(), nodes: RwLock::new(sound) })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the table, held for a search.
    pub(crate) fn nodes(&self) -> RwLockReadGuard<'_, BTreeMap<u32, Arc<Node>>> {
        self.nodes.read()
    }

    /// A layer.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<Node>> {
        self.nodes.read().get(&number).cloned()
    }

    /// All layers, by number.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        self.nodes.read().values().cloned().collect()
    }

    /// Returns the layer at the bottom of the chain below `top`.
    pub(crate) fn bottom(&self, top: u32) -> Result<u32> {
        let nodes = self.nodes.read();
        path(&nodes, top, |_| true).try_fold(top, |_, node| Ok(node?.number))
    }

    /// Applies changes that are already in the object index: layers with new shapes, or removed layers. Waits for
    /// searches.
    pub(crate) fn replace(&self, changed: &[(u32, Option<Arc<Node>>)]) {
        let mut nodes = self.nodes.write();
        for (number, node) in changed {
            match node {
                Some(node) => nodes.insert(*number, node.clone()),
                None => nodes.remove(number),
            };
        }
    }

    /// Returns the mapping of a block for a space on layer `top`, and the number of the layer that has it.
    pub(crate) fn find(&self, top: u32, block: u64) -> Result<Option<(u32, Vec<u8>)>> {
        let nodes = self.nodes.read();
        for node in path(&nodes, top, |node| block < node.layer.overlap_blocks) {
            let node = node?;
            for map in node.layer.maps() {
                if let Some(value) = self.engine.get(node.partition, &mapping_key(map, block))? {
                    return Ok(Some((node.number, value)));
                }
            }
        }
        Ok(None)
    }

    /// Returns whether the layers below `top` have anything but zeros for a block.
    pub(crate) fn shows_through(&self, top: u32, block: u64) -> Result<bool> {
        let Some(node) = self.get(top).filter(|node| node.layer.parent != 0 && block < node.layer.overlap_blocks) else {
            return Ok(false);
        };
        let zeros = encode_zeros(node.layer.block_bytes, self.engine.digest_bytes());
        match self.find(node.layer.parent, block) {
            Ok(found) => Ok(found.is_some_and(|(_, value)| value != zeros)),
            // Unknown, so the layer above must hide it.
            Err(error) if error.is_lost() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a repair could not recover all mappings and entries of a layer. Such a layer must not be taken
    /// in or change its shape.
    pub(crate) fn has_lost(&self, node: &Node) -> bool {
        let is_lost =
            |(from, to): (Vec<u8>, Vec<u8>)| self.engine.lost_within(node.partition, &from, &to).is_ok_and(|lost| !lost.is_empty());
        node.layer.maps().flat_map(keys_under).any(is_lost)
    }

    /// Returns the first blocks from `first` up to but not including `last` that have a mapping for a space on layer
    /// `top`.
    pub(crate) fn mapped(&self, top: u32, first: u64, last: u64) -> Result<Mapped> {
        let nodes = self.nodes.read();
        let mut scan = Scan { layers: self, first, next: last, found: BTreeMap::new() };
        let mut end = last;
        for node in path(&nodes, top, |node| first < node.layer.overlap_blocks) {
            let node = node?;
            scan.layer(node, end)?;
            end = end.min(node.layer.overlap_blocks);
        }
        Ok(scan.finish())
    }

    /// Returns some of the first blocks from `first` up to but not including `last`: all that may differ between
    /// spaces on the layers `tops`.
    pub(crate) fn candidates(&self, tops: [u32; 2], first: u64, last: u64) -> Result<Mapped> {
        let nodes = self.nodes.read();
        let chain = |top| path(&nodes, top, |_| true).collect::<Result<Vec<_>>>();
        let chains = [chain(tops[0])?, chain(tops[1])?];
        let is_in = |chain: &[&Arc<Node>], number| chain.iter().any(|node| node.number == number);
        let common = chains[0].iter().map(|node| node.number).find(|number| is_in(&chains[1], *number));
        let mut scan = Scan { layers: self, first, next: last, found: BTreeMap::new() };
        // Everything above the layer that both share, and blocks below it that show through on one side only.
        let mut shown = [last; 2];
        for (chain, shown) in chains.iter().zip(&mut shown) {
            for node in chain.iter().take_while(|node| Some(node.number) != common) {
                scan.layer(node, *shown)?;
                *shown = (*shown).min(if node.layer.parent == 0 { 0 } else { node.layer.overlap_blocks });
            }
        }
        let (from, mut end) = (shown[0].min(shown[1]), shown[0].max(shown[1]));
        for node in chains[0].iter().skip_while(|node| Some(node.number) != common) {
            scan.part(node, from, end)?;
            end = end.min(node.layer.overlap_blocks);
        }
        Ok(scan.finish())
    }

    /// Adds the first blocks of one map, from `first` up to but not including `last`, that are not found yet. Returns
    /// the block at which to continue: at the latest the first block whose mapping a repair could not recover. Errors:
    /// that block is `first`.
    pub(crate) fn mapped_in(&self, partition: u16, map: u32, first: u64, last: u64, found: &mut BTreeMap<u64, Vec<u8>>) -> Result<u64> {
        let (from, mut to, mut last) = (mapping_key(map, first), mapping_key(map, last), last);
        if let Some((gap, _)) = self.engine.first_lost(partition, &from, &to)?
            && gap > from
        {
            last = first_mapping_block(&gap);
            to = gap;
        }
        let range = || self.engine.range(partition, &from, &to, STEP_OBJECTS);
        let objects = self.engine.profile().time(&OBJECT_INDEX, 0, range)?;
        let mut next = last;
        if let Some((key, _)) = objects.get(STEP_OBJECTS - 1) {
            next = next.min(mapping_block(key)? + 1);
        }
        for (key, value) in objects {
            found.entry(mapping_block(&key)?).or_insert(value);
        }
        Ok(next)
    }
}

/// Returns the layers from `top` down, as long as `goes_on` accepts going to a layer's parent.
pub(crate) fn path(
    nodes: &BTreeMap<u32, Arc<Node>>,
    top: u32,
    goes_on: impl Fn(&Node) -> bool,
) -> impl Iterator<Item = Result<&Arc<Node>>> {
    let mut next = top;
    std::iter::from_fn(move || {
        let number = std::mem::take(&mut next);
        if number == 0 {
            return None;
        }
        let Some(node) = nodes.get(&number) else {
            return Some(Err(missing("the table of layers".into(), number)));
        };
        if goes_on(node) {
            next = node.layer.parent;
        }
        Some(Ok(node))
    })
}

/// A search for the first mapped blocks in several layers.
struct Scan<'l> {
    layers: &'l Layers,
    first: u64,
    /// The result is complete up to here.
    next: u64,
    found: BTreeMap<u64, Vec<u8>>,
}

impl Scan<'_> {
    /// Adds the blocks of a layer before `end`.
    fn layer(&mut self, node: &Node, end: u64) -> Result<()> {
        self.part(node, self.first, end)
    }

    /// Adds the blocks of a layer from `from` up to but not including `end`. Blocks already found stay as they are.
    fn part(&mut self, node: &Node, from: u64, end: u64) -> Result<()> {
        for map in node.layer.maps() {
            let (from, end) = (from.max(self.first), end.min(self.next));
            if from < end {
                let complete = self.layers.mapped_in(node.partition, map, from, end, &mut self.found)?;
                if complete < end {
                    self.next = complete;
                }
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Mapped {
        self.found.split_off(&self.next);
        (self.found, self.next)
    }
}

/// Passes all objects with `from <= key < to`, in all partitions, to `visit`, with their partition.
pub(crate) fn for_each_object(
    engine: &Engine,
    from: &[u8],
    to: &[u8],
    mut visit: impl FnMut(u16, &[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    for partition in 0..engine.object_partitions() {
        let mut from = from.to_vec();
        loop {
            let objects = engine.range(partition, &from, to, STEP_OBJECTS)?;
            objects.iter().try_for_each(|(key, value)| visit(partition, key, value))?;
            match objects.last() {
                Some((last, _)) if objects.len() == STEP_OBJECTS => from = [last.as_slice(), &[0]].concat(),
                _ => break,
            }
        }
    }
    Ok(())
}

/// Returns the error for a layer that must exist but does not.
pub(crate) fn missing(object: String, layer: u32) -> SpaceError {
    SpaceError::Damaged { object, reason: format!("its layer {layer} is missing") }
}
