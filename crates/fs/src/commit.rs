//! When what was changed is stored, and when it is durable.
//!
//! # A commit
//! 1. Content of files is written out: of all files, or of the one that is synced and of those that took the place of
//!    another.
//! 2. All changes of names and inodes are taken, as of one moment, and submitted in one transaction. A file whose
//!    content is not written out yet is stored with the length up to which it is. So after a crash no file has bytes
//!    that nobody wrote.
//! 3. The engine flushes.
//! 4. Blocks of files that were cut or removed are freed. A crash before leaves blocks that nobody sees; an entry of
//!    the removed file makes the next opening free them.
//!
//! A rename and whatever was synced before it are in one order: content that is synced is durable before the rename is.

use crate::error::{FsError, Result};
use crate::filesystem::{FILE_BITS, Filesystem};
use crate::keys;
use onefold_blocks::At;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    All,
    Of(u64),
}

/// The caller of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Anybody,
    /// The end of the filesystem.
    Close,
}

/// A file that became shorter: its blocks between these are to be freed.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The length that is stored.
    kept: u64,
    /// The end that it had.
    end: u64,
}

impl Filesystem {
    /// Makes everything durable that was changed before. After an error everything is as before, and a later call makes
    /// it durable.
    pub fn sync(&self) -> Result<()> {
        self.commit(Content::All, By::Anybody)
    }

    /// Makes a file durable: its content, its attributes and its names.
    pub fn sync_file(&self, number: u64) -> Result<()> {
        self.commit(Content::Of(number), By::Anybody)
    }

    fn commit(&self, content: Content, by: By) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        let files = self.state.lock().tree.dirty_files();
        let mut not_written = None;
        match content {
            // On a full disk, names are stored all the same: what is deleted makes room. Lengths stay as stored.
            Content::All => not_written = self.space.write_out_all().err(),
            Content::Of(number) => {
                for file in files.iter().filter(|file| file.number == number || file.replaces) {
                    self.space.write_out_range(At::new(file.number << FILE_BITS, 0), file.size)?;
                }
                // Its content may have changed without its inode.
                if !files.iter().any(|file| file.number == number) {
                    let size = self.state.lock().tree.inode(number).map_or(0, |cached| cached.inode.size);
                    self.space.write_out_range(At::new(number << FILE_BITS, 0), size)?;
                }
            }
        }
        let _alone = self.committing.lock();
        self.check_may_commit(by)?;
        let (changes, cut, dead) = {
            let mut state = self.state.lock();
            for file in files {
                let is_written = match content {
                    Content::All => not_written.is_none(),
                    Content::Of(number) => number == file.number || file.replaces,
                };
                if is_written {
                    state.tree.is_stored(file);
                }
            }
            // A rename that came after the list was made. Its place was another file's: after a crash it must not be
            // empty.
            for file in state.tree.unstored_replacements() {
                match self.space.write_out_range(At::new(file.number << FILE_BITS, 0), file.size) {
                    Ok(()) => state.tree.is_stored(file),
                    Err(error) => not_written = Some(error),
                }
            }
            state.note_itself();
            let changes = state.tree.take();
            // What this commit stores as the length of a file stays, whatever becomes of the file meanwhile.
            let mut cut = HashMap::new();
            for (number, end) in std::mem::take(&mut state.cut) {
                let kept = state.tree.inode(number).map_or(0, |cached| cached.inode.size.min(cached.stored_size));
                cut.insert(number, Cut { kept, end });
            }
            (changes, cut, std::mem::take(&mut state.dead))
        };
        let submitted = match &changes {
            None => Ok(()),
            Some(changes) => self.space.submit_entries(changes.iter().map(|(key, value)| (key.clone(), value.clone())).collect()),
        };
        self.state.lock().tree.submitted(submitted.is_ok());
        let freed = submitted.map_err(FsError::from).and_then(|()| Ok(self.space.engine().flush()?)).and_then(|()| self.free(&cut, &dead));
        if freed.is_err() {
            // The next commit frees them: to free blocks twice harms nobody.
            let mut state = self.state.lock();
            for (file, cut) in cut {
                let known = state.cut.entry(file).or_default();
                *known = (*known).max(cut.end);
            }
            state.dead.extend(dead);
        }
        freed?;
        not_written.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Errors: it is closed. A later open may have committed; an older commit must not follow it. The caller
    /// holds the lock of commits.
    fn check_may_commit(&self, by: By) -> Result<()> {
        let is_closed = self.is_closed.load(Ordering::Acquire) && by != By::Close;
        if is_closed || self.is_ended.load(Ordering::Acquire) { Err(FsError::Closed) } else { Ok(()) }
    }

    /// Frees the blocks behind the ends of files, and of files that are gone.
    fn free(&self, cut: &HashMap<u64, Cut>, dead: &[u64]) -> Result<()> {
        for (number, Cut { kept, end }) in cut {
            let lock = self.file(*number);
            let _file = lock.write();
            // It may have grown again. What lies behind its end is nobody's.
            let Ok(size) = self.state.lock().tree.inode(*number).map(|cached| cached.inode.size) else { continue };
            let from = size.max(*kept);
            if from < *end {
                self.space.discard(At::new(number << FILE_BITS, from), end - from)?;
            }
        }
        for number in dead {
            let lock = self.file(*number);
            let _file = lock.write();
            self.space.discard(At::new(number << FILE_BITS, 0), self.max_file_bytes())?;
            self.state.lock().tree.put(keys::orphan(*number), None);
        }
        Ok(())
    }

    /// Starts the thread that commits. It ends with the filesystem, or with [`close`](Filesystem::close).
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        let (weak, wanted) = (Arc::downgrade(self), Arc::clone(&self.wanted));
        let interval = self.options.commit_interval;
        std::thread::Builder::new().name("commits".to_owned()).spawn(move || {
            loop {
                {
                    let mut wanted_now = wanted.0.lock();
                    if !wanted_now.commit && !wanted_now.stop {
                        wanted.1.wait_for(&mut wanted_now, interval);
                    }
                    wanted_now.commit = false;
                    if wanted_now.stop {
                        return;
                    }
                }
                let Some(filesystem) = weak.upgrade() else { return };
                if let Err(error) = filesystem.sync() {
                    tracing::warn!(%error, "changes of a filesystem are not durable yet");
                }
            }
        })?;
        Ok(())
    }

    /// Makes everything durable and keeps it from being changed by other commits while `work` looks at what is stored.
    pub fn at_rest<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.sync()?;
        let _alone = self.committing.lock();
        if !self.is_read_only {
            self.check_may_commit(By::Anybody)?;
        }
        work()
    }

    /// Makes everything durable, and ends the thread that commits. Nothing can be changed or committed afterwards, but
    /// after an error this may be repeated.
    pub fn close(&self) -> Result<()> {
        if self.is_ended.load(Ordering::Acquire) {
            return if self.is_read_only || self.state.lock().is_stored() { Ok(()) } else { Err(FsError::Closed) };
        }
        {
            // Whoever changes something holds this, and asks.
            let _state = self.state.lock();
            self.is_closed.store(true, Ordering::Release);
        }
        {
            let mut wanted = self.wanted.0.lock();
            wanted.stop = true;
            self.wanted.1.notify_all();
        }
        if !self.is_read_only {
            // Nobody has them open any more.
            let mut state = self.state.lock();
            for number in std::mem::take(&mut state.unnamed) {
                // A damaged one must not keep the others from being stored. The next opening tries again.
                if let Err(error) = state.bury(number) {
                    tracing::warn!(%error, "a file without names is not removed");
                }
            }
        }
        self.commit(Content::All, By::Close)?;
        // Blocks that the first one freed.
        self.commit(Content::All, By::Close)
    }

    /// Closes it for good. Whatever is not durable then is lost.
    pub(crate) fn end(&self) -> Result<()> {
        let closed = self.close();
        // After a commit that is under way.
        let _alone = self.committing.lock();
        self.is_ended.store(true, Ordering::Release);
        closed
    }
}
