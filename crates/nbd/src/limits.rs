//! The shares of memory that requests take before they allocate it.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The memory of one connection.
///
/// A request takes its bytes from the connection's own limit, and then either from the connection's reserve or from
/// what all connections share, whichever has them first. The reserve belongs to this connection alone, so others cannot
/// use it up.
pub(crate) struct Shares {
    own: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    reserve_bytes: usize,
    shared: Arc<Semaphore>,
}

/// Bytes taken. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct Hold {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Shares {
    pub fn new(own_bytes: usize, reserve_bytes: usize, shared: Arc<Semaphore>) -> Shares {
        Shares { own: Arc::new(Semaphore::new(own_bytes)), reserve: Arc::new(Semaphore::new(reserve_bytes)), reserve_bytes, shared }
    }

    /// Waits for `bytes`: at most `MAX_PAYLOAD_BYTES`, which no limit is below.
    pub async fn take(&self, bytes: u32) -> Hold {
        if bytes == 0 {
            return Hold { _permits: [None, None] };
        }
        let own = take(&self.own, bytes).await;
        let second = if bytes as usize <= self.reserve_bytes {
            tokio::select! {
                biased;
                permit = take(&self.reserve, bytes) => permit,
                permit = take(&self.shared, bytes) => permit,
            }
        } else {
            take(&self.shared, bytes).await
        };
        Hold { _permits: [own, second] }
    }
}

/// Returns `None` only if the semaphore was closed, which never happens. The request would then be unlimited, not
/// stuck.
async fn take(semaphore: &Arc<Semaphore>, bytes: u32) -> Option<OwnedSemaphorePermit> {
    Arc::clone(semaphore).acquire_many_owned(bytes).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn small_requests_get_on_while_others_hold_all_that_is_shared() {
        let shared = Arc::new(Semaphore::new(1000));
        let greedy = Shares::new(1000, 100, Arc::clone(&shared));
        let modest = Shares::new(1000, 100, Arc::clone(&shared));
        let all = greedy.take(1000).await;
        let small = timeout(SHORT, modest.take(100)).await.expect("the reserve is there");
        assert!(timeout(SHORT, modest.take(1)).await.is_err(), "the reserve is used and the shared bytes are too");
        assert!(timeout(SHORT, modest.take(500)).await.is_err());
        drop(small);
        assert!(timeout(SHORT, modest.take(1)).await.is_ok());
        drop(all);
        assert!(timeout(SHORT, modest.take(500)).await.is_ok());
    }

    #[tokio::test]
    async fn a_connection_cannot_take_more_than_its_own_bound() {
        let shares = Shares::new(300, 100, Arc::new(Semaphore::new(1000)));
        let first = shares.take(200).await;
        assert!(timeout(SHORT, shares.take(200)).await.is_err());
        drop(first);
        assert!(timeout(SHORT, shares.take(200)).await.is_ok());
    }
}
