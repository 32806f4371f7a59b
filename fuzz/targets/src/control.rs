//! What a client and the daemon say to each other on a channel of a command: a request is understood whole or refused,
//! and whatever comes back is read or refused.

use onefold::control::kinds::Kind;
use onefold::control::message::{Call, Ended, Progress};

/// The first byte is the kind of the message, the rest is its payload.
pub fn run(data: &[u8]) {
    let Some((kind, payload)) = data.split_first() else { return };
    match Kind::of(*kind) {
        Some(Kind::Request) => {
            if let Ok(call) = Call::decode(payload) {
                let bytes = call.encode().expect("what was read has a JSON form");
                assert!(Call::decode(&bytes).is_ok());
                assert!(!call.command.command().name().is_empty());
                let _ = call.zone();
            }
        }
        Some(Kind::Progress) => drop(serde_json::from_slice::<Progress>(payload)),
        Some(Kind::Result) => drop(serde_json::from_slice::<Ended>(payload).map(Ended::result)),
        _ => {}
    }
}
