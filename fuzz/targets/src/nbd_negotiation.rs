//! NBD negotiation: a client that sends any options in any order gets whole replies of bounded length, or its
//! connection is closed; it never begins with an export that there is not, nor without TLS where that is required.

use onefold_nbd::haggling::{Haggling, Next, TlsState};
use onefold_nbd::options::{HEADER_BYTES, MAX_DATA_BYTES, parse_header};
use onefold_nbd::{Export, ExportError, ExportInfo, Exports, Extent};
use std::sync::Arc;

const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Two exports, so that the name `""` stands for none of them, and one whose name and description are hard to show.
struct Two;

struct Disk(u64);

impl Exports for Two {
    fn list(&self) -> Vec<ExportInfo> {
        vec![
            ExportInfo { name: "disk".into(), description: "a disk".into() },
            ExportInfo { name: "ö".repeat(1500), description: "ü".repeat(3000) },
        ]
    }

    fn open(&self, name: &str) -> Option<Arc<dyn Export>> {
        let found = self.list().iter().position(|export| export.name == name)?;
        Some(Arc::new(Disk(found as u64 + 1)))
    }
}

impl Export for Disk {
    fn size(&self) -> u64 {
        self.0 << 20
    }
    fn read_only(&self) -> bool {
        self.0 == 2
    }
    fn preferred_block_bytes(&self) -> u32 {
        // Neither a power of two nor within the limits.
        (self.0 as u32) * 77
    }
    fn read(&self, _offset: u64, _out: &mut [u8]) -> Result<(), ExportError> {
        Err(ExportError::ShuttingDown)
    }
    fn write(&self, _offset: u64, _data: &[u8], _fua: bool) -> Result<(), ExportError> {
        Err(ExportError::ShuttingDown)
    }
    fn flush(&self) -> Result<(), ExportError> {
        Err(ExportError::ShuttingDown)
    }
    fn trim(&self, _offset: u64, _length: u64, _fua: bool) -> Result<(), ExportError> {
        Err(ExportError::ShuttingDown)
    }
    fn write_zeroes(&self, _offset: u64, _length: u64, _may_trim: bool, _fua: bool) -> Result<(), ExportError> {
        Err(ExportError::ShuttingDown)
    }
    fn cache(&self, _offset: u64, _length: u64) -> Result<(), ExportError> {
        Err(ExportError::ShuttingDown)
    }
    fn status(&self, _offset: u64, _length: u64, _limit_extents: usize) -> Result<Vec<Extent>, ExportError> {
        Err(ExportError::ShuttingDown)
    }
}

/// The first byte chooses what there is of TLS, four are the client's flags; what follows is its options, as on the
/// wire.
pub fn run(data: &[u8]) {
    let Some(((choice, flags), mut bytes)) =
        data.split_first_chunk::<5>().map(|(start, rest)| ((start[0], [start[1], start[2], start[3], start[4]]), rest))
    else {
        return;
    };
    let tls = [TlsState::Unavailable, TlsState::Offered, TlsState::Required, TlsState::Active][usize::from(choice % 4)];
    let Some(mut haggling) = Haggling::new(u32::from_be_bytes(flags), tls) else { return };
    let mut is_secure = tls != TlsState::Required;
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let Some(option) = parse_header(header) else { return };
        let answer = if option.length > MAX_DATA_BYTES {
            bytes = rest;
            haggling.answer_too_big(option.option)
        } else {
            let Some((data, rest)) = rest.split_at_checked(option.length as usize) else { return };
            bytes = rest;
            haggling.answer(option.option, data, &Two)
        };
        assert!(answer.bytes.len() <= 64 << 10, "an answer of {} bytes", answer.bytes.len());
        match answer.next {
            Next::Continue => check_replies(&answer.bytes, option.option),
            Next::StartTls => {
                assert!(matches!(tls, TlsState::Offered | TlsState::Required));
                check_replies(&answer.bytes, option.option);
                haggling.tls_started();
                is_secure = true;
            }
            Next::Transmit(session) => {
                assert!(is_secure, "an export without TLS");
                assert!(Two.open(&session.name).is_some());
                return;
            }
            Next::Close => return,
        }
        if choice & 0x80 != 0 {
            haggling.stop();
        }
    }
}

/// Whole replies, one behind the other, to this option.
fn check_replies(mut bytes: &[u8], option: u32) {
    assert!(!bytes.is_empty(), "an option without an answer");
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_first_chunk::<20>().expect("a whole header");
        assert_eq!(header[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        assert_eq!(header[8..12], option.to_be_bytes());
        let length = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
        bytes = rest.get(length as usize..).expect("a whole reply");
    }
}
