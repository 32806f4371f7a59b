//! Reads what a sealed container's file must hold besides its frames: header, catalog and footer. They come from the
//! file, or from its bytes in memory.

use crate::components::STORAGE_READ;
use crate::containers::file;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Catalog, ContainerId, FOOTER_BYTES, Footer, HEADER_BYTES, Header, Result, StorageError};
use onefold_ground::wire::Reader;
use onefold_ground::{Access, File, GroundError, ReadBuffer, checksum};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;

/// The content of a container file: the file itself, or its bytes in memory.
pub(crate) trait Bytes {
    /// Returns how many bytes there are.
    fn length(&self) -> onefold_ground::Result<u64>;
    /// Returns a range of them. If the range is not all there, that is an error of kind `UnexpectedEof`.
    fn range(&self, offset: u64, length: usize) -> onefold_ground::Result<Cow<'_, [u8]>>;
}

impl Bytes for Arc<dyn File> {
    fn length(&self) -> onefold_ground::Result<u64> {
        self.len()
    }

    fn range(&self, offset: u64, length: usize) -> onefold_ground::Result<Cow<'_, [u8]>> {
        let mut bytes = vec![0; length];
        self.read_at(offset, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}

impl Bytes for ReadBuffer {
    fn length(&self) -> onefold_ground::Result<u64> {
        Ok(self.len() as u64)
    }

    fn range(&self, offset: u64, length: usize) -> onefold_ground::Result<Cow<'_, [u8]>> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.get(start..start.saturating_add(length)).ok_or_else(|| GroundError::Io {
            operation: "read",
            path: "a container in memory".to_owned(),
            source: io::ErrorKind::UnexpectedEof.into(),
        })?;
        Ok(Cow::Borrowed(bytes))
    }
}

/// A file, seen with another header than its own.
#[derive(Debug)]
struct WithHeader {
    file: Arc<dyn File>,
    header: [u8; HEADER_BYTES],
}

impl WithHeader {
    /// Puts the header over bytes that were read from its place.
    fn cover(&self, offset: u64, buffer: &mut [u8]) {
        let from = usize::try_from(offset).unwrap_or(HEADER_BYTES).min(HEADER_BYTES);
        let covered = (HEADER_BYTES - from).min(buffer.len());
        buffer[..covered].copy_from_slice(&self.header[from..from + covered]);
    }

    fn refused(operation: &'static str) -> GroundError {
        let path = "a container with a rewritten header".to_owned();
        GroundError::Io { operation, path, source: io::ErrorKind::PermissionDenied.into() }
    }
}

impl onefold_ground::DelegatingFile for WithHeader {
    fn below(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> onefold_ground::Result<()> {
        self.file.read_at(offset, buffer)?;
        self.cover(offset, buffer);
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> onefold_ground::Result<bool> {
        let is_read = self.file.try_read_at(offset, buffer)?;
        self.cover(offset, buffer);
        Ok(is_read)
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> onefold_ground::Result<()> {
        Err(WithHeader::refused("write"))
    }

    fn set_len(&self, _length: u64) -> onefold_ground::Result<()> {
        Err(WithHeader::refused("truncate"))
    }

    fn sync(&self) -> onefold_ground::Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _length: u64) -> onefold_ground::Result<()> {
        Err(WithHeader::refused("allocate space in"))
    }

    fn allocate_from_reserve(&self, _offset: u64, _length: u64) -> onefold_ground::Result<()> {
        Err(WithHeader::refused("allocate space in"))
    }
}

/// Returns the header that these bytes were before one bit of them was flipped.
fn one_bit_away(mut head: [u8; HEADER_BYTES]) -> Option<Header> {
    (0..8 * HEADER_BYTES).find_map(|bit| {
        head[bit / 8] ^= 1 << (bit % 8);
        let header = Header::decode(&head).ok();
        head[bit / 8] ^= 1 << (bit % 8);
        header
    })
}

impl ContainerStore {
    /// Rewrites the header of a container if it is damaged and everything that belongs to the header is there. For a
    /// sealed container that is its catalog and footer, for another one its records. Durable on return. Returns whether
    /// there was something to write.
    pub fn repair_header(&self, container: ContainerId) -> Result<bool> {
        let shared = &self.shared;
        let Some(file) = shared.open_file(container)? else { return Ok(false) };
        let mut head = [0; HEADER_BYTES];
        let length = file.len()?;
        // Another container's header does not count as damaged.
        if length < HEADER_BYTES as u64 || file.read_at(0, &mut head).is_err() || Header::decode(&head).is_ok() {
            return Ok(false);
        }
        let is_open = shared.unsealed.contains(container);
        if is_open && shared.options.whole_files {
            return Ok(false); // it gets another one when it is sealed
        }
        let header = |created, merged| Header {
            digest_bytes: shared.options.digest_bytes() as u8,
            container,
            store: shared.options.store,
            epoch: shared.owners.epoch_of(container),
            created,
            merged,
        };
        // The header as it was, if one bit of it was flipped; otherwise what is known of it.
        let mut known: Vec<Header> = one_bit_away(head).into_iter().collect();
        if is_open {
            known.push(header(0, false));
        } else {
            let mut footer = [0; FOOTER_BYTES];
            let is_read = length >= (HEADER_BYTES + FOOTER_BYTES) as u64 && file.read_at(length - FOOTER_BYTES as u64, &mut footer).is_ok();
            let Some(footer) = is_read.then(|| Footer::decode(&footer).ok()).flatten() else { return Ok(false) };
            known.extend([false, true].map(|merged| header(footer.created, merged)));
        }
        let with = |header: &Header| -> Arc<dyn File> { Arc::new(WithHeader { file: file.clone(), header: header.encode() }) };
        let fits = |header: &Header| {
            let is_ours = (header.container, header.store) == (container, shared.options.store);
            is_ours && (is_open || shared.catalog_in(container, &with(header)).is_ok())
        };
        let fitting = known.into_iter().find(fits);
        let Some(header) = fitting else { return Ok(false) };
        shared.check_repairable()?;
        if !shared.rehearse_file(container, &with(&header)) {
            // The new header is not the one that parity was made of. The container gets new parity; the others of its
            // group keep what they can.
            let _nothing_goes = shared.merging.hold_files();
            shared.leave_parity([container].iter())?;
            shared.protection.sealed(container);
            let path = file::path(&shared.directory, container);
            if shared.options.whole_files {
                shared.rewrite(&path, &*with(&header)).map_err(StorageError::cannot_write)?;
            } else {
                let file = shared.ground.open(&path, Access::ReadWrite)?;
                // Within one sector, so it is written whole or not at all.
                file.write_at(0, &header.encode()).and_then(|()| file.sync()).map_err(StorageError::cannot_write)?;
            }
            shared.retire(std::iter::once(&container));
        }
        Ok(true)
    }
}

impl Shared {
    /// Replaces a file that cannot be changed by one with other bytes. Durable on return.
    fn rewrite(&self, path: &str, bytes: &dyn File) -> onefold_ground::Result<()> {
        const PIECE_BYTES: u64 = 4 << 20;
        let temporary = format!("{path}.new");
        let file = match self.ground.create(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.ground.remove(&temporary)?;
                self.ground.create(&temporary)?
            }
            created => created?,
        };
        let length = bytes.len()?;
        for start in (0..length).step_by(PIECE_BYTES as usize) {
            let mut piece = vec![0; PIECE_BYTES.min(length - start) as usize];
            bytes.read_at(start, &mut piece)?;
            file.write_at(start, &piece)?;
        }
        file.sync()?;
        self.ground.rename(&temporary, path)
    }

    /// Reads and checks header, footer and catalog of a sealed container.
    pub(crate) fn read_catalog(&self, container: ContainerId) -> Result<Catalog> {
        let file = self.file_for_reading(container)?;
        file.read_ahead(0, HEADER_BYTES as u64);
        self.catalog_in(container, &file)
    }

    /// Reads and checks header, footer and catalog of a sealed container from the bytes that its file has, or should
    /// have.
    pub(crate) fn catalog_in(&self, container: ContainerId, file: &dyn Bytes) -> Result<Catalog> {
        /// The catalog of a container of the usual size lies within these last bytes of the file: one read gets it.
        const TAIL_BYTES: u64 = 32 << 10;
        let damaged = |why: String| self.damaged(container, None, None, why);
        let length = file.length()?;
        if length < (HEADER_BYTES + FOOTER_BYTES) as u64 || length > u64::from(u32::MAX) {
            return Err(damaged(format!("the file has {length} bytes")));
        }
        let tail_start = length.saturating_sub(TAIL_BYTES);
        let tail = self.read_from(file, container, None, tail_start, (length - tail_start) as usize)?;
        let is_merged = self.header_in(container, file)?.merged;
        let footer = Footer::decode(&tail[tail.len() - FOOTER_BYTES..]).map_err(damaged)?;
        let (start, bytes) = (u64::from(footer.catalog_offset_bytes), footer.catalog_bytes as usize);
        if start < HEADER_BYTES as u64 || Footer::place(start + bytes as u64) + FOOTER_BYTES as u64 != length {
            return Err(damaged("the footer places the catalog outside the file".to_owned()));
        }
        let between = (length - FOOTER_BYTES as u64 - start - bytes as u64) as usize;
        if tail[tail.len() - FOOTER_BYTES - between..tail.len() - FOOTER_BYTES].iter().any(|byte| *byte != 0) {
            return Err(damaged("there are bytes between catalog and footer".to_owned()));
        }
        let read;
        let encoded = match start.checked_sub(tail_start) {
            Some(at) => &tail[at as usize..at as usize + bytes],
            None => {
                read = self.read_from(file, container, None, start, bytes)?;
                &read[..]
            }
        };
        if checksum(encoded) != footer.catalog_checksum {
            return Err(damaged("the checksum of the catalog is wrong".to_owned()));
        }
        let mut reader = Reader::new(encoded);
        let decode = if is_merged { Catalog::decode_merged } else { Catalog::decode };
        let catalog = decode(&mut reader, self.options.digest_bytes())
            .and_then(|catalog| reader.end().map(|()| catalog))
            .map_err(|error| damaged(format!("the catalog cannot be read: {error}")))?;
        if catalog.container != container {
            return Err(damaged(format!("the catalog belongs to container {}", catalog.container)));
        }
        if (catalog.frames.len(), catalog.slots.len()) != (footer.frames as usize, footer.slots as usize) {
            return Err(damaged("catalog and footer contradict each other".to_owned()));
        }
        if catalog.end_bytes() > start {
            return Err(damaged("a frame overlaps the catalog".to_owned()));
        }
        Ok(catalog)
    }

    pub(crate) fn check_header(&self, container: ContainerId) -> Result<Header> {
        self.header_in(container, &self.file_for_reading(container)?)
    }

    /// Reads and checks the header of a container.
    pub(crate) fn header_in(&self, container: ContainerId, file: &dyn Bytes) -> Result<Header> {
        let damaged = |why: String| self.damaged(container, None, None, why);
        let bytes = self.read_from(file, container, None, 0, HEADER_BYTES)?;
        let header = Header::decode(&bytes).map_err(damaged)?;
        if header.container != container {
            return Err(damaged(format!("the header belongs to container {}", header.container)));
        }
        if header.store != self.options.store || usize::from(header.digest_bytes) != self.options.digest_bytes() {
            return Err(damaged("the file belongs to another store".to_owned()));
        }
        Ok(header)
    }

    /// Reads bytes of a container from where they are. If they are not there, that is damage.
    pub(crate) fn read_from<'a>(
        &self,
        file: &'a dyn Bytes,
        container: ContainerId,
        frame: Option<u32>,
        offset: u64,
        length: usize,
    ) -> Result<Cow<'a, [u8]>> {
        self.profile
            .time(&STORAGE_READ, length as u64, || file.range(offset, length))
            .map_err(|error| self.read_error(container, frame, error))
    }
}
