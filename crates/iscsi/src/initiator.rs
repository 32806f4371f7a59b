//! An initiator for measurements: writes and flushes of one logical unit in one session, as many in flight as the
//! target allows. It relies on our target's behaviour: the first burst of data goes with the command, the rest when the
//! target asks for it. Tests have an initiator of their own, which shares nothing with the target.

use crate::pdu::{HEADER_BYTES, Header, NO_TAG, opcode};
use crate::scsi::{u16_at, u32_at};
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A target that is silent for this long is given up.
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest data segment sent, and the most data sent with a command. All our targets accept this much.
const SEGMENT_BYTES: usize = 64 << 10;
/// The longest data segment accepted.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// Bytes of a block in commands.
const BLOCK_BYTES: u64 = 512;
/// The most unit attentions that a new initiator may find.
const ATTENTIONS: usize = 16;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const WRITE_16: u8 = 0x8a;
const CHECK_CONDITION: u8 = 2;
const UNIT_ATTENTION: u8 = 6;

/// A session in full feature phase.
#[derive(Debug)]
pub struct Initiator {
    /// Used for reads. Writes bypass its buffer.
    stream: BufReader<TcpStream>,
    lun: u16,
    command_number: u32,
    /// The last command number that the target accepts.
    window: u32,
    expected_status: u32,
    next_tag: u32,
    in_flight: HashMap<u32, (u64, Vec<u8>)>,
    answered: VecDeque<Answer>,
}

/// The result of a command.
#[derive(Debug)]
pub struct Answer {
    /// The cookie passed with the command.
    pub cookie: u64,
    /// The data that it wrote.
    pub data: Vec<u8>,
    /// SCSI status: 0 is GOOD.
    pub status: u8,
    /// Sense key, additional sense code and qualifier, if there are any.
    pub sense: Option<[u8; 3]>,
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl Initiator {
    /// Logs in to a target without authentication. `isid` distinguishes sessions of the same name. Errors: the
    /// connection failed; `PermissionDenied` with the status if the login is refused; `InvalidData` if the other side
    /// is no such target.
    pub fn log_in(portal: SocketAddr, target: &str, name: &str, isid: u32, lun: u16) -> io::Result<Initiator> {
        let stream = TcpStream::connect(portal)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut initiator = Initiator {
            stream: BufReader::new(stream),
            lun,
            command_number: 1,
            window: 1,
            expected_status: 0,
            next_tag: 1,
            in_flight: HashMap::new(),
            answered: VecDeque::new(),
        };
        let keys = [
            ("InitiatorName", name),
            ("TargetName", target),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
            ("FirstBurstLength", "65536"),
            ("MaxBurstLength", "1048576"),
            ("MaxRecvDataSegmentLength", "262144"),
        ];
        let text: String = keys.iter().map(|(key, value)| format!("{key}={value}\0")).collect();
        let mut login = [0; HEADER_BYTES];
        // Immediate delivery, from the operational stage to the full feature phase. The ISID is of the random format.
        (login[0], login[1], login[8]) = (opcode::LOGIN | 0x40, 0x87, 0x80);
        login[9..13].copy_from_slice(&isid.to_be_bytes());
        login[24..28].copy_from_slice(&initiator.command_number.to_be_bytes());
        initiator.send(login, text.as_bytes())?;
        let (answer, _) = initiator.receive()?;
        let status = u16_at(&answer.0, 36);
        if answer.opcode() != opcode::LOGIN_RESPONSE || answer.0[1] & 0x83 != 0x83 {
            let refused =
                || io::Error::new(io::ErrorKind::PermissionDenied, format!("the target refused the login with status {status:04x}"));
            return Err(if answer.opcode() == opcode::LOGIN_RESPONSE {
                refused()
            } else {
                invalid(
                    "the answer to a login is not a login \
                response",
                )
            });
        }
        initiator.note_numbers(&answer);
        // Unit attentions for a new initiator come instead of the first answers.
        for _ in 0..ATTENTIONS {
            initiator.send_command(0, &TEST_UNIT_READY, Vec::new())?;
            let answer = initiator.next_answer()?;
            match (answer.status, answer.sense) {
                (0, _) => return Ok(initiator),
                (CHECK_CONDITION, Some([UNIT_ATTENTION, ..])) => {}
                (status, sense) => return Err(invalid(format!("the unit is not ready: status {status:02x}, sense {sense:02x?}"))),
            }
        }
        Err(invalid("the unit reports unit attentions without end"))
    }

    /// Sends a write of whole 512-byte blocks. If the target accepts no more commands, waits until it does.
    pub fn send_write(&mut self, cookie: u64, offset: u64, data: Vec<u8>) -> io::Result<()> {
        let mut cdb = [0; 16];
        cdb[0] = WRITE_16;
        cdb[2..10].copy_from_slice(&(offset / BLOCK_BYTES).to_be_bytes());
        cdb[10..14].copy_from_slice(&((data.len() as u64 / BLOCK_BYTES) as u32).to_be_bytes());
        self.send_command(cookie, &cdb, data)
    }

    /// Sends a flush of everything.
    pub fn send_flush(&mut self, cookie: u64) -> io::Result<()> {
        self.send_command(cookie, &SYNCHRONIZE_CACHE, Vec::new())
    }

    /// Waits for the end of any command in flight. Errors: the connection failed, or nothing is in flight.
    pub fn next_answer(&mut self) -> io::Result<Answer> {
        loop {
            if let Some(answer) = self.answered.pop_front() {
                return Ok(answer);
            }
            if self.in_flight.is_empty() {
                return Err(invalid("nothing is in flight"));
            }
            self.work()?;
        }
    }

    fn send_command(&mut self, cookie: u64, cdb: &[u8], data: Vec<u8>) -> io::Result<()> {
        // Command numbers wrap around.
        while (self.window.wrapping_sub(self.command_number) as i32) < 0 {
            self.work()?;
        }
        let tag = self.next_tag;
        self.next_tag = if tag >= NO_TAG - 1 { 1 } else { tag + 1 };
        let mut header = [0; HEADER_BYTES];
        // Final: no unsolicited data follows. Simple task.
        (header[0], header[1]) = (opcode::SCSI_COMMAND, 0x81 | u8::from(!data.is_empty()) << 5);
        // LUNs above 255 use the flat form.
        let lun = if self.lun < 256 { self.lun } else { 0x4000 | self.lun };
        header[8..10].copy_from_slice(&lun.to_be_bytes());
        header[16..20].copy_from_slice(&tag.to_be_bytes());
        header[20..24].copy_from_slice(&(data.len() as u32).to_be_bytes());
        header[24..28].copy_from_slice(&self.command_number.to_be_bytes());
        header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.command_number = self.command_number.wrapping_add(1);
        self.send(header, &data[..data.len().min(SEGMENT_BYTES)])?;
        self.in_flight.insert(tag, (cookie, data));
        Ok(())
    }

    /// Receives a PDU and handles it.
    fn work(&mut self) -> io::Result<()> {
        let (header, data) = self.receive()?;
        match header.opcode() {
            opcode::R2T => self.send_data(&header),
            opcode::SCSI_RESPONSE => {
                self.note_numbers(&header);
                let Some((cookie, written)) = self.in_flight.remove(&header.task_tag()) else {
                    return Err(invalid("the target answered a command that was never sent"));
                };
                // The sense data follows its length. A response other than "completed" has no status.
                let sense = data.get(2..16).map(|sense| [sense[2] & 15, sense[12], sense[13]]);
                let status = if header.0[2] == 0 { header.0[3] } else { u8::MAX };
                self.answered.push_back(Answer { cookie, data: written, status, sense });
                Ok(())
            }
            opcode::NOP_IN => {
                self.note_numbers(&header);
                if header.transfer_tag() == NO_TAG {
                    return Ok(());
                }
                // The target asks whether we are there.
                let mut answer = [0; HEADER_BYTES];
                (answer[0], answer[1]) = (opcode::NOP_OUT | 0x40, 0x80);
                answer[8..16].copy_from_slice(&header.0[8..16]);
                answer[16..20].copy_from_slice(&NO_TAG.to_be_bytes());
                answer[20..24].copy_from_slice(&header.transfer_tag().to_be_bytes());
                answer[24..28].copy_from_slice(&self.command_number.to_be_bytes());
                answer[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
                self.send(answer, &[])
            }
            opcode::ASYNC => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the target wants the session to end")),
            other => Err(invalid(format!("an unexpected PDU of type {other:02x}"))),
        }
    }

    /// Sends what an R2T asks for.
    fn send_data(&mut self, request: &Header) -> io::Result<()> {
        let Some((cookie, data)) = self.in_flight.remove(&request.task_tag()) else {
            return Err(invalid("the target asked for data of a command that was never sent"));
        };
        let begin = u32_at(&request.0, 40) as usize;
        let end = begin.saturating_add(u32_at(&request.0, 44) as usize);
        if begin > end || end > data.len() {
            return Err(invalid("the target asked for more data than the command has"));
        }
        let (mut at, mut number) = (begin, 0u32);
        while at < end {
            let next = end.min(at + SEGMENT_BYTES);
            let mut header = [0; HEADER_BYTES];
            (header[0], header[1]) = (opcode::DATA_OUT, u8::from(next == end) << 7);
            // LUN and both tags.
            header[8..24].copy_from_slice(&request.0[8..24]);
            header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
            header[36..40].copy_from_slice(&number.to_be_bytes());
            header[40..44].copy_from_slice(&(at as u32).to_be_bytes());
            self.send(header, &data[at..next])?;
            (at, number) = (next, number + 1);
        }
        self.in_flight.insert(request.task_tag(), (cookie, data));
        Ok(())
    }

    /// Takes the sequence numbers of an answer.
    fn note_numbers(&mut self, header: &Header) {
        self.expected_status = u32_at(&header.0, 24).wrapping_add(1);
        self.window = u32_at(&header.0, 32);
    }

    fn receive(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut header = Header([0; HEADER_BYTES]);
        self.stream.read_exact(&mut header.0)?;
        let length = header.data_bytes();
        if header.additional_bytes() > 0 || length > MAX_ANSWER_BYTES {
            return Err(invalid("a PDU is longer than negotiated"));
        }
        let mut data = vec![0; length.next_multiple_of(4)];
        self.stream.read_exact(&mut data)?;
        data.truncate(length);
        Ok((header, data))
    }

    /// Sends header, data and padding with one system call, as far as the socket takes them.
    fn send(&mut self, mut header: [u8; HEADER_BYTES], data: &[u8]) -> io::Result<()> {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let padding = &[0; 3][..data.len().wrapping_neg() & 3];
        let (mut first, mut second) = (&header[..], data);
        while !first.is_empty() || !second.is_empty() {
            let sent = match self.stream.get_mut().write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                sent => sent?,
            };
            let of_first = sent.min(first.len());
            (first, second) = (&first[of_first..], &second[sent - of_first..]);
        }
        self.stream.get_mut().write_all(padding)
    }
}
