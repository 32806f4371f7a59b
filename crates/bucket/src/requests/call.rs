//! One call: its tries, and when it gives up.

use crate::error::failed_because;
use crate::requests::errors::{self, Verdict};
use crate::requests::{Patience, Shared};
use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use onefold_ground::{GroundError, Result};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// After this time without success, people are told.
const TOLD_AFTER: Duration = Duration::from_secs(4);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the machine's own service for credentials is asked: where it is missing, nobody answers.
const BRIEFLY: Duration = Duration::from_secs(3);

pub(super) struct Call {
    pub(super) shared: Arc<Shared>,
    pub(super) operation: &'static str,
    pub(super) name: String,
    pub(super) path: Path,
    patience: Patience,
    began: Instant,
    failures: u32,
}

impl Call {
    /// Begins a call that moves `bytes`.
    pub(super) fn new(shared: Arc<Shared>, path: Path, operation: &'static str, name: &str, bytes: u64) -> Call {
        let patience = shared.patience.for_bytes(bytes);
        Call { operation, name: name.to_owned(), path, patience, began: Instant::now(), failures: 0, shared }
    }

    pub(super) fn count(&self, counter: impl FnOnce(&super::Counters) -> &AtomicU64, count: u64) {
        counter(&self.shared.counters).fetch_add(count, Relaxed);
    }

    /// Waits for a request, but not for ever.
    pub(super) async fn within<T>(&self, request: impl Future<Output = object_store::Result<T>>) -> object_store::Result<T> {
        self.within_for(0, request).await
    }

    /// Waits for a request that brings `bytes` back.
    pub(super) async fn within_for<T>(
        &self,
        bytes: u64,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        let limit = self.patience.for_bytes(bytes).request_timeout;
        match tokio::time::timeout(limit, request).await {
            Ok(done) => done,
            Err(_) => Err(interrupted(HttpErrorKind::Timeout, format!("no answer within {limit:?}"))),
        }
    }

    /// Notes that a long call gets on: it may take as long again.
    pub(super) fn gets_on(&mut self) {
        (self.began, self.failures) = (Instant::now(), 0);
    }

    /// Waits before the next try, if the error is one that may pass and if there is time left.
    pub(super) async fn again(&mut self, error: Error) -> Result<()> {
        match errors::verdict(&error) {
            Verdict::Retry => self.pause(&error, self.patience.total).await,
            Verdict::RetryBriefly => self.pause(&error, self.patience.total.min(BRIEFLY)).await,
            Verdict::Final => Err(self.failed(error)),
        }
    }

    /// Waits before the next try, if there is time left.
    pub(super) async fn wait(&mut self, error: &Error) -> Result<()> {
        self.pause(error, self.patience.total).await
    }

    async fn pause(&mut self, error: &Error, total: Duration) -> Result<()> {
        let longest = self.patience.first_pause.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        self.failures += 1;
        // All of the pause is random, so that many that failed together do not come back together.
        let pause = longest.mul_f64(random_fraction());
        if self.began.elapsed() + pause >= total {
            return Err(self.gave_up(error));
        }
        self.count(|counters| &counters.retries, 1);
        tracing::debug!(error = %errors::text(error), name = self.name, "a request to object storage is repeated");
        if self.began.elapsed() > TOLD_AFTER && !self.shared.has_told.swap(true, Relaxed) {
            let (place, limit) = (self.shared.describe(""), total.as_secs());
            tracing::warn!("{place} does not answer; trying for up to {limit} s: {}", errors::text(error));
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    fn gave_up(&self, error: &Error) -> GroundError {
        let Call { failures, began, .. } = self;
        let last = errors::text(error);
        if errors::verdict(error) == Verdict::RetryBriefly {
            // Whatever it was to do.
            let why = format!("there are no credentials: {}. This machine has no role: {last}", errors::CREDENTIALS);
            return failed_because("use", &self.shared.describe(""), ErrorKind::PermissionDenied, &why);
        }
        let tries = if *failures == 1 { "one try".to_owned() } else { format!("{failures} tries") };
        let why = format!("gave up after {tries} in {:.1} s; the last one failed: {last}", began.elapsed().as_secs_f64());
        self.because(ErrorKind::TimedOut, &why)
    }

    /// Makes an error of this call.
    pub(super) fn because(&self, kind: ErrorKind, why: &str) -> GroundError {
        failed_because(self.operation, &self.shared.describe(&self.name), kind, why)
    }

    /// Makes an error of this call from one that does not pass.
    pub(super) fn failed(&self, error: Error) -> GroundError {
        let (kind, why) = errors::explain(&error);
        self.because(kind, &why)
    }
}

impl Shared {
    /// Returns the full name of an object.
    pub(super) fn path(&self, operation: &'static str, name: &str) -> Result<Path> {
        let full = format!("{}{name}", self.prefix);
        let parsed = Path::parse(&full).ok().filter(|path| path.as_ref() == full && !name.is_empty());
        parsed.ok_or_else(|| failed_because(operation, &self.describe(name), ErrorKind::InvalidInput, "this is no name of an object"))
    }
}

/// Makes the error for an answer that did not come, or not whole.
pub(super) fn interrupted(kind: HttpErrorKind, why: String) -> Error {
    Error::Generic { store: "bucket", source: Box::new(HttpError::new_boxed(kind, why.into())) }
}

/// Returns a random number from 0 to 1.
fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers, pauses are all the same: worse, but not wrong.
    if onefold_ground::fill_random(&mut bytes).is_err() {
        return 0.5;
    }
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}
