//! Third-party copy: its limits, the page that reports them, and the results of earlier copies (SPC-4 sections 6.17 to
//! 6.19 and 7.8.17, SBC-3 section 6.6.9).

use super::reservation::Nexus;
use super::sense::{Code, Key, Sense};
use super::{Geometry, MAX_TRANSFER_BYTES};
use std::collections::VecDeque;

/// The most target descriptors of one EXTENDED COPY: source and destination.
pub(super) const MAX_TARGETS: usize = 2;
/// The most segment descriptors of one EXTENDED COPY.
pub(super) const MAX_SEGMENTS: usize = 16;
/// Bytes of a target descriptor.
pub(super) const TARGET_BYTES: usize = 32;
/// The most bytes of all descriptors. The longest segment descriptors have 32.
pub(super) const MAX_DESCRIPTOR_BYTES: usize = MAX_TARGETS * TARGET_BYTES + MAX_SEGMENTS * 32;
/// The longest segment, in bytes.
pub(super) const MAX_SEGMENT_BYTES: u32 = 1 << 30;
/// Descriptor type codes: block to block, the same in bytes, and targets by designator.
pub(super) const BLOCK_TO_BLOCK: u8 = 0x02;
pub(super) const BLOCK_TO_BLOCK_BYTES: u8 = 0x0a;
pub(super) const IDENTIFICATION: u8 = 0xe4;
/// The most ranges of a token.
pub(super) const MAX_RANGES: usize = 16;
/// The most bytes of all ranges of a token together.
pub(super) const MAX_TOKEN_BYTES: u64 = 256 << 20;
/// The best size for a token, in bytes.
const OPTIMAL_TOKEN_BYTES: u64 = 64 << 20;
/// How long a token may be unused, in seconds. While there are tokens, no unused space is reclaimed.
pub(super) const MAX_INACTIVITY: u32 = 60;
/// The same, if the initiator asks for nothing.
pub(super) const DEFAULT_INACTIVITY: u32 = 30;
/// The most copies at the same time.
const CONCURRENT_COPIES: u8 = 64;
/// The most results kept for a unit.
const MAX_RESULTS: usize = 256;

/// The third-party copy page.
pub(super) fn page(geometry: &Geometry) -> Vec<u8> {
    let mut out = Vec::new();
    let mut add = |kind: u16, body: &[u8]| {
        let length = body.len().next_multiple_of(4);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&(length as u16).to_be_bytes());
        out.extend_from_slice(body);
        out.resize(out.len() + length - body.len(), 0);
    };
    let blocks = |bytes: u64| (bytes / u64::from(geometry.logical)).to_be_bytes();
    // Limits of tokens.
    let mut limits = vec![0; 6];
    limits.extend_from_slice(&(MAX_RANGES as u16).to_be_bytes());
    limits.extend_from_slice(&MAX_INACTIVITY.to_be_bytes());
    limits.extend_from_slice(&DEFAULT_INACTIVITY.to_be_bytes());
    limits.extend_from_slice(&blocks(MAX_TOKEN_BYTES));
    limits.extend_from_slice(&blocks(OPTIMAL_TOKEN_BYTES));
    add(0x0000, &limits);
    // Commands, each with the number of its service actions.
    add(0x0001, &[10, 0x83, 3, 0x00, 0x10, 0x11, 0x84, 3, 0x00, 0x03, 0x07]);
    let mut parameters = vec![0; 4];
    parameters.extend_from_slice(&(MAX_TARGETS as u16).to_be_bytes());
    parameters.extend_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    parameters.extend_from_slice(&(MAX_DESCRIPTOR_BYTES as u32).to_be_bytes());
    // No inline data.
    parameters.resize(28, 0);
    add(0x0004, &parameters);
    add(0x0008, &[3, BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION]);
    let mut general = [u32::from(CONCURRENT_COPIES).to_be_bytes(); 2].concat();
    general.extend_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    general.push(geometry.logical.ilog2() as u8);
    general.resize(32, 0);
    add(0x8001, &general);
    out
}

/// RECEIVE COPY OPERATING PARAMETERS.
pub(super) fn parameters(geometry: &Geometry) -> Vec<u8> {
    let mut out = vec![0; 4];
    // Copies without a list identifier are supported.
    out.extend_from_slice(&[1, 0, 0, 0]);
    out.extend_from_slice(&(MAX_TARGETS as u16).to_be_bytes());
    out.extend_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    out.extend_from_slice(&(MAX_DESCRIPTOR_BYTES as u32).to_be_bytes());
    out.extend_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    // No inline data, no held data, no streams.
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&[0, 0, 0, CONCURRENT_COPIES, CONCURRENT_COPIES, geometry.logical.ilog2() as u8, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&[3, BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION]);
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

/// Returns the most blocks of one range of a token.
pub(super) fn max_range_blocks(geometry: &Geometry) -> u64 {
    u64::from(MAX_TRANSFER_BYTES / geometry.logical)
}

/// The list identifier of a copy. EXTENDED COPY and copies by token have separate identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListId {
    pub(super) nexus: Nexus,
    pub(super) is_token: bool,
    pub(super) number: u32,
}

/// The result of a copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) action: u8,
    pub(super) failure: Option<Sense>,
    /// Segments that are done.
    pub(super) segments: u16,
    /// The amount copied: bytes, or blocks with tokens.
    pub(super) transferred: u64,
    pub(super) token: Option<Vec<u8>>,
}

/// Copies under way, and the results of the latest ones.
#[derive(Debug, Default)]
pub(super) struct Copies {
    running: Vec<ListId>,
    done: VecDeque<(ListId, Outcome)>,
}

impl Copies {
    /// Begins a copy. Errors: its identifier belongs to a copy under way.
    pub(super) fn begin(&mut self, id: &ListId) -> Result<(), Sense> {
        if self.running.contains(id) {
            return Err(Sense::new(Key::IllegalRequest, Code::OPERATION_IN_PROGRESS));
        }
        self.done.retain(|(other, _)| other != id);
        self.running.push(id.clone());
        Ok(())
    }

    /// Ends a copy. `is_kept` says whether its result may be asked for.
    pub(super) fn end(&mut self, id: ListId, outcome: Outcome, is_kept: bool) {
        self.running.retain(|other| *other != id);
        if is_kept {
            self.done.truncate(MAX_RESULTS - 1);
            self.done.push_front((id, outcome));
        }
    }

    /// Forgets the copies of an initiator that is gone.
    pub(super) fn forget(&mut self, nexus: &Nexus) {
        self.done.retain(|(id, _)| id.nexus != *nexus);
    }

    /// RECEIVE COPY STATUS (LID1).
    pub(super) fn status(&self, id: &ListId) -> Result<Vec<u8>, Sense> {
        let mut out = vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        if self.running.contains(id) {
            return Ok(out);
        }
        let outcome = self.find(id)?;
        out[4] = if outcome.failure.is_none() { 1 } else { 2 };
        out[5..7].copy_from_slice(&outcome.segments.to_be_bytes());
        // In bytes, or in KiB, MiB, ... if the number of bytes is too large.
        let (mut count, mut unit) = (outcome.transferred, 0);
        while count > u64::from(u32::MAX) {
            (count, unit) = (count / 1024, unit + 1);
        }
        out[7] = unit;
        out[8..12].copy_from_slice(&(count as u32).to_be_bytes());
        Ok(out)
    }

    /// RECEIVE ROD TOKEN INFORMATION.
    pub(super) fn token_information(&self, id: &ListId) -> Result<Vec<u8>, Sense> {
        let mut out = vec![0; 32];
        if self.running.contains(id) {
            // The copy is under way, and was asked to continue after its status.
            out[5] = 0x11;
        } else {
            let outcome = self.find(id)?;
            let sense = outcome.failure.map_or_else(Vec::new, |failure| failure.encode(true));
            out[4] = outcome.action;
            out[5] = if outcome.failure.is_none() { 0x01 } else { 0x02 };
            // One status was sent.
            out[7] = 1;
            out[12] = if outcome.failure.is_none() { 0x00 } else { 0x02 };
            (out[13], out[14]) = (sense.len() as u8, sense.len() as u8);
            // The count is of blocks.
            out[15] = 0xf1;
            out[16..24].copy_from_slice(&outcome.transferred.to_be_bytes());
            out[24..26].copy_from_slice(&outcome.segments.to_be_bytes());
            out.extend_from_slice(&sense);
            match &outcome.token {
                Some(token) => {
                    out.extend_from_slice(&(token.len() as u32 + 2).to_be_bytes());
                    out.extend_from_slice(&[0, 0]);
                    out.extend_from_slice(token);
                }
                None => out.extend_from_slice(&[0; 4]),
            }
        }
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_be_bytes());
        Ok(out)
    }

    fn find(&self, id: &ListId) -> Result<&Outcome, Sense> {
        self.done.iter().find(|(other, _)| other == id).map(|(_, outcome)| outcome).ok_or(Sense::invalid_field(2, None))
    }
}
