//! Executes one request on an export, on a thread that may block.

use crate::reply::{Reply, tidy};
use crate::request::{Operation, Request};
use crate::style::Style;
use crate::{Errno, Export, ExportError};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Extents in a block status reply. Clients ask for the rest.
pub(crate) const STATUS_EXTENTS: usize = 8192;

/// Executes a request. If the export panics, the client gets an I/O error and the server goes on.
pub(crate) fn execute(export: &dyn Export, style: Style, request: &Request, operation: Operation, payload: &[u8]) -> Result<Reply, Errno> {
    let outcome = catch_unwind(AssertUnwindSafe(|| perform(export, style, request, operation, payload)));
    let error = match outcome {
        Ok(Ok(reply)) => return Ok(reply),
        Ok(Err(error)) => error,
        Err(_) => ExportError::Io("the export panicked".into()),
    };
    if let ExportError::Io(reason) = &error {
        tracing::warn!(?operation, offset = request.offset, "NBD request failed: {reason}");
    }
    Err(match error {
        ExportError::NoSpace => Errno::NoSpace,
        ExportError::ReadOnly => Errno::Permission,
        // The export shrank after the request was checked. The rule for requests beyond the end is the same.
        ExportError::OutOfRange if matches!(operation, Operation::Write { .. } | Operation::WriteZeroes { .. }) => Errno::NoSpace,
        ExportError::OutOfRange => Errno::Invalid,
        ExportError::Io(_) => Errno::Io,
        ExportError::ShuttingDown => Errno::Shutdown,
    })
}

fn perform(export: &dyn Export, style: Style, request: &Request, operation: Operation, payload: &[u8]) -> Result<Reply, ExportError> {
    let offset = request.offset;
    match operation {
        Operation::Read { length: 0 } => {}
        Operation::Read { length } => {
            let mut data = vec![0; length as usize];
            export.read(offset, &mut data)?;
            if style != Style::Simple && is_zero(&data) {
                return Ok(Reply::hole(style, request, length));
            }
            return Ok(Reply::data(style, request, data));
        }
        Operation::Write { .. } if payload.is_empty() => {}
        Operation::Write { fua } => export.write(offset, payload, fua)?,
        Operation::Flush => export.flush()?,
        Operation::Trim { length: 0, .. } | Operation::WriteZeroes { length: 0, .. } | Operation::Cache { length: 0 } => {}
        Operation::Trim { length, fua } => export.trim(offset, length, fua)?,
        Operation::WriteZeroes { length, may_trim, fua } => export.write_zeroes(offset, length, may_trim, fua)?,
        Operation::Cache { length } => export.cache(offset, length)?,
        Operation::Status { length, one } => {
            let limit = if one { 1 } else { STATUS_EXTENTS };
            let extents = tidy(export.status(offset, length, limit)?, length, limit);
            return Ok(Reply::status(style, request, &extents));
        }
        // Its payload was read before, which turned it into a Status.
        Operation::StatusByPayload { .. } => return Err(ExportError::Io("the payload of a block-status request was not read".into())),
    }
    Ok(Reply::done(style, request))
}

/// Returns whether all bytes are zero. Works on blocks without branches inside, so that the compiler vectorises them.
fn is_zero(data: &[u8]) -> bool {
    data.chunks(1024).all(|block| block.iter().fold(0, |seen, byte| seen | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_anywhere_is_not_zero() {
        let mut data = vec![0; 5000];
        assert!(is_zero(&data) && is_zero(&[]));
        for at in [0, 1023, 1024, 4999] {
            data[at] = 1;
            assert!(!is_zero(&data), "{at}");
            data[at] = 0;
        }
    }
}
