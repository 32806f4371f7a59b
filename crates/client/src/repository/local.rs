//! A store that is open in this process.

use super::{BATCHES_AHEAD, Comparable, Compared, Contents, Earlier, Finished, Listing, Making, NewFile, Reading, Repository, Tree};
use crate::Result;
use crate::options::Parent;
use crate::state::State;
use crate::write::BATCH_FILES;
use onefold_catalog::{
    Attributes, Backup, Catalog, Chunks, Comparison, Content, ContentWriter, Details, DirectoryReader, Entry, Growth, SmallFile, TreeWriter,
};
use onefold_engine::Recipe;
use onefold_ground::raise_open_file_limit;
use std::path::Path;
use std::sync::Arc;

/// Batches of a restore from a bucket on their way to its threads: at most 2 GiB, some 16 containers if they compress
/// to a quarter. These are fetched meanwhile, and the writers take what has come. Each file has its directory open, so
/// with 65,536 open files there are half as many batches.
const BUCKET_BATCHES_AHEAD: usize = 512;

impl Repository for Catalog {
    fn compare(&self, wanted: &Comparable<'_>) -> Result<Box<dyn Compared + '_>> {
        let is_earlier = |backup: &Backup| match wanted.parent {
            // It may have been removed since the caller found it.
            Parent::This(parent) => backup.id == *parent,
            Parent::Newest => backup.name == wanted.name && backup.host == wanted.host && backup.paths == wanted.paths,
            Parent::None => false,
        };
        let comparison = Arc::new(Comparison::find(self, is_earlier)?);
        Ok(Box::new(Local { catalog: self, comparison }))
    }

    fn read(&self, backup: &Backup) -> Result<Reading> {
        let guard = self.engine().in_flight();
        let chunks = self.engine().clone();
        let is_in_bucket = chunks.ground().bucket().is_some();
        let batches_ahead = if is_in_bucket {
            let open_files = usize::try_from(raise_open_file_limit()).unwrap_or(usize::MAX);
            (open_files / 2 / BATCH_FILES).clamp(BATCHES_AHEAD, BUCKET_BATCHES_AHEAD)
        } else {
            BATCHES_AHEAD
        };
        Ok(Reading { readers: chunks.readers(), chunks, batches_ahead, backup: backup.clone(), newer_partial: None, _guard: Some(guard) })
    }
}

struct Local<'a> {
    catalog: &'a Catalog,
    comparison: Arc<Comparison>,
}

impl Local<'_> {
    fn list(&self, recipe: &Recipe) -> Listing {
        Box::new(DirectoryReader::new(self.catalog.engine(), recipe))
    }
}

impl Compared for Local<'_> {
    fn earlier(&self) -> Option<&Backup> {
        self.comparison.earlier.as_ref()
    }

    fn damage(&self) -> Option<String> {
        self.comparison.damage.as_ref().map(ToString::to_string)
    }

    fn root(&self) -> Option<Listing> {
        self.earlier().map(|backup| self.list(&backup.root))
    }

    fn directory(&self, entry: &Entry) -> Option<Listing> {
        match &entry.content {
            Content::Directory { recipe } => Some(self.list(recipe)),
            _ => None,
        }
    }

    fn own_directory(&self) -> Option<&Path> {
        None
    }

    fn is_sound(&self, entry: &Entry) -> bool {
        entry.is_sound(self.catalog.engine())
    }

    fn recalls(&self) -> bool {
        self.catalog.engine().recalls()
    }

    fn begin(&self) -> Result<Box<dyn Making + '_>> {
        let making = onefold_catalog::Making::begin(self.catalog, &self.comparison)?.with_named_files()?;
        Ok(Box::new(LocalMaking(Arc::new(making))))
    }
}

struct LocalMaking(Arc<onefold_catalog::Making>);

impl Making for LocalMaking {
    fn started_ns(&self) -> i64 {
        self.0.started_ns()
    }

    fn contents(&self) -> Result<Box<dyn Contents + Send + '_>> {
        Ok(Box::new(self.0.contents()))
    }

    fn tree(&self) -> Result<Box<dyn Tree + '_>> {
        Ok(Box::new(self.0.tree()))
    }

    fn commit(&self, root: Recipe, details: Details) -> Result<Backup> {
        Ok(self.0.commit(root, details, Growth::Measured)?)
    }
}

impl Contents for ContentWriter {
    fn added_bytes(&self) -> u64 {
        ContentWriter::added_bytes(self)
    }

    fn small(&mut self, files: &[(NewFile<'_>, &[u8])]) -> Result<Vec<SmallFile>> {
        let earlier: Vec<&Recipe> = files.iter().filter_map(|(file, _)| file.earlier).collect();
        let files: Vec<&[u8]> = files.iter().map(|(_, bytes)| *bytes).collect();
        Ok(ContentWriter::small(self, &files, &earlier)?)
    }

    fn begin(&mut self, file: NewFile<'_>) -> Result<()> {
        ContentWriter::begin(self, file.earlier);
        Ok(())
    }

    fn write(&mut self, data: &[u8], last: bool) -> Result<usize> {
        Ok(ContentWriter::write(self, data, last)?)
    }

    fn zeros(&mut self, length: u64) -> Result<()> {
        Ok(ContentWriter::zeros(self, length)?)
    }

    fn finish(&mut self) -> Result<Recipe> {
        Ok(ContentWriter::finish(self)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Tree for TreeWriter {
    fn enter(&mut self, name: Vec<u8>, attributes: Attributes, earlier: Option<Earlier>) -> Result<()> {
        TreeWriter::enter(self, name, attributes, earlier.map(|earlier| earlier.entry));
        Ok(())
    }

    fn keep(&mut self, earlier: Earlier) -> Result<()> {
        Ok(self.push(earlier.entry, true)?)
    }

    fn put(&mut self, entry: Entry, _ticket: Option<u64>, earlier: Option<Earlier>) -> Result<Option<State>> {
        let earlier = earlier.map(|earlier| earlier.entry);
        let state = State::between(earlier.as_ref(), &entry);
        let is_same = earlier.as_ref() == Some(&entry);
        self.push(entry, is_same)?;
        Ok(Some(state))
    }

    fn skip(&mut self) {
        TreeWriter::skip(self);
    }

    fn leave(&mut self, has_all: bool) -> Result<bool> {
        Ok(TreeWriter::leave(self, has_all)?)
    }

    fn finish(self: Box<Self>) -> Result<Finished> {
        Ok(Finished { root: TreeWriter::finish(*self)?, ..Finished::default() })
    }
}
