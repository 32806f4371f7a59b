//! The volumes of a store: making, finding, resizing and deleting them by name.
//!
//! Invariants:
//! * A volume is open once in a process: everybody who asks gets the same [`Volume`], so there is one buffer and one lock for each block.
//! * Names are unique among the volumes that are not being deleted. Numbers are never used again.
//! * A deleted volume is marked first, durably: it cannot be seen any more, whatever happens to the dropping of its mappings.

use crate::error::{Result, VolumeError};
use crate::record::{
    MAX_CHAIN_BYTES, NEXT_NUMBER_KEY, NEXT_NUMBER_PARTITION, Record, VOLUMES_FROM, VOLUMES_TO, check_block_size, check_name, check_size,
    decode_mapping, decode_number, encode_number, mapping_block, mapping_key, mappings_end, volume_key, volume_number,
};
use crate::shared::Shared;
use crate::volume::{Volume, partition_of};
use crate::write_out::count;
use onefold_engine::{Engine, EngineError, Transaction};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Memory and ways of all volumes of a store together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumesOptions {
    /// Bound of the write-back buffers, bytes. Writing out needs up to 2 MiB (or one block) more on each thread that does it.
    pub dirty_bytes: usize,
    /// Bound of the cache of block mappings, bytes.
    pub mapping_cache_bytes: usize,
    /// Writing streams of each volume: threads that write out at once. At least 1.
    pub streams: usize,
    /// Whether reads compare the fingerprints of what they read. Checksums are always verified.
    pub verify: bool,
}

impl Default for VolumesOptions {
    fn default() -> VolumesOptions {
        VolumesOptions { dirty_bytes: 64 << 20, mapping_cache_bytes: 16 << 20, streams: 2, verify: false }
    }
}

/// What is known of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its size, bytes.
    pub size: u64,
    /// Its block size, bytes.
    pub block_size: u32,
    /// When it was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// Its own filter chain; `None`: the store's.
    pub chain: Option<String>,
}

impl VolumeInfo {
    /// Reads the record of volume `number`, as the block index has it.
    pub fn decode(number: u32, value: &[u8]) -> Result<VolumeInfo> {
        let record = Record::decode(number, value)?;
        Ok(VolumeInfo {
            name: record.name,
            size: record.size_bytes,
            block_size: record.block_bytes,
            created_ns: record.created_ns,
            chain: (!record.chain.is_empty()).then_some(record.chain),
        })
    }
}

/// The volumes of a store.
#[derive(Debug)]
pub struct Volumes {
    shared: Arc<Shared>,
    list: Mutex<List>,
    /// One deletion at a time goes on in a process.
    deleting: Mutex<()>,
}

#[derive(Debug, Default)]
struct List {
    live: BTreeMap<String, Arc<Volume>>,
    /// Volumes being deleted, by number.
    deleted: BTreeMap<u32, Record>,
}

/// Objects that are read in one step.
const STEP_OBJECTS: usize = 256;
/// Steps of a deletion between two flushes.
const STEPS_PER_FLUSH: usize = 64;

impl Volumes {
    /// Reads the list of volumes.
    pub fn open(engine: Arc<Engine>, options: VolumesOptions) -> Result<Volumes> {
        let shared = Arc::new(Shared::new(engine, options));
        let mut list = List::default();
        for partition in 0..shared.engine.block_partitions() {
            let mut from = VOLUMES_FROM.to_vec();
            loop {
                let objects = shared.engine.range(partition, &from, VOLUMES_TO, STEP_OBJECTS)?;
                for (key, value) in &objects {
                    let number = volume_number(key)?;
                    let record = Record::decode(number, value)?;
                    if partition != partition_of(&shared, number) {
                        let reason = format!("it is in partition {partition}");
                        return Err(VolumeError::Damaged { object: format!("the record of volume {number}"), reason });
                    }
                    if record.is_deleted {
                        list.deleted.insert(number, record);
                    } else {
                        let name = record.name.clone();
                        if list.live.insert(name.clone(), Volume::new(shared.clone(), number, record)?).is_some() {
                            let reason = format!("another volume has its name {name:?}");
                            return Err(VolumeError::Damaged { object: format!("the record of volume {number}"), reason });
                        }
                    }
                }
                match objects.last() {
                    Some((last, _)) if objects.len() == STEP_OBJECTS => from = [last.as_slice(), &[0]].concat(),
                    _ => break,
                }
            }
        }
        Ok(Volumes { shared, list: Mutex::new(list), deleting: Mutex::new(()) })
    }

    /// Makes a volume of zeros; durable on return. `block_size` is a power of two from 64 KiB to 1 MiB
    /// ([`crate::DEFAULT_BLOCK_BYTES`] when nothing speaks for another); `chain` names the filters of its own chain.
    pub fn create(&self, name: &str, size: u64, block_size: u32, chain: Option<String>) -> Result<Arc<Volume>> {
        check_name(name)?;
        check_size(size)?;
        check_block_size(block_size)?;
        let chain = chain.unwrap_or_default();
        if chain.len() > MAX_CHAIN_BYTES {
            let why = format!("it has {} bytes, at most {MAX_CHAIN_BYTES} are possible", chain.len());
            return Err(EngineError::Invalid { what: "filter chain".into(), why }.into());
        }
        let engine = &self.shared.engine;
        let mut list = self.list.lock();
        if list.live.contains_key(name) {
            return Err(VolumeError::Exists { name: name.to_owned() });
        }
        let number = match engine.get(NEXT_NUMBER_PARTITION, NEXT_NUMBER_KEY)? {
            Some(value) => decode_number(&value)?,
            None => 1,
        };
        let next = number.checked_add(1).ok_or(VolumeError::NoNumberLeft)?;
        let record =
            Record { name: name.to_owned(), size_bytes: size, block_bytes: block_size, is_deleted: false, created_ns: now_ns(), chain };
        let volume = Volume::new(self.shared.clone(), number, record.clone())?;
        let changes = vec![
            (NEXT_NUMBER_PARTITION, NEXT_NUMBER_KEY.to_vec(), Some(encode_number(next))),
            (volume.partition, volume_key(number), Some(record.encode())),
        ];
        self.shared.submit_object(changes)?;
        list.live.insert(name.to_owned(), volume.clone());
        drop(list);
        engine.flush()?;
        Ok(volume)
    }

    /// All volumes, sorted by name.
    pub fn list(&self) -> Vec<VolumeInfo> {
        self.list.lock().live.values().map(|volume| volume.info()).collect()
    }

    /// The volume of a name.
    pub fn get(&self, name: &str) -> Result<Arc<Volume>> {
        self.list.lock().live.get(name).cloned().ok_or_else(|| VolumeError::NotFound { name: name.to_owned() })
    }

    /// Changes the size of a volume: [`Volume::resize`].
    pub fn resize(&self, name: &str, size: u64) -> Result<()> {
        self.get(name)?.resize(size)
    }

    /// Writes out and makes durable what was written to all volumes.
    pub fn flush(&self) -> Result<()> {
        let volumes: Vec<_> = self.list.lock().live.values().cloned().collect();
        let mut result = Ok(());
        for volume in volumes {
            let flushed = volume.write_out_all();
            result = result.and(flushed);
        }
        result.and(Ok(self.shared.engine.flush()?))
    }

    /// Deletes a volume: on return it is gone for everybody, durably. What it held is given back by [`Volumes::resume_deletions`].
    /// Refused in append-only mode.
    pub fn delete(&self, name: &str) -> Result<()> {
        let _permit = self.shared.engine.permit_deletion("delete volumes")?;
        let mut list = self.list.lock();
        let volume = list.live.get(name).cloned().ok_or_else(|| VolumeError::NotFound { name: name.to_owned() })?;
        volume.close_deleted(|record| {
            let marked = Record { is_deleted: true, ..record.clone() };
            volume.submit_record(&marked)?;
            list.live.remove(name);
            list.deleted.insert(volume.number, marked);
            Ok(())
        })?;
        drop(list);
        Ok(self.shared.engine.flush()?)
    }

    /// Drops the mappings of deleted volumes, those of earlier runs included, until `go_on` says no. Returns whether nothing is left to do.
    pub fn resume_deletions(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let _one_at_a_time = self.deleting.lock();
        loop {
            let Some((number, record)) = self.list.lock().deleted.iter().next().map(|(number, record)| (*number, record.clone())) else {
                return Ok(true);
            };
            if !self.drop_mappings(number, &record, go_on)? {
                self.shared.engine.flush()?;
                return Ok(false);
            }
            let changes = vec![(partition_of(&self.shared, number), volume_key(number), None)];
            self.shared.submit_object(changes)?;
            self.shared.engine.flush()?;
            self.list.lock().deleted.remove(&number);
        }
    }

    /// Drops all mappings of a volume with their references, many in one transaction. Returns whether all are gone.
    fn drop_mappings(&self, number: u32, record: &Record, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let engine = &self.shared.engine;
        let partition = partition_of(&self.shared, number);
        let mut from = mapping_key(number, 0);
        for step in 1.. {
            if !go_on() {
                return Ok(false);
            }
            let objects = engine.range(partition, &from, &mappings_end(number), STEP_OBJECTS)?;
            let Some((last, _)) = objects.last() else { break };
            from = [last.as_slice(), &[0]].concat();
            let mut deltas = HashMap::new();
            let mut changes = Vec::with_capacity(objects.len());
            for (key, value) in objects {
                let block = mapping_block(&key)?;
                let pieces = decode_mapping(&value, engine.digest_bytes(), record.block_bytes).map_err(|reason| VolumeError::Damaged {
                    object: format!("the mapping of block {block} of volume {number}"),
                    reason,
                })?;
                count(&mut deltas, &pieces, -1);
                changes.push((partition, key, None));
            }
            engine.submit(Transaction { changes, deltas: deltas.into_iter().collect() })?;
            if step % STEPS_PER_FLUSH == 0 {
                engine.flush()?;
            }
        }
        Ok(true)
    }
}

fn now_ns() -> i64 {
    // A clock before 1970 or after 2262 is wrong anyway; a volume can be made all the same.
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}
