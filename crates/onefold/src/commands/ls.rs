//! `onefold ls`.

use super::catalog_path;
use super::chosen::chosen;
use crate::cli::Ls;
use crate::failure::{Exit, Result};
use crate::output::put_name;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{local_time, printable, utc_time};
use onefold_catalog::{Backup, Catalog, CatalogError, Content, Entry, TreeWalk, components};
use serde_json::{Map, Value};

impl StoreCommand for Ls {
    store_command!("ls", far, reads);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Lists what is in a backup, or in a directory of it.
fn run(options: &Ls, session: &Session<'_>) -> Result<Exit> {
    let catalog = session.catalog();
    // A backup that is forgotten meanwhile is read to its end: none of its chunks is removed before.
    let _in_flight = session.store.engine.in_flight();
    let backup = chosen(&catalog, &options.backup, &|text| session.advise(text))?;
    catalog.hold(&[&backup])?;
    session.audit_reads([&backup]);
    let starts = match &options.path {
        Some(path) => {
            let path = catalog_path(path);
            vec![(catalog.lookup(&backup, &path)?, path)]
        }
        None => backed_up(&catalog, &backup)?,
    };
    let mut output = session.output();
    let mut print = |path: &[u8], entry: &Entry| match (options.format.json, options.long) {
        (true, _) => output.json(&Value::Object(to_json(path, entry))),
        (false, true) => output.line(to_line(path, entry)),
        (false, false) => {
            let slash = if matches!(entry.content, Content::Directory { .. }) { "/" } else { "" };
            output.line(format_args!("{}{slash}", printable(&absolute(path))))
        }
    };
    let mut damaged = 0u64;
    for (found, path) in starts {
        let recipe = match &found {
            None => &backup.root,
            Some(Entry { content: Content::Directory { recipe }, .. }) => recipe,
            Some(entry) => {
                print(&path, entry)?;
                continue;
            }
        };
        let mut walk = TreeWalk::new(&session.store.engine, &path, recipe);
        while let Some(item) = walk.next() {
            if !options.recursive {
                walk.skip_directory();
            }
            match item.entry {
                Ok(entry) => print(&item.path, &entry)?,
                Err(error) => {
                    session.note(format_args!("onefold: /{}: {error}", printable(&item.path)));
                    damaged += 1;
                }
            }
        }
    }
    output.finish()?;
    Ok(if damaged > 0 { Exit::Partial } else { Exit::Done })
}

/// Returns the paths that were backed up, each once. If the backup has none of its paths, returns the root.
fn backed_up(catalog: &Catalog, backup: &Backup) -> Result<Vec<(Option<Entry>, Vec<u8>)>> {
    let mut starts: Vec<(Option<Entry>, Vec<u8>)> = Vec::new();
    for path in &backup.paths {
        let path = components(path).collect::<Vec<_>>().join(&b'/');
        let is_below = |above: &Vec<u8>| path == *above || above.is_empty() || path.starts_with(&[above, &b"/"[..]].concat());
        if starts.iter().any(|(_, above)| is_below(above)) {
            continue;
        }
        match catalog.lookup(backup, &path) {
            Ok(found) => starts.push((found, path)),
            // The path could not be read when the backup was made.
            Err(CatalogError::PathNotFound { .. } | CatalogError::NotADirectory { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if starts.is_empty() {
        starts.push((None, Vec::new()));
    }
    Ok(starts)
}

pub(super) fn absolute(path: &[u8]) -> Vec<u8> {
    [b"/", path].concat()
}

/// Returns the kind in one word without spaces, and its letter in `ls -l`.
pub(super) fn kind(content: &Content) -> (&'static str, char) {
    match content {
        Content::File { .. } => ("file", '-'),
        Content::Directory { .. } => ("directory", 'd'),
        Content::Symlink { .. } => ("symlink", 'l'),
        Content::CharacterDevice { .. } => ("character", 'c'),
        Content::BlockDevice { .. } => ("block", 'b'),
        Content::Fifo => ("fifo", 'p'),
        Content::Socket => ("socket", 's'),
        Content::HardLink { .. } => ("hardlink", 'h'),
    }
}

fn to_line(path: &[u8], entry: &Entry) -> String {
    let attributes = &entry.attributes;
    let (size, target) = match &entry.content {
        Content::File { size_bytes, .. } => (size_bytes.to_string(), String::new()),
        Content::Symlink { target } => ("-".to_owned(), format!(" -> {}", printable(target))),
        Content::HardLink { path } => ("-".to_owned(), format!(" = {}", printable(&absolute(path)))),
        Content::CharacterDevice { major, minor } | Content::BlockDevice { major, minor } => (format!("{major},{minor}"), String::new()),
        Content::Directory { .. } | Content::Fifo | Content::Socket => ("-".to_owned(), String::new()),
    };
    format!(
        "{}{} {:>3} {:>6} {:>6} {size:>12} {} {}{target}",
        kind(&entry.content).1,
        permissions(attributes.mode),
        attributes.links,
        attributes.uid,
        attributes.gid,
        local_time(attributes.mtime_ns),
        printable(&absolute(path)),
    )
}

/// Returns permission bits as `ls -l` shows them.
pub(super) fn permissions(mode: u16) -> String {
    let mut text: Vec<char> = (0..9).map(|bit| if mode & (0o400 >> bit) != 0 { ['r', 'w', 'x'][bit % 3] } else { '-' }).collect();
    for (bit, place, letter) in [(0o4000, 2, 's'), (0o2000, 5, 's'), (0o1000, 8, 't')] {
        if mode & bit != 0 {
            text[place] = if text[place] == 'x' { letter } else { letter.to_ascii_uppercase() };
        }
    }
    text.into_iter().collect()
}

pub(super) fn to_json(path: &[u8], entry: &Entry) -> Map<String, Value> {
    let attributes = &entry.attributes;
    let mut object = Map::new();
    put_name(&mut object, "path", &absolute(path));
    object.insert("type".to_owned(), kind(&entry.content).0.into());
    match &entry.content {
        Content::File { size_bytes, .. } => {
            object.insert("size".to_owned(), (*size_bytes).into());
        }
        Content::Symlink { target } => put_name(&mut object, "target", target),
        Content::HardLink { path } => put_name(&mut object, "target", &absolute(path)),
        Content::CharacterDevice { major, minor } | Content::BlockDevice { major, minor } => {
            object.insert("major".to_owned(), (*major).into());
            object.insert("minor".to_owned(), (*minor).into());
        }
        Content::Directory { .. } | Content::Fifo | Content::Socket => {}
    }
    object.insert("mode".to_owned(), format!("{:04o}", attributes.mode).into());
    object.insert("uid".to_owned(), attributes.uid.into());
    object.insert("gid".to_owned(), attributes.gid.into());
    object.insert("mtime".to_owned(), utc_time(attributes.mtime_ns).into());
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_ls_does() {
        for (mode, text) in [(0o644, "rw-r--r--"), (0o4755, "rwsr-xr-x"), (0o1777, "rwxrwxrwt"), (0o2644, "rw-r-Sr--"), (0, "---------")] {
            assert_eq!(permissions(mode), text);
        }
    }
}
