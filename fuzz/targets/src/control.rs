//! What a client sends to the daemon's control socket: any bytes are frames or refused, any request is understood whole
//! or refused.

use onefold::control::frame::{Found, Kind, MAX_PAYLOAD_BYTES, Reader, encode};
use onefold::control::message::{Call, Ended, Progress};

/// The bytes are what comes behind the greeting, from a client or from the daemon.
pub fn run(data: &[u8]) {
    let (mut reader, mut rest) = (Reader::default(), data);
    let mut taken = 0;
    while let Ok(Found::Frame(frame)) = reader.next(&mut rest) {
        assert!(frame.payload.len() <= MAX_PAYLOAD_BYTES);
        let again = encode(frame.kind, &frame.payload);
        assert_eq!(again, data[taken..taken + again.len()]);
        taken += again.len();
        match frame.kind {
            Kind::Request => {
                if let Ok(call) = Call::decode(&frame.payload) {
                    let bytes = call.encode().expect("what was read has a JSON form");
                    assert!(Call::decode(&bytes).is_ok());
                    assert!(!call.command.command().name().is_empty());
                    let _ = call.zone();
                }
            }
            Kind::Progress => drop(serde_json::from_slice::<Progress>(&frame.payload)),
            Kind::Result => drop(serde_json::from_slice::<Ended>(&frame.payload).map(Ended::result)),
            _ => {}
        }
    }
}
