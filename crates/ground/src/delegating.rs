//! Grounds and files that wrap another one. An `impl` lists only the calls that it changes. The rest go to the wrapped
//! one, so no wrapper can forget to forward a call.
//!
//! If you override `read_at`, override `try_read_at` too: it is another way to the same bytes.

use crate::{Access, Bucket, DirectoryEntry, Exposure, File, Ground, Holder, Identity, LockError, LockGuard, Result, Space};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

macro_rules! delegating {
    (
        $(#[$what:meta])* trait $name:ident over $base:ident;
        $(fn $method:ident(&self $(, $argument:ident: $kind:ty)*) $(-> $out:ty)?;)*
    ) => {
        $(#[$what])*
        pub trait $name: Send + Sync + Debug {
            /// Returns the wrapped one.
            fn below(&self) -> &dyn $base;
            $(
                #[doc = concat!("As [`", stringify!($base), "::", stringify!($method), "`].")]
                fn $method(&self $(, $argument: $kind)*) $(-> $out)? {
                    self.below().$method($($argument),*)
                }
            )*
        }

        impl<T: $name> $base for T {
            $(fn $method(&self $(, $argument: $kind)*) $(-> $out)? {
                $name::$method(self $(, $argument)*)
            })*
        }
    };
}

delegating! {
    /// A [`Ground`] that wraps another one. Name this trait by its path in the `impl`: if a file imports both traits,
    /// calls are ambiguous.
    trait DelegatingGround over Ground;
    fn create(&self, path: &str) -> Result<Arc<dyn File>>;
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>>;
    fn will_read(&self, path: &str);
    fn forget(&self, path: &str);
    fn is_coming(&self, path: &str) -> bool;
    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>>;
    fn open_device(&self, path: &str, access: Access) -> Result<Option<Arc<dyn File>>>;
    fn link_device(&self, path: &str, device: &Path) -> Result<()>;
    fn link_directory(&self, path: &str, directory: &Path) -> Result<()>;
    fn unlink_directory(&self, path: &str) -> Result<()>;
    fn linked_directory(&self, path: &str) -> Result<Option<PathBuf>>;
    fn device_holds(&self, path: &str, offset: u64, data: &[u8]) -> Result<bool>;
    fn remove(&self, path: &str) -> Result<()>;
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>>;
    fn create_directory(&self, directory: &str) -> Result<()>;
    fn sync_directory(&self, directory: &str) -> Result<()>;
    fn exists(&self, path: &str) -> Result<bool>;
    fn space(&self) -> Result<Space>;
    fn space_in(&self, directory: &str) -> Result<Space>;
    fn lock(&self, path: &str, exclusive: bool, holder: &Holder) -> std::result::Result<LockGuard, LockError>;
    fn identity(&self, path: &str) -> Result<Option<Identity>>;
    fn describe(&self, path: &str) -> String;
    fn exposure(&self) -> Result<Option<Exposure>>;
    fn bucket(&self) -> Option<Arc<dyn Bucket>>;
}

delegating! {
    /// A [`File`] that wraps another one. Name this trait by its path in the `impl`: if a file imports both traits,
    /// calls are ambiguous.
    trait DelegatingFile over File;
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool>;
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    fn pretend_write(&self, offset: u64, length: u64) -> Result<()>;
    fn len(&self) -> Result<u64>;
    fn allocated_bytes(&self) -> Result<u64>;
    fn set_len(&self, length: u64) -> Result<()>;
    fn sync(&self) -> Result<()>;
    fn allocate(&self, offset: u64, length: u64) -> Result<()>;
    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()>;
    fn punch_hole(&self, offset: u64, length: u64) -> Result<()>;
    fn start_writeback(&self, offset: u64, length: u64);
    fn read_ahead(&self, offset: u64, length: u64);
    fn drop_cached(&self, offset: u64, length: u64);
}
