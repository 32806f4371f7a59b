//! The arena as a whole: creating and opening it, and its figures.

use crate::arena::block::{BlockTable, UNIT_BLOCKS};
use crate::arena::device::Device;
use crate::arena::header::{Header, blocks_path, header_path};
use crate::arena::holes::Holes;
use crate::arena::options::ArenaOptions;
use crate::arena::pending::Pending;
use crate::arena::space::{Space, WriterId};
use crate::containers::Moments;
use crate::containers::log_end::LogEnd;
use crate::{Result, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, File, Ground};
use onefold_oplog::Position;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// An open arena.
#[derive(Debug)]
pub struct ArenaStore {
    ground: Arc<dyn Ground>,
    directory: String,
    pub(crate) file: Arc<dyn File>,
    /// The same, if it is a block device.
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) options: ArenaOptions,
    pub(crate) table: Arc<dyn BlockTable>,
    pub(crate) holes: Arc<dyn Holes>,
    pub(crate) profile: Arc<Profile>,
    access: Access,
    /// Set when replay is over and the store is open for writing.
    is_writable: AtomicBool,
    pub(crate) log_end: LogEnd,
    /// Comes before the lock of the pending chunks.
    pub(crate) space: Mutex<Space>,
    pub(crate) pending: Pending,
    next_writer: AtomicU64,
    /// Whether chunks are found by their names where the block table does not have them.
    pub(crate) loads_by_names: AtomicBool,
    /// The names of chunks of zeros, and their lengths.
    pub(crate) names_of_zeros: OnceLock<HashMap<Fingerprint, u32>>,
    /// Who wants to know which metadata chunks are committed from now on.
    pub(crate) moments: Moments,
}

/// Creates an empty arena on a device.
fn create_on(device: &Device, ground: &dyn Ground, directory: &str, options: &ArenaOptions) -> Result<()> {
    let path = header_path(directory);
    if ground.exists(&path)? {
        let why = "the arena is there already".to_owned();
        return Err(StorageError::ArenaHeader { path: ground.describe(&path), why, is_damage: false });
    }
    // A call that was cut short has left its own header.
    if device.header(options).is_err() {
        device.check_unused()?;
    }
    let header = Header::new(options, 0, device.nonce()?);
    device.write_header(&header)?;
    ground.sync_directory(directory)?;
    // It comes last: an arena that has one is whole.
    header.write(ground, directory)
}

/// What an arena works with.
#[derive(Clone, Debug)]
pub struct ArenaParts {
    /// Knows what blocks hold.
    pub table: Arc<dyn BlockTable>,
    /// Punches holes where blocks are free.
    pub holes: Arc<dyn Holes>,
    /// Where time goes.
    pub profile: Arc<Profile>,
    /// The end of the log. A device whose blocks were written for a longer log is refused for writing.
    pub log_end: Position,
}

/// How an arena stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaFigures {
    /// Whole blocks of the file, as far as the limit goes.
    pub blocks: u64,
    /// Chunks that are not committed.
    pub pending: u64,
    /// Blocks whose chunks are being removed.
    pub retired: u64,
    /// Blocks that writers have taken ahead.
    pub reserved: u64,
    /// Bytes that wait to be written.
    pub buffered_bytes: u64,
}

impl ArenaStore {
    /// Creates an empty arena. It is durable on return. A call that a crash has ended may be repeated.
    ///
    /// If the file of blocks is there already and leads to a block device ([`Ground::link_device`]), the blocks are on
    /// that device. Errors: the device is in use, or has data.
    pub fn create(ground: &dyn Ground, directory: &str, options: &ArenaOptions) -> Result<()> {
        options.check()?;
        ground.create_directory(directory)?;
        let path = blocks_path(directory);
        if let Some(device) = Device::open(ground, &path, Access::ReadWrite)? {
            return create_on(&device, ground, directory, options);
        }
        if ground.exists(&path)? && !ground.exists(&header_path(directory))? && ground.open(&path, Access::Read)?.is_empty()? {
            ground.remove(&path)?;
        }
        ground.create(&path)?.sync()?;
        ground.sync_directory(directory)?;
        // The header comes last: an arena that has one is whole.
        Header::new(options, 0, 0).write(ground, directory)
    }

    /// Refuses a block device on which no arena can be made. The ground is a directory with a name that leads to it.
    pub fn check_device(ground: &dyn Ground, path: &str) -> Result<()> {
        match Device::open(ground, path, Access::ReadWrite)? {
            Some(device) => device.check_unused(),
            None => Err(StorageError::Device { path: ground.describe(path), why: "there is no block device".to_owned(), is_damage: false }),
        }
    }

    /// Returns the greatest epoch that has opened an arena for writing. Errors: its header is damaged, or does not fit.
    pub fn owner(ground: &dyn Ground, directory: &str, options: &ArenaOptions) -> Result<u64> {
        let device = Device::open(ground, &blocks_path(directory), Access::Read)?;
        Header::open(ground, directory, options, None, device.as_ref())?;
        Ok(Header::read(ground, directory, options)?.epoch)
    }

    /// Returns the end of the log that a block device knows of; 0: the blocks are in a file, or the device cannot be
    /// read.
    pub fn known_log_end(ground: &dyn Ground, directory: &str, options: &ArenaOptions) -> Result<Position> {
        let device = Device::open(ground, &blocks_path(directory), Access::Read)?;
        Ok(device.filter(|device| device.header(options).is_ok()).map_or(Position(0), |device| device.log_end()))
    }

    /// Writes a new header for an arena whose header is damaged. For repair: the caller knows by other means that these
    /// are the options, and that no owner with a greater epoch exists.
    pub fn rebuild_header(ground: &dyn Ground, directory: &str, options: &ArenaOptions, epoch: u64) -> Result<()> {
        options.check()?;
        let path = blocks_path(directory);
        let Some(device) = Device::open(ground, &path, Access::ReadWrite)? else {
            if !ground.exists(&path)? {
                // It may lead to a device that is away.
                return Err(StorageError::ArenaMissing { path: ground.describe(&path) });
            }
            return Header::new(options, epoch, 0).write(ground, directory);
        };
        let mut header = Header::new(options, epoch, device.nonce()?);
        match device.header(options) {
            Err(error) if error.is_damage() => device.forget_mark()?,
            on_device => {
                // A crash between the two writes must leave a pair that fits.
                let on_device = on_device?;
                header.previous = on_device.nonce;
                if on_device.epoch == epoch {
                    header = on_device;
                }
                device.check_age(&on_device, &header, &ground.describe(directory))?;
            }
        }
        header.write(ground, directory)?;
        device.write_header(&header)
    }

    /// Opens an arena for the owner with this epoch. An arena that was opened for writing with a greater one is
    /// refused. Nothing is written before [`recovered`](crate::ChunkStore::recovered).
    pub fn open(
        ground: Arc<dyn Ground>,
        directory: &str,
        epoch: u64,
        mut options: ArenaOptions,
        parts: ArenaParts,
        access: Access,
    ) -> Result<Arc<ArenaStore>> {
        options.check()?;
        let ArenaParts { table, holes, profile, log_end } = parts;
        let takes = (access == Access::ReadWrite).then_some((epoch, log_end));
        let path = blocks_path(directory);
        let device = Device::open(&*ground, &path, access)?;
        Header::open(&*ground, directory, &options, takes, device.as_ref())?;
        let device = device.map(Arc::new);
        let file: Arc<dyn File> = match &device {
            Some(device) => {
                options.limit_to(device.room_bytes()?);
                device.clone()
            }
            None => match ground.open(&path, access) {
                Err(error) if error.is_not_found() => return Err(StorageError::ArenaMissing { path: ground.describe(&path) }),
                file => file?,
            },
        };
        let block_bytes = options.block_bytes as usize;
        // Bytes behind the last whole block mean nothing: only whole blocks are ever asked for.
        let blocks = (file.len()? / block_bytes as u64).min(options.limit_blocks());
        Ok(Arc::new(ArenaStore {
            pending: Pending::new(block_bytes, options.in_flight_bytes),
            space: Mutex::new(Space::new(blocks)),
            ground,
            directory: directory.to_owned(),
            file,
            device,
            options,
            table,
            holes,
            profile,
            access,
            is_writable: AtomicBool::new(false),
            log_end: LogEnd::default(),
            next_writer: AtomicU64::new(0),
            loads_by_names: AtomicBool::new(false),
            names_of_zeros: OnceLock::new(),
            moments: Moments::default(),
        }))
    }

    /// Ends the replay: the block table has everything that the log says.
    pub(crate) fn begin_writing(&self, log_end: Position) {
        self.note_log_end(log_end);
        self.is_writable.store(self.access == Access::ReadWrite, Relaxed);
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_writable.load(Relaxed) { Ok(()) } else { Err(StorageError::ReadOnly) }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable.load(Relaxed)
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.options.block_bytes)
    }

    pub(crate) fn name_writer(&self) -> WriterId {
        self.next_writer.fetch_add(1, Relaxed)
    }

    /// Returns the file of blocks, in a form for people.
    pub(crate) fn describe(&self) -> String {
        self.ground.describe(&blocks_path(&self.directory))
    }

    /// Returns the room for blocks on the block device that has them, bytes. `None`: they are in a file.
    pub fn device_bytes(&self) -> Result<Option<u64>> {
        self.device.as_ref().map(|device| device.room_bytes()).transpose()
    }

    /// Notes that the log ends here. A device gets to know it.
    pub(crate) fn note_log_end(&self, log_end: Position) {
        self.log_end.set(log_end);
        if let Some(device) = self.device.as_ref().filter(|_| self.access == Access::ReadWrite) {
            device.reached(log_end);
        }
    }

    /// Returns how many blocks have committed chunks, or may have some.
    pub(crate) fn used_blocks(&self) -> Result<u64> {
        let used = |unit| match self.table.used(unit) {
            Err(StorageError::Table { is_damage: true, .. }) => Ok(UNIT_BLOCKS),
            used => used.map(u64::from),
        };
        (0..self.table.units()?).map(used).sum()
    }

    /// Returns how the arena stands.
    pub fn figures(&self) -> ArenaFigures {
        let space = self.space.lock();
        let (buffered_bytes, pending) = self.pending.figures();
        ArenaFigures {
            blocks: space.blocks,
            pending: pending as u64,
            retired: space.retired.len() as u64,
            reserved: space.reserved.values().map(|run| run.end - run.start).sum(),
            buffered_bytes: buffered_bytes as u64,
        }
    }
}
