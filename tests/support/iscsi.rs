//! An iSCSI initiator of the fewest means (RFC 7143): one session, one command at a time, PDUs as the test wants them.
//! It exists so that a test knows exactly which commands were answered when the daemon died, and can send what no good
//! initiator sends.

use crate::RequestError;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Bytes of a basic header segment.
pub const HEADER_BYTES: usize = 48;
/// A PDU: its header, its data.
pub type Pdu = ([u8; HEADER_BYTES], Vec<u8>);

const BLOCK: u64 = 512;
const LOGIN: u8 = 0x43;
const SCSI_COMMAND: u8 = 0x01;
const DATA_OUT: u8 = 0x05;
const LOGOUT: u8 = 0x46;
const SCSI_RESPONSE: u8 = 0x21;
const LOGIN_RESPONSE: u8 = 0x23;
const DATA_IN: u8 = 0x25;
const LOGOUT_RESPONSE: u8 = 0x26;
const R2T: u8 = 0x31;

/// A session in full feature phase.
#[derive(Debug)]
pub struct Initiator {
    /// The connection.
    pub stream: TcpStream,
    /// CmdSN of the next command.
    pub command_number: u32,
    /// ExpStatSN.
    pub expected_status: u32,
    lun: u8,
    tag: u32,
}

/// A number in a header.
pub fn word(header: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().unwrap())
}

/// Connects, without logging in.
pub fn connect(portal: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(portal)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// Sends a PDU; the length of its data goes into the header.
pub fn send(stream: &mut TcpStream, mut header: [u8; HEADER_BYTES], data: &[u8]) -> io::Result<()> {
    header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    let padding = data.len().wrapping_neg() & 3;
    stream.write_all(&[&header[..], data, &[0; 3][..padding]].concat())
}

/// Receives a PDU.
pub fn receive(stream: &mut TcpStream) -> io::Result<Pdu> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let length = (word(&header, 4) & 0x00ff_ffff) as usize;
    let mut data = vec![0; length + (length.wrapping_neg() & 3)];
    stream.read_exact(&mut data)?;
    data.truncate(length);
    Ok((header, data))
}

/// A login request from the operational stage into full feature phase, with these keys.
pub fn login_request(isid: u32, pairs: &[(&str, &str)]) -> ([u8; HEADER_BYTES], Vec<u8>) {
    let mut header = [0; HEADER_BYTES];
    (header[0], header[1]) = (LOGIN, 0x87);
    // A random ISID.
    header[8] = 0x80;
    header[9..13].copy_from_slice(&isid.to_be_bytes());
    header[24..28].copy_from_slice(&1u32.to_be_bytes());
    let text: String = pairs.iter().map(|(key, value)| format!("{key}={value}\0")).collect();
    (header, text.into_bytes())
}

impl Initiator {
    /// Logs in to a target as this initiator, with an ISID of its own, for commands to a LUN. An error of kind
    /// `PermissionDenied` is a refused login with its status.
    pub fn log_in(portal: &str, target: &str, name: &str, isid: u32, lun: u8) -> io::Result<Initiator> {
        let mut stream = connect(portal)?;
        let (header, text) = login_request(
            isid,
            &[
                ("InitiatorName", name),
                ("TargetName", target),
                ("InitialR2T", "No"),
                ("ImmediateData", "Yes"),
                ("MaxRecvDataSegmentLength", "262144"),
            ],
        );
        send(&mut stream, header, &text)?;
        let (answer, _) = receive(&mut stream)?;
        assert_eq!(answer[0], LOGIN_RESPONSE);
        let status = u16::from_be_bytes([answer[36], answer[37]]);
        if status != 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{status:04x}")));
        }
        let expected_status = word(&answer, 24).wrapping_add(1);
        let mut initiator = Initiator { stream, command_number: 1, expected_status, lun, tag: 0 };
        // What the unit has to say to a new initiator.
        while matches!(initiator.command(&[0; 6], &[], 0), Err(RequestError::Refused(code)) if code >> 16 == 6) {}
        Ok(initiator)
    }

    /// The header of a SCSI command with this CDB.
    pub fn header(&mut self, cdb: &[u8], flags: u8, expected: usize) -> [u8; HEADER_BYTES] {
        self.tag += 1;
        let mut header = [0; HEADER_BYTES];
        (header[0], header[1], header[9]) = (SCSI_COMMAND, flags, self.lun);
        header[16..20].copy_from_slice(&self.tag.to_be_bytes());
        header[20..24].copy_from_slice(&(expected as u32).to_be_bytes());
        header[24..28].copy_from_slice(&self.command_number.to_be_bytes());
        header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        header
    }

    /// Does a command: sends `data`, returns what comes back. Refused with sense key, code and qualifier, or with the
    /// status alone.
    pub fn command(&mut self, cdb: &[u8], data: &[u8], expected: usize) -> Result<Vec<u8>, RequestError> {
        let flags = 0x81 | u8::from(expected > 0) << 6 | u8::from(!data.is_empty()) << 5;
        let header = self.header(cdb, flags, expected.max(data.len()));
        self.command_number += 1;
        let immediate = data.len().min(64 << 10);
        send(&mut self.stream, header, &data[..immediate])?;
        let mut back = Vec::new();
        loop {
            let (answer, part) = receive(&mut self.stream)?;
            match answer[0] {
                DATA_IN => {
                    back.extend_from_slice(&part);
                    if answer[1] & 1 != 0 {
                        self.expected_status = word(&answer, 24).wrapping_add(1);
                        return Ok(back);
                    }
                }
                R2T => self.answer_request(&answer, data)?,
                SCSI_RESPONSE => {
                    self.expected_status = word(&answer, 24).wrapping_add(1);
                    return match (answer[3], part.get(2..)) {
                        (0, _) => Ok(back),
                        (2, Some(sense)) => Err(RequestError::Refused(u32::from_be_bytes([0, sense[2] & 15, sense[12], sense[13]]))),
                        (status, _) => Err(RequestError::Refused(u32::from(status) << 24)),
                    };
                }
                other => panic!("an unexpected PDU of type {other:02x}"),
            }
        }
    }

    fn answer_request(&mut self, request: &[u8], data: &[u8]) -> io::Result<()> {
        let (mut at, end) = (word(request, 40) as usize, (word(request, 40) + word(request, 44)) as usize);
        let mut number = 0u32;
        while at < end {
            let next = end.min(at + (64 << 10));
            let mut header = [0; HEADER_BYTES];
            (header[0], header[1]) = (DATA_OUT, u8::from(next == end) << 7);
            header[8..24].copy_from_slice(&request[8..24]);
            header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
            header[36..40].copy_from_slice(&number.to_be_bytes());
            header[40..44].copy_from_slice(&(at as u32).to_be_bytes());
            send(&mut self.stream, header, &data[at..next])?;
            (at, number) = (next, number + 1);
        }
        Ok(())
    }

    fn transfer(opcode: u8, flags: u8, offset: u64, length: usize) -> Vec<u8> {
        let mut cdb = vec![0; 16];
        (cdb[0], cdb[1]) = (opcode, flags);
        cdb[2..10].copy_from_slice(&(offset / BLOCK).to_be_bytes());
        cdb[10..14].copy_from_slice(&((length as u64 / BLOCK) as u32).to_be_bytes());
        cdb
    }

    /// READ (16).
    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, RequestError> {
        self.command(&Initiator::transfer(0x88, 0, offset, length), &[], length)
    }

    /// WRITE (16); done does not mean durable.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        self.command(&Initiator::transfer(0x8a, 0, offset, bytes.len()), bytes, 0).map(drop)
    }

    /// WRITE (16) with FUA.
    pub fn write_durable(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        self.command(&Initiator::transfer(0x8a, 0x08, offset, bytes.len()), bytes, 0).map(drop)
    }

    /// SYNCHRONIZE CACHE (10) of everything.
    pub fn flush(&mut self) -> Result<(), RequestError> {
        self.command(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).map(drop)
    }

    /// UNMAP of one range.
    pub fn trim(&mut self, offset: u64, length: usize) -> Result<(), RequestError> {
        let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
        list.extend_from_slice(&(offset / BLOCK).to_be_bytes());
        list.extend_from_slice(&((length as u64 / BLOCK) as u32).to_be_bytes());
        list.extend_from_slice(&[0; 4]);
        self.command(&[0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, 0).map(drop)
    }

    /// WRITE SAME (16) of a block of zeros.
    pub fn write_zeroes(&mut self, offset: u64, length: usize) -> Result<(), RequestError> {
        self.command(&Initiator::transfer(0x93, 0, offset, length), &[0; BLOCK as usize], 0).map(drop)
    }

    /// A page of vital product data.
    pub fn inquiry(&mut self, page: u8) -> Result<Vec<u8>, RequestError> {
        self.command(&[0x12, 1, page, 0x04, 0, 0], &[], 1024)
    }

    /// Asks to log out.
    pub fn begin_log_out(&mut self) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        (header[0], header[1]) = (LOGOUT, 0x80);
        header[16..20].copy_from_slice(&0xffff_u32.to_be_bytes());
        header[24..28].copy_from_slice(&self.command_number.to_be_bytes());
        header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
        send(&mut self.stream, header, &[])
    }

    /// Logs out.
    pub fn log_out(mut self) -> io::Result<()> {
        self.begin_log_out()?;
        let (answer, _) = receive(&mut self.stream)?;
        assert_eq!((answer[0], answer[2]), (LOGOUT_RESPONSE, 0));
        Ok(())
    }
}
