//! Whether a service keeps its promises. Some that speak like S3 overlook the conditions of a put: a store there would
//! be lost as soon as two programs open it.

use crate::error::failed_because;
use onefold_ground::{Bucket, Put, Result};
use std::io::ErrorKind;

/// Checks what a store needs of a bucket with the object `name`, and deletes that. Call once, before a store is
/// created. `name` must be new: nobody else may use it. Errors: what the service does wrong.
pub fn check(bucket: &dyn Bucket, name: &str) -> Result<()> {
    let checked = check_with(bucket, name);
    let deleted = bucket.delete(&[name.to_owned()]);
    checked.and(deleted)?;
    require(bucket, name, bucket.length(name)?.is_none(), "a deleted object is still there")
}

fn check_with(bucket: &dyn Bucket, name: &str) -> Result<()> {
    const FIRST: &[u8] = b"0123456789";
    const SECOND: &[u8] = b"another content";
    let require = |holds: bool, why: &str| require(bucket, name, holds, why);
    require(bucket.put_new(name, FIRST)? == Put::Done, "the name is taken")?;
    require(bucket.put_new(name, SECOND)? == Put::Taken, "it replaces objects although a put says `If-None-Match: *`")?;
    require(bucket.get(name, u64::MAX)? == FIRST, "a refused put changed an object")?;
    require(bucket.get_range(name, 3, 4)? == b"3456", "it does not read ranges")?;
    require(bucket.get_end(name, 3)? == (b"789".to_vec(), 10), "it does not read the end of an object")?;
    require(bucket.replace(name, SECOND, FIRST)? == Put::Done, "a replacement by the same content fails")?;
    require(bucket.replace(name, FIRST, SECOND)? == Put::Done, "it does not replace an object with `If-Match`")?;
    require(bucket.get(name, u64::MAX)? == SECOND, "a replacement did not last")?;
    let listed = bucket.list(name, "")?;
    require(listed.objects.iter().any(|(listed, length)| listed == name && *length == 15), "lists lack an object")
}

fn require(bucket: &dyn Bucket, name: &str, holds: bool, why: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(failed_because("use", &bucket.describe(name), ErrorKind::Unsupported, format!("this service is no place for a store: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryBucket;
    use onefold_ground::{Listing, Requests};

    /// Overlooks the conditions of a put.
    #[derive(Debug)]
    struct Careless(MemoryBucket);

    impl Bucket for Careless {
        fn put_new(&self, name: &str, content: &[u8]) -> Result<Put> {
            self.0.put_over(name, content).map(|()| Put::Done)
        }
        fn put_over(&self, name: &str, content: &[u8]) -> Result<()> {
            self.0.put_over(name, content)
        }
        fn replace(&self, name: &str, _old: &[u8], new: &[u8]) -> Result<Put> {
            self.put_new(name, new)
        }
        fn get(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>> {
            self.0.get(name, limit_bytes)
        }
        fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
            self.0.get_range(name, offset, length)
        }
        fn get_end(&self, name: &str, length: usize) -> Result<(Vec<u8>, u64)> {
            self.0.get_end(name, length)
        }
        fn length(&self, name: &str) -> Result<Option<u64>> {
            self.0.length(name)
        }
        fn list(&self, prefix: &str, after: &str) -> Result<Listing> {
            self.0.list(prefix, after)
        }
        fn delete(&self, names: &[String]) -> Result<()> {
            self.0.delete(names)
        }
        fn describe(&self, name: &str) -> String {
            self.0.describe(name)
        }
        fn requests(&self) -> Requests {
            self.0.requests()
        }
    }

    #[test]
    fn a_service_that_overlooks_conditions_is_refused_and_nothing_stays() {
        let bucket = MemoryBucket::new();
        check(&bucket, "check").unwrap();
        let error = check(&Careless(bucket.clone()), "check").unwrap_err();
        assert!(error.to_string().contains("If-None-Match"), "{error}");
        assert!(bucket.names().is_empty());
    }
}
