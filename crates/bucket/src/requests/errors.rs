//! What the errors of object storage mean.

use object_store::Error;
use object_store::client::HttpError;
use std::error::Error as AnyError;
use std::io::ErrorKind;

/// Where credentials come from, for messages.
pub(super) const CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or GOOGLE_..., AZURE_...) or write them to \
                                      ~/.aws/credentials";

/// Codes in answers that ask to come back later, whatever their status.
const PASSING: [&str; 6] = ["SlowDown", "RequestTimeout<", "InternalError", "ServiceUnavailable", "Throttl", "OperationAborted"];
/// Codes of a missing bucket: S3, Azure, Google.
const NO_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"];
/// What the client says without a key.
const NO_CREDENTIALS: [&str; 2] = ["Missing AccessKeyId", "Missing SecretAccessKey"];
/// How answers begin that deny access. Those to lists come as errors of no kind.
const DENIED: [&str; 2] = ["403 Forbidden", "401 Unauthorized"];
/// Where a cloud's machines get their credentials.
const METADATA: [&str; 2] = ["169.254.", "metadata.google"];

/// Whether to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Retry,
    /// The machine may be no cloud's machine at all.
    RetryBriefly,
    Final,
}

/// Returns whether a request that failed may succeed later.
pub(super) fn verdict(error: &Error) -> Verdict {
    let source: &(dyn AnyError + 'static) = match error {
        Error::Generic { source, .. } => &**source,
        Error::JoinError { .. } => return Verdict::Retry,
        _ => return Verdict::Final,
    };
    let text = error.to_string();
    if METADATA.iter().any(|address| text.contains(address)) {
        return Verdict::RetryBriefly;
    }
    // Answers that ask to come back later are such errors too: `connection.rs` makes them.
    let is_passing = if in_chain::<HttpError>(source) { !text.contains("invalid peer certificate") } else { has_any(&text, &PASSING) };
    if is_passing { Verdict::Retry } else { Verdict::Final }
}

/// Returns whether the store refuses the range that was asked for, or says nothing that can be understood about it.
pub(super) fn may_be_range(error: &Error) -> bool {
    match error {
        Error::NotSupported { .. } | Error::NotImplemented { .. } => true,
        Error::Generic { source, .. } => verdict(error) == Verdict::Final && !in_chain::<HttpError>(&**source),
        _ => false,
    }
}

/// Returns whether the bucket itself is missing.
pub(super) fn is_no_bucket(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. } | Error::Generic { .. }) && has_any(&error.to_string(), &NO_BUCKET)
}

/// Returns the kind of a lasting error, and what people should know.
pub(super) fn explain(error: &Error) -> (ErrorKind, String) {
    let text = text(error);
    match error {
        _ if is_no_bucket(error) => (ErrorKind::Other, "the bucket does not exist; create it first".to_owned()),
        Error::NotFound { .. } => (ErrorKind::NotFound, "there is no such object".to_owned()),
        _ if has_any(&text, &NO_CREDENTIALS) => (ErrorKind::PermissionDenied, format!("there are no credentials: {CREDENTIALS}")),
        _ if matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) || has_any(&text, &DENIED) => {
            let why = "access is denied; check the credentials, and that they allow to read, write, list and delete here";
            (ErrorKind::PermissionDenied, format!("{why}: {text}"))
        }
        Error::InvalidPath { .. } => (ErrorKind::InvalidInput, text),
        _ if text.contains("configured region") || text.contains("PermanentRedirect") => {
            (ErrorKind::Other, format!("the bucket is in another region; set AWS_REGION: {text}"))
        }
        Error::NotSupported { .. } | Error::NotImplemented { .. } => (ErrorKind::Unsupported, text),
        _ if text.contains("501 Not Implemented") => (ErrorKind::Unsupported, text),
        _ => (ErrorKind::Other, text),
    }
}

/// Returns what an error says, in one line.
pub(super) fn text(error: &Error) -> String {
    const MOST: usize = 600;
    let text = match error {
        // Without the name of the client's part.
        Error::Generic { source, .. } => source.to_string(),
        error => error.to_string(),
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Of an answer in XML, only what it says.
    let text = match (between(&text, "<Code>", "</Code>"), between(&text, "<Message>", "</Message>")) {
        (Some(code), message) => {
            let status = between(&text, "status code: ", ":").or_else(|| between(&text, "the server answered ", ":")).unwrap_or("error");
            format!("{status}: {} ({code})", message.unwrap_or_default())
        }
        _ => text,
    };
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(found, _)| found)
}

fn has_any(text: &str, codes: &[&str]) -> bool {
    codes.iter().any(|code| text.contains(code))
}

/// Returns whether an error, or one that it came from, is of this type.
fn in_chain<T: AnyError + 'static>(error: &(dyn AnyError + 'static)) -> bool {
    std::iter::successors(Some(error), |error: &&(dyn AnyError + 'static)| (*error).source()).any(|error| error.is::<T>())
}
