//! What the bucket says of a cluster: the newest table, and the names of its nodes.

use crate::Result;
use crate::record::Records;
use onefold_cluster::{NodeNumber, Table, Tables};
use onefold_ground::Bucket;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the bucket says of a cluster.
#[derive(Clone, Debug)]
pub struct Overview {
    /// The newest table.
    pub table: Table,
    /// The names of the nodes that take part, as far as they have said them.
    pub names: BTreeMap<NodeNumber, String>,
}

impl Overview {
    /// Reads it. It asks nobody but the bucket, so it says what a table says: a node that was just lost is still there,
    /// until the others have noticed. `None`: the store has never been a cluster's.
    ///
    /// Errors: the bucket cannot be read, or an object is damaged.
    pub fn read(bucket: &Arc<dyn Bucket>, store: [u8; 16]) -> Result<Option<Overview>> {
        let Some(table) = Tables::new(bucket.clone(), store).newest(0)? else { return Ok(None) };
        let records = Records::new(bucket.clone(), store);
        let mut names = BTreeMap::new();
        for present in &table.nodes {
            if let Some(record) = records.get(present.node)? {
                names.insert(present.node, record.name);
            }
        }
        Ok(Some(Overview { table, names }))
    }
}
