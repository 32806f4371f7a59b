//! Object storage for stores (decision 0068).
//!
//! * [`Location`] and [`open`]: buckets by their URL, with credentials from the environment or Amazon's files.
//! * [`RequestBucket`]: a bucket over a client of object storage. It retries, and looks up what became of a put.
//! * [`check`]: whether a service keeps its promises.
//! * [`BucketGround`]: a ground whose containers and marks are objects in a bucket. All other files are local.
//!
//! For tests:
//! * [`MemoryBucket`]: a bucket in memory that fails on demand, for crash tests.
//! * [`faults`]: object storage that loses requests and answers, below the retries.
//! * [`gateway`]: a real S3 service on loopback.
//!
//! This crate must never know what is in an object.

mod check;
mod connection;
mod credentials;
mod error;
pub mod faults;
pub mod gateway;
mod ground;
mod location;
mod memory;
mod requests;

pub use check::check;
pub use ground::{BucketGround, CACHE_DIRECTORY, CacheOptions, KEPT_BYTES, is_in_bucket};
pub use location::{BucketOptions, Location, LocationError, Scheme, is_location, open};
pub use memory::{Failure, MemoryBucket};
pub use requests::{Patience, RequestBucket, SLOWEST_BYTES_PER_S};
