//! Finds out which of many origins can have chunks, in few requests: for stores whose files are in a bucket.
//!
//! Numbers of containers have gaps: each opening leaves out a thousand, of which only those behind an owner that died
//! are noted as [void](crate::containers::void), and merged containers go. A question for a file that is not there
//! takes several requests. A list of a thousand names takes one.
//!
//! # The safe direction of an error
//! A list is a hint (rule 4 of decision 0068): it may lack a file that was just put. So an origin that is left out here
//! must be *left alone*. None of its chunks may be removed, and nobody may conclude that it has none, or that all of
//! them have marks. The sweep skips such an origin and keeps it on its list, so the next one looks at it again. A name
//! that a list has too much costs requests and nothing else.

use crate::containers::file;
use crate::containers::store::{ContainerStore, Shared};
use crate::{ContainerId, ContainerSet, Origin, Result};
use onefold_ground::{Bucket, list_after};

/// Names on a page of a list. Two numbers that are further apart are not looked for in one list.
const PAGE: u32 = 1000;

impl ContainerStore {
    /// Returns those of these origins, ascending, that can have chunks. Leaves out what has neither a file nor a
    /// forward as far as lists of the bucket tell. Leave alone what is missing here. A store in a directory leaves out
    /// nothing: a look at a file costs little there.
    pub fn listed(&self, origins: Vec<Origin>) -> Result<Vec<Origin>> {
        let shared = &self.shared;
        let Some(bucket) = shared.ground.bucket() else { return Ok(origins) };
        let mut found = ContainerSet::default();
        found.extend(shared.all_rehearsed());
        let mut unknown = Vec::new();
        for container in origins.iter().map(|origin| ContainerId::from_bits(origin.bits())) {
            if shared.unsealed.contains(container) || shared.forwards.is_logged(container) || shared.placement.is_own(container) {
                found.insert(container);
            } else {
                unknown.push(container);
            }
        }
        let is_near = |one: &ContainerId, next: &ContainerId| {
            one.partition() == next.partition() && next.number().saturating_sub(one.number()) < PAGE
        };
        for run in unknown.chunk_by(is_near) {
            match run {
                // Asking for it costs about as much as a list.
                [one] => drop(found.insert(*one)),
                _ => shared.add_listed(&*bucket, run[0], run[run.len() - 1], &mut found)?,
            }
        }
        Ok(origins.into_iter().filter(|origin| found.contains(ContainerId::from_bits(origin.bits()))).collect())
    }
}

impl Shared {
    /// Adds the containers from `first` to `last`, of one partition, that have a file or a forward in the bucket.
    fn add_listed(&self, bucket: &dyn Bucket, first: ContainerId, last: ContainerId, found: &mut ContainerSet) -> Result<()> {
        let partition = first.partition();
        let folder = format!("{}/", file::partition_directory(&self.directory, partition));
        let before = ContainerId::new(partition, first.number().saturating_sub(1));
        // Behind the forward of the last one, as `/` comes after `.`.
        let end = format!("{}/", file::path(&self.directory, last));
        list_after(bucket, &folder, file::path(&self.directory, before), &mut |path, _| {
            let name = path.rsplit('/').next().unwrap_or_default();
            let number = file::number(name).or_else(|| file::forward_number(name));
            found.extend(number.map(|number| ContainerId::new(partition, number)));
            path < &*end
        })?;
        Ok(())
    }
}
