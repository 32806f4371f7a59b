//! Layers: what spaces share. This is the record of a layer (`docs/format.md` section 7.3).
//!
//! A layer is a set of block mappings and entries on top of another layer, its parent. A block without a mapping in the
//! layer is the parent's, as far as the parent shows through. A block that no layer has is zeros. An entry that the
//! layer does not have is the parent's, unless a tombstone hides it. So a snapshot or a clone is just a new layer,
//! whatever the size of the layers below it.
//!
//! The mappings and entries of a layer are keyed by the number of a *map*. While a layer takes in its parent
//! (`cleaning.rs`) it has two maps, one above the other, and the smaller is emptied into the larger. So the cost does
//! not depend on which layer a map came from.

use crate::error::{Result, SpaceError};
use crate::record::{VERSION, check_block_size, check_version, choice};
use onefold_ground::wire::{Reader, WireError};

/// The first key of all layers.
pub(crate) const LAYERS_FROM: &[u8] = b"l";
/// The end of the keys of layers.
pub(crate) const LAYERS_TO: &[u8] = b"m";

/// The record of a layer in the object index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The layer below, or 0. Its number is always less than the layer's own.
    pub parent: u32,
    /// How many blocks of the parent show through, from the first on. It never grows: blocks that a space lost by
    /// shrinking stay lost.
    pub overlap_blocks: u64,
    /// The size of a block in bytes. All layers of a chain have the same.
    pub block_bytes: u32,
    /// Nobody uses the layer any more: its mappings are being dropped, and it has no parent.
    pub is_dropped: bool,
    /// The number of keys in its maps: block mappings and entries. With 0, nothing was written to it.
    pub mappings: u64,
    /// The map that holds its mappings and receives new ones.
    pub map: u32,
    /// A second map, while the layer takes in its former parent.
    pub merging: Option<Merging>,
}

/// A map that is being emptied into [`Layer::map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// Its number.
    pub map: u32,
    /// Whether it lies above the other map, so that its mappings hide the other's.
    pub is_upper: bool,
}

impl Layer {
    /// Returns the maps in the order in which to search them for a block. Mappings move from one map to the other in
    /// single transactions. A search that asks the upper map both before and after the lower one finds each of them.
    pub(crate) fn maps(&self) -> impl Iterator<Item = u32> + use<> {
        let (first, second) = match self.merging {
            None => (self.map, None),
            Some(other) if other.is_upper => (other.map, Some(self.map)),
            Some(other) => (self.map, Some(other.map)),
        };
        std::iter::once(first).chain(second.into_iter().flat_map(move |second| [second, first]))
    }

    /// Encodes the record for the object index.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.parent.to_le_bytes());
        out.extend_from_slice(&self.overlap_blocks.to_le_bytes());
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
        out.push(u8::from(self.is_dropped));
        out.extend_from_slice(&self.mappings.to_le_bytes());
        out.extend_from_slice(&self.map.to_le_bytes());
        match self.merging {
            None => out.push(0),
            Some(Merging { map, is_upper }) => {
                out.push(if is_upper { 1 } else { 2 });
                out.extend_from_slice(&map.to_le_bytes());
            }
        }
        out
    }

    /// Reads the record of layer `number`, as the object index has it.
    pub fn decode(number: u32, value: &[u8]) -> Result<Layer> {
        let layer = Layer::read(value).map_err(|error| damaged(number, error.to_string()))?;
        check_block_size(layer.block_bytes).map_err(|error| damaged(number, error.to_string()))?;
        if layer.parent >= number {
            return Err(damaged(number, format!("its parent is layer {}, which is not older", layer.parent)));
        }
        if layer.is_dropped && layer.parent != 0 {
            return Err(damaged(number, format!("it is being dropped and has parent {}", layer.parent)));
        }
        if layer.map == 0 || layer.merging.is_some_and(|other| other.map == 0 || other.map == layer.map) {
            return Err(damaged(number, "it does not name its maps".into()));
        }
        Ok(layer)
    }

    fn read(value: &[u8]) -> std::result::Result<Layer, WireError> {
        let mut reader = Reader::new(value);
        check_version(&mut reader)?;
        let (parent, overlap_blocks, block_bytes) = (reader.u32()?, reader.u64()?, reader.u32()?);
        let is_dropped = choice(&mut reader, "state", 1)? == 1;
        let (mappings, map) = (reader.u64()?, reader.u32()?);
        let merging = match choice(&mut reader, "merging", 2)? {
            0 => None,
            which => Some(Merging { map: reader.u32()?, is_upper: which == 1 }),
        };
        reader.end()?;
        Ok(Layer { parent, overlap_blocks, block_bytes, is_dropped, mappings, map, merging })
    }
}

/// Returns the error for a record of a layer that does not follow the format.
pub(crate) fn damaged(number: u32, reason: String) -> SpaceError {
    SpaceError::Damaged { object: format!("the record of layer {number}"), reason }
}

/// The key of a layer.
pub(crate) fn layer_key(number: u32) -> Vec<u8> {
    [LAYERS_FROM, &number.to_be_bytes()].concat()
}

/// The number in the key of a layer.
pub(crate) fn layer_number(key: &[u8]) -> Result<u32> {
    let number = key.strip_prefix(LAYERS_FROM).and_then(|number| number.try_into().ok()).map(u32::from_be_bytes);
    number.ok_or_else(|| SpaceError::Damaged { object: format!("the key {key:02x?} of a layer"), reason: "it is not 5 bytes long".into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::MIN_BLOCK_BYTES;
    use proptest::prelude::*;

    fn layer() -> impl Strategy<Value = Layer> {
        let merging = proptest::option::of((5u32..9, any::<bool>()).prop_map(|(map, is_upper)| Merging { map, is_upper }));
        (0u32..7, any::<u64>(), any::<bool>(), any::<u64>(), 1u32..5, merging).prop_map(
            |(parent, overlap_blocks, is_dropped, mappings, map, merging)| {
                let parent = if is_dropped { 0 } else { parent };
                Layer { parent, overlap_blocks, block_bytes: MIN_BLOCK_BYTES, is_dropped, mappings, map, merging }
            },
        )
    }

    proptest! {
        #[test]
        fn a_layer_is_read_as_written_and_what_is_cut_is_refused(layer in layer()) {
            let value = layer.encode();
            prop_assert_eq!(Layer::decode(7, &value).unwrap(), layer);
            for length in 0..value.len() {
                prop_assert!(Layer::decode(7, &value[..length]).is_err());
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Layer::decode(1, &bytes);
            let _ = layer_number(&bytes);
        }
    }

    #[test]
    fn a_layer_that_leads_to_itself_or_to_no_map_is_refused() {
        let whole =
            Layer { parent: 3, overlap_blocks: 1, block_bytes: MIN_BLOCK_BYTES, is_dropped: false, mappings: 0, map: 4, merging: None };
        assert!(Layer::decode(4, &whole.encode()).is_ok());
        assert!(Layer::decode(3, &whole.encode()).unwrap_err().to_string().contains("which is not older"));
        assert!(Layer::decode(4, &Layer { map: 0, ..whole.clone() }.encode()).is_err());
        assert!(Layer::decode(4, &Layer { is_dropped: true, ..whole.clone() }.encode()).is_err());
        let same = Layer { merging: Some(Merging { map: 4, is_upper: true }), ..whole };
        assert!(Layer::decode(5, &same.encode()).is_err());
        assert_eq!(layer_number(&layer_key(77)).unwrap(), 77);
    }

    #[test]
    fn the_upper_map_is_asked_before_and_after_the_lower() {
        let layer =
            |merging| Layer { parent: 0, overlap_blocks: 0, block_bytes: MIN_BLOCK_BYTES, is_dropped: false, mappings: 0, map: 1, merging };
        let maps = |merging| layer(merging).maps().collect::<Vec<_>>();
        assert_eq!(maps(None), [1]);
        assert_eq!(maps(Some(Merging { map: 2, is_upper: true })), [2, 1, 2]);
        assert_eq!(maps(Some(Merging { map: 2, is_upper: false })), [1, 2, 1]);
    }
}
