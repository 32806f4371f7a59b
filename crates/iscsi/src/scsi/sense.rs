//! Sense data: the reason why a command failed (SPC-4 section 4.5).

/// Sense keys (SPC-4 table 48).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Key {
    /// Nothing is wrong.
    NoSense = 0x0,
    /// The unit is not ready now.
    NotReady = 0x2,
    /// The data cannot be read or written.
    MediumError = 0x3,
    /// The target failed.
    HardwareError = 0x4,
    /// The request is wrong.
    IllegalRequest = 0x5,
    /// Something happened that the initiator should know.
    UnitAttention = 0x6,
    /// The unit must not be written.
    DataProtect = 0x7,
    /// A copy ended early.
    CopyAborted = 0xa,
    /// The target ended the command early.
    AbortedCommand = 0xb,
    /// The compared data differs.
    Miscompare = 0xe,
}

/// Additional sense code and its qualifier (SPC-4 annex F.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u8, pub u8);

#[allow(missing_docs)] // The names are those of the standard.
impl Code {
    pub const NONE: Code = Code(0x00, 0x00);
    pub const OPERATION_IN_PROGRESS: Code = Code(0x00, 0x16);
    pub const NOT_READY: Code = Code(0x04, 0x00);
    pub const NOT_READY_SANITIZE_IN_PROGRESS: Code = Code(0x04, 0x1b);
    pub const UNREACHABLE_COPY_TARGET: Code = Code(0x08, 0x04);
    pub const WRITE_ERROR: Code = Code(0x0c, 0x00);
    pub const COPY_TARGET_DEVICE_NOT_REACHABLE: Code = Code(0x0d, 0x02);
    pub const INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT: Code = Code(0x0e, 0x03);
    pub const UNRECOVERED_READ_ERROR: Code = Code(0x11, 0x00);
    pub const PARAMETER_LIST_LENGTH_ERROR: Code = Code(0x1a, 0x00);
    pub const MISCOMPARE_DURING_VERIFY: Code = Code(0x1d, 0x00);
    pub const INVALID_COMMAND_OPERATION_CODE: Code = Code(0x20, 0x00);
    pub const LBA_OUT_OF_RANGE: Code = Code(0x21, 0x00);
    pub const UNSUPPORTED_TOKEN_TYPE: Code = Code(0x23, 0x01);
    pub const TOKEN_UNKNOWN: Code = Code(0x23, 0x04);
    pub const INVALID_TOKEN_LENGTH: Code = Code(0x23, 0x0a);
    pub const INVALID_FIELD_IN_CDB: Code = Code(0x24, 0x00);
    pub const LOGICAL_UNIT_NOT_SUPPORTED: Code = Code(0x25, 0x00);
    pub const INVALID_FIELD_IN_PARAMETER_LIST: Code = Code(0x26, 0x00);
    pub const INVALID_RELEASE_OF_PERSISTENT_RESERVATION: Code = Code(0x26, 0x04);
    pub const TOO_MANY_TARGET_DESCRIPTORS: Code = Code(0x26, 0x06);
    pub const UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE: Code = Code(0x26, 0x07);
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: Code = Code(0x26, 0x08);
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE: Code = Code(0x26, 0x09);
    pub const UNEXPECTED_INEXACT_SEGMENT: Code = Code(0x26, 0x0a);
    pub const INLINE_DATA_LENGTH_EXCEEDED: Code = Code(0x26, 0x0b);
    pub const WRITE_PROTECTED: Code = Code(0x27, 0x00);
    pub const SPACE_ALLOCATION_FAILED_WRITE_PROTECT: Code = Code(0x27, 0x07);
    pub const NOT_READY_TO_READY_CHANGE: Code = Code(0x28, 0x00);
    pub const POWER_ON_RESET_OR_BUS_DEVICE_RESET: Code = Code(0x29, 0x00);
    pub const BUS_DEVICE_RESET_FUNCTION: Code = Code(0x29, 0x03);
    pub const MODE_PARAMETERS_CHANGED: Code = Code(0x2a, 0x01);
    pub const RESERVATIONS_PREEMPTED: Code = Code(0x2a, 0x03);
    pub const RESERVATIONS_RELEASED: Code = Code(0x2a, 0x04);
    pub const REGISTRATIONS_PREEMPTED: Code = Code(0x2a, 0x05);
    pub const CAPACITY_DATA_HAS_CHANGED: Code = Code(0x2a, 0x09);
    pub const COMMANDS_CLEARED_BY_ANOTHER_INITIATOR: Code = Code(0x2f, 0x00);
    pub const SANITIZE_COMMAND_FAILED: Code = Code(0x31, 0x03);
    pub const THIN_PROVISIONING_SOFT_THRESHOLD_REACHED: Code = Code(0x38, 0x07);
    pub const MEDIUM_NOT_PRESENT: Code = Code(0x3a, 0x00);
    pub const REPORTED_LUNS_DATA_HAS_CHANGED: Code = Code(0x3f, 0x0e);
    pub const INTERNAL_TARGET_FAILURE: Code = Code(0x44, 0x00);
    pub const PROTOCOL_SERVICE_CRC_ERROR: Code = Code(0x47, 0x05);
    pub const MEDIUM_REMOVAL_PREVENTED: Code = Code(0x53, 0x02);
    pub const INSUFFICIENT_REGISTRATION_RESOURCES: Code = Code(0x55, 0x04);
    pub const INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN: Code = Code(0x55, 0x0d);
}

/// The position of the wrong field in a request (SPC-4 section 4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Whether it is in the CDB. Otherwise it is in the parameter list.
    pub in_cdb: bool,
    /// Byte of the field.
    pub byte: u16,
    /// Highest bit of the field in that byte, if it is smaller than a byte.
    pub bit: Option<u8>,
}

/// Sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// What kind of thing happened.
    pub key: Key,
    /// What happened.
    pub code: Code,
    /// The INFORMATION field: a block address or an offset in bytes.
    pub information: Option<u64>,
    /// Further details, by the kind of event.
    pub specific: Option<Specific>,
}

/// The SENSE KEY SPECIFIC field (SPC-4 section 4.5.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specific {
    /// The wrong field of the request.
    Field(Field),
    /// The progress, in parts of 65,536.
    Progress(u16),
}

/// Bytes of fixed-format sense data.
pub const FIXED_BYTES: usize = 18;

impl Sense {
    /// Returns sense data without details.
    pub const fn new(key: Key, code: Code) -> Sense {
        Sense { key, code, information: None, specific: None }
    }

    /// A field of the CDB has an unsupported value.
    pub const fn invalid_field(byte: u16, bit: Option<u8>) -> Sense {
        let field = Field { in_cdb: true, byte, bit };
        Sense { specific: Some(Specific::Field(field)), ..Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_CDB) }
    }

    /// A field of the parameter list has an unsupported value.
    pub const fn invalid_parameter(byte: u16) -> Sense {
        let field = Field { in_cdb: false, byte, bit: None };
        Sense { specific: Some(Specific::Field(field)), ..Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_PARAMETER_LIST) }
    }

    /// Returns the same with the INFORMATION field.
    pub const fn with_information(self, information: u64) -> Sense {
        Sense { information: Some(information), ..self }
    }

    /// Encodes the fixed format (SPC-4 table 53) or the descriptor format (SPC-4 table 28).
    pub fn encode(&self, descriptors: bool) -> Vec<u8> {
        if descriptors { self.encode_descriptors() } else { self.encode_fixed() }
    }

    fn encode_fixed(&self) -> Vec<u8> {
        let mut bytes = vec![0; FIXED_BYTES];
        bytes[0] = 0x70;
        bytes[2] = self.key as u8;
        // An address that does not fit is marked as invalid (SPC-4 section 4.5.3).
        if let Some(information) = self.information.and_then(|information| u32::try_from(information).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = (FIXED_BYTES - 8) as u8;
        (bytes[12], bytes[13]) = (self.code.0, self.code.1);
        if let Some(specific) = self.specific {
            bytes[15..18].copy_from_slice(&specific.encode());
        }
        bytes
    }

    fn encode_descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![0x72, self.key as u8, self.code.0, self.code.1, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend_from_slice(&[0x00, 0x0a, 0x80, 0]);
            bytes.extend_from_slice(&information.to_be_bytes());
        }
        if let Some(specific) = self.specific {
            bytes.extend_from_slice(&[0x02, 0x06, 0, 0]);
            bytes.extend_from_slice(&specific.encode());
            bytes.push(0);
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }
}

impl Specific {
    fn encode(self) -> [u8; 3] {
        let (flags, [high, low]) = match self {
            Specific::Field(field) => {
                let bit = field.bit.map_or(0, |bit| 0x08 | bit & 7);
                (u8::from(field.in_cdb) << 6 | bit, field.byte.to_be_bytes())
            }
            Specific::Progress(done) => (0, done.to_be_bytes()),
        };
        [0x80 | flags, high, low]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m0_1_both_formats_say_the_same() {
        let sense = Sense::new(Key::Miscompare, Code::MISCOMPARE_DURING_VERIFY).with_information(515);
        let fixed = sense.encode(false);
        assert_eq!(fixed, [0xf0, 0, 0x0e, 0, 0, 2, 3, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0]);
        let descriptors = sense.encode(true);
        assert_eq!(descriptors, [0x72, 0x0e, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 3]);
    }

    #[test]
    fn a_wrong_field_is_pointed_at() {
        let sense = Sense::invalid_field(1, Some(7));
        assert_eq!(sense.encode(false)[15..], [0xcf, 0, 1]);
        assert_eq!(sense.encode(true)[8..], [2, 6, 0, 0, 0xcf, 0, 1, 0]);
        assert_eq!(Sense::invalid_parameter(300).encode(false)[15..], [0x80, 1, 44]);
    }

    #[test]
    fn progress_is_said_in_both_formats() {
        let sense = Sense { specific: Some(Specific::Progress(0x1234)), ..Sense::new(Key::NotReady, Code::NOT_READY_SANITIZE_IN_PROGRESS) };
        assert_eq!(sense.encode(false)[15..], [0x80, 0x12, 0x34]);
        assert_eq!(sense.encode(true)[8..], [2, 6, 0, 0, 0x80, 0x12, 0x34, 0]);
    }

    #[test]
    fn an_address_beyond_32_bits_needs_descriptors() {
        let sense = Sense::new(Key::MediumError, Code::UNRECOVERED_READ_ERROR).with_information(1 << 40);
        assert_eq!(sense.encode(false)[0], 0x70);
        assert_eq!(sense.encode(true)[12..20], (1u64 << 40).to_be_bytes());
    }
}
