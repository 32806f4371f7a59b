//! Operational keys of a session (RFC 7143 section 13): the initiator's offers and our answers.

use crate::text::{number, put};

/// The agreed parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Whether headers have a CRC32C.
    pub header_digest: bool,
    /// Whether data segments have a CRC32C.
    pub data_digest: bool,
    /// The longest data segment that the initiator accepts, in bytes.
    pub send_segment_bytes: u32,
    /// The longest sequence of Data-In, or of Data-Out for one R2T, in bytes.
    pub burst_bytes: u32,
    /// The most bytes that may come without R2T.
    pub first_burst_bytes: u32,
    /// Whether data other than immediate data needs an R2T.
    pub initial_r2t: bool,
    /// Whether data may come with the command.
    pub immediate_data: bool,
    /// The most R2Ts of one command that are open at a time.
    pub outstanding_r2t: u32,
}

/// The longest data segment that we accept, in bytes.
pub const RECEIVE_SEGMENT_BYTES: u32 = 256 << 10;
/// The longest data segment that we send, in bytes, even if the initiator accepts more.
const SEND_SEGMENT_BYTES: u32 = 256 << 10;
const MAX_BURST_BYTES: u32 = 1 << 20;
const MAX_FIRST_BURST_BYTES: u32 = 64 << 10;
const MAX_OUTSTANDING_R2T: u32 = 16;

impl Default for Parameters {
    /// Returns the values that apply if a key is not negotiated.
    fn default() -> Parameters {
        Parameters {
            header_digest: false,
            data_digest: false,
            send_segment_bytes: 8192,
            burst_bytes: 256 << 10,
            first_burst_bytes: 64 << 10,
            initial_r2t: true,
            immediate_data: true,
            outstanding_r2t: 1,
        }
    }
}

impl Parameters {
    /// Answers one key of the initiator. Unknown keys get the answer "not understood". Errors: the value is invalid.
    pub fn answer(&mut self, key: &str, value: &str, is_discovery: bool, out: &mut Vec<u8>) -> Result<(), &'static str> {
        const WRONG: &str = "a negotiated value is out of range";
        let numeric =
            |low: u64, high: u64| number(value).filter(|value| (low..=high).contains(value)).map(|value| value as u32).ok_or(WRONG);
        let boolean = || match value {
            "Yes" => Ok(true),
            "No" => Ok(false),
            _ => Err(WRONG),
        };
        let word = |yes: bool| if yes { "Yes" } else { "No" };
        // Keys without a meaning in a discovery session (RFC 7143 section 13).
        let of_normal = [
            "MaxConnections",
            "InitialR2T",
            "ImmediateData",
            "MaxBurstLength",
            "FirstBurstLength",
            "MaxOutstandingR2T",
            "DataPDUInOrder",
            "DataSequenceInOrder",
        ];
        if is_discovery && of_normal.contains(&key) {
            put(out, key, "Irrelevant");
            return Ok(());
        }
        match key {
            "HeaderDigest" | "DataDigest" => {
                // The first of the list that we support.
                let chosen = value.split(',').find(|method| matches!(*method, "CRC32C" | "None"));
                let is_crc = chosen == Some("CRC32C");
                *(if key == "HeaderDigest" { &mut self.header_digest } else { &mut self.data_digest }) = is_crc;
                put(out, key, chosen.unwrap_or("Reject"));
            }
            "MaxRecvDataSegmentLength" => self.send_segment_bytes = numeric(512, (1 << 24) - 1)?.min(SEND_SEGMENT_BYTES),
            "MaxBurstLength" => {
                self.burst_bytes = numeric(512, (1 << 24) - 1)?.min(MAX_BURST_BYTES);
                put(out, key, &self.burst_bytes.to_string());
            }
            "FirstBurstLength" => {
                self.first_burst_bytes = numeric(512, (1 << 24) - 1)?.min(MAX_FIRST_BURST_BYTES);
                put(out, key, &self.first_burst_bytes.to_string());
            }
            "InitialR2T" => {
                self.initial_r2t = boolean()?;
                put(out, key, word(self.initial_r2t));
            }
            "ImmediateData" => {
                self.immediate_data = boolean()?;
                put(out, key, word(self.immediate_data));
            }
            "MaxOutstandingR2T" => {
                self.outstanding_r2t = numeric(1, 65_535)?.min(MAX_OUTSTANDING_R2T);
                put(out, key, &self.outstanding_r2t.to_string());
            }
            "MaxConnections" => {
                numeric(1, 65_535)?;
                put(out, key, "1");
            }
            "ErrorRecoveryLevel" => {
                numeric(0, 2)?;
                put(out, key, "0");
            }
            "DefaultTime2Wait" => {
                let seconds = numeric(0, 3600)?.max(2);
                put(out, key, &seconds.to_string());
            }
            "DefaultTime2Retain" => {
                numeric(0, 3600)?;
                put(out, key, "0");
            }
            "DataPDUInOrder" | "DataSequenceInOrder" => {
                boolean()?;
                put(out, key, "Yes");
            }
            "IFMarker" | "OFMarker" => put(out, key, "No"),
            "IFMarkInt" | "OFMarkInt" => put(out, key, "Reject"),
            "TaskReporting" => put(out, key, "RFC3720"),
            "iSCSIProtocolLevel" => {
                // The lesser of both. Level 1 is RFC 7143.
                put(out, key, &numeric(0, 31)?.min(1).to_string());
            }
            _ => put(out, key, "NotUnderstood"),
        }
        Ok(())
    }

    /// Limits the first burst to a burst.
    pub fn settle(&mut self) {
        self.first_burst_bytes = self.first_burst_bytes.min(self.burst_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(key: &str, value: &str) -> (Parameters, String) {
        let (mut parameters, mut out) = (Parameters::default(), Vec::new());
        parameters.answer(key, value, false, &mut out).unwrap();
        (parameters, String::from_utf8(out).unwrap())
    }

    #[test]
    fn m0_1_keys_are_answered_as_the_rfc_says() {
        assert_eq!(answer("HeaderDigest", "CRC32C,None").1, "HeaderDigest=CRC32C\0");
        assert!(answer("DataDigest", "None,CRC32C").0 == Parameters::default());
        assert_eq!(answer("HeaderDigest", "MD5").1, "HeaderDigest=Reject\0");
        assert_eq!(answer("MaxBurstLength", "0xfffff0").1, format!("MaxBurstLength={}\0", 1 << 20));
        assert_eq!(answer("InitialR2T", "No").1, "InitialR2T=No\0");
        assert_eq!(answer("MaxConnections", "8").1, "MaxConnections=1\0");
        assert_eq!(answer("iSCSIProtocolLevel", "0").1, "iSCSIProtocolLevel=0\0");
        assert_eq!(answer("iSCSIProtocolLevel", "2").1, "iSCSIProtocolLevel=1\0");
        assert_eq!(answer("X-com.example", "1").1, "X-com.example=NotUnderstood\0");
        assert_eq!(
            answer("MaxRecvDataSegmentLength", "262144"),
            (Parameters { send_segment_bytes: 262_144, ..Parameters::default() }, String::new())
        );
        assert!(Parameters::default().answer("MaxBurstLength", "100", false, &mut Vec::new()).is_err());
        let mut out = Vec::new();
        Parameters::default().answer("MaxBurstLength", "1024", true, &mut out).unwrap();
        assert_eq!(out, b"MaxBurstLength=Irrelevant\0");
    }
}
