//! What nodes say to each other once they have greeted (`docs/protocol.md`, section 7).
//!
//! All functions are pure and take any input, so that fuzzers can call them. A decoder checks each count against the
//! bytes that are there before it allocates, and refuses what is behind the end.

mod removal;

use crate::Refusal;
use onefold_cluster::{NodeNumber, Opening, Order, Prepared, Released, Report, Restated};
use onefold_engine::{Candidate, Claim, Delivery, PruneOptions, PruneReport, RemovalAnswer, RemovalStep, Search};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};
use onefold_oplog::{BATCH_MAX_BYTES, Partition, PartitionClass, Position};
use onefold_storage::{Address, ContainerId};
use removal::{copies, options, put_copies, put_options, put_removal_answer, put_report, put_step, removal_answer, report, step};

/// The most names of a claim or a release. One request of a stream (256 KiB) has 32 at 8 KiB for each chunk.
pub const MOST_NAMES: usize = 1024;
/// The most names of an answer to a collect. One with as many may have more behind it.
pub const MOST_COLLECTED: usize = 16 << 10;
/// The most chunks of a step of a removal: those of one removal.
pub const MOST_REMOVED: usize = onefold_engine::MAX_CANDIDATES;
/// The most problems of a node that frees space.
pub const MOST_PROBLEMS: usize = 100;
/// The longest text of a refusal.
pub const TEXT_BYTES: usize = 1024;

/// What a claim asks of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPart {
    /// The partition of the chunk index.
    pub partition: u16,
    /// The ownership that the sender knows.
    pub epoch: u64,
    /// The chunks.
    pub wanted: Vec<(Fingerprint, Search)>,
}

/// What members and their master say to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// A member tells what it has.
    Report(Report),
    /// The master asks for something.
    Order(Order),
    /// The answer to one of the orders.
    Prepared(Prepared),
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Who stores these chunks? (M4.4)
    Claim(Vec<ClaimPart>),
    /// The sender does not store these chunks that it has claimed.
    Release(Vec<Fingerprint>),
    /// Answer when a claim of this chunk may have another answer.
    Wait {
        /// The partition of the chunk index.
        partition: u16,
        /// The ownership that the sender knows.
        epoch: u64,
        /// The chunk.
        name: Fingerprint,
        /// Answer after so long in any case.
        most_ms: u32,
    },
    /// Somebody waits for what the receiver stores.
    Hurry,
    /// What the sender has logged for a partition of the receiver (M4.6).
    Deliver {
        /// The partition of the chunk index.
        partition: u16,
        /// The ownership that the sender knows.
        epoch: u64,
        /// What it has logged.
        delivery: Delivery,
    },
    /// The sender has opened its log, and holds no claim.
    Begin,
    /// Put this container into the bucket.
    Seal {
        /// The container.
        container: ContainerId,
        /// The ownership of its partition that the sender knows.
        epoch: u64,
    },
    /// Which chunks of this partition has the receiver claimed? The sender is its new owner.
    Collect {
        /// The partition of the chunk index.
        partition: u16,
        /// The sender's ownership.
        epoch: u64,
        /// Only those behind this one. `None`: from the first one on.
        after: Option<Fingerprint>,
    },
    /// A step of a removal of chunks.
    Remove(RemovalStep),
    /// Chunks in containers of the receiver were removed.
    Dead {
        /// The partition of the containers.
        partition: u16,
        /// The ownership that the sender knows.
        epoch: u64,
        /// The chunks.
        copies: Vec<Candidate>,
    },
    /// Free space.
    Reclaim {
        /// The number of the request: whoever asks again has the same one.
        request: u64,
        /// How much may stay unused.
        options: PruneOptions,
    },
    /// Between members and their master.
    Membership(Membership),
    /// The answer to a claim: for each chunk in its order.
    Claimed(Vec<Claim>),
    /// The answer to a delivery: up to where the owner has everything of the sender's log.
    Delivered(Position),
    /// The answer to a collect: the first [`MOST_COLLECTED`] of them, ascending.
    Collected(Vec<Fingerprint>),
    /// The answer to a step of a removal.
    Removing(RemovalAnswer),
    /// The answer to a request to free space. `None`: the node is at work.
    Reclaimed(Option<PruneReport>),
    /// The answer to every other request.
    Done,
    /// The other answer to every request.
    Refused(Refusal),
}

/// The kinds of messages, as the head of a frame has them.
pub mod kinds {
    /// [`Claim`](super::Message::Claim).
    pub const CLAIM: u8 = 0x10;
    /// [`Release`](super::Message::Release).
    pub const RELEASE: u8 = 0x11;
    /// [`Wait`](super::Message::Wait).
    pub const WAIT: u8 = 0x12;
    /// [`Hurry`](super::Message::Hurry).
    pub const HURRY: u8 = 0x13;
    /// [`Deliver`](super::Message::Deliver).
    pub const DELIVER: u8 = 0x14;
    /// [`Begin`](super::Message::Begin).
    pub const BEGIN: u8 = 0x15;
    /// [`Seal`](super::Message::Seal).
    pub const SEAL: u8 = 0x16;
    /// [`Collect`](super::Message::Collect).
    pub const COLLECT: u8 = 0x17;
    /// [`Remove`](super::Message::Remove).
    pub const REMOVE: u8 = 0x18;
    /// [`Dead`](super::Message::Dead).
    pub const DEAD: u8 = 0x19;
    /// [`Reclaim`](super::Message::Reclaim).
    pub const RECLAIM: u8 = 0x1a;
    /// A report of a member.
    pub const REPORT: u8 = 0x20;
    /// An order of the master.
    pub const ORDER: u8 = 0x21;
    /// The answer of a member.
    pub const PREPARED: u8 = 0x22;
    /// [`Claimed`](super::Message::Claimed).
    pub const CLAIMED: u8 = 0x80;
    /// [`Delivered`](super::Message::Delivered).
    pub const DELIVERED: u8 = 0x81;
    /// [`Done`](super::Message::Done).
    pub const DONE: u8 = 0x82;
    /// [`Refused`](super::Message::Refused).
    pub const REFUSED: u8 = 0x83;
    /// [`Collected`](super::Message::Collected).
    pub const COLLECTED: u8 = 0x84;
    /// [`Removing`](super::Message::Removing).
    pub const REMOVING: u8 = 0x85;
    /// [`Reclaimed`](super::Message::Reclaimed).
    pub const RECLAIMED: u8 = 0x86;

    /// All of them with their names.
    pub const ALL: [(u8, &str); 21] = [
        (CLAIM, "claim"),
        (RELEASE, "release"),
        (WAIT, "wait"),
        (HURRY, "hurry"),
        (DELIVER, "deliver"),
        (BEGIN, "begin"),
        (SEAL, "seal"),
        (COLLECT, "collect"),
        (REMOVE, "remove"),
        (DEAD, "dead"),
        (RECLAIM, "reclaim"),
        (REPORT, "report"),
        (ORDER, "order"),
        (PREPARED, "prepared"),
        (CLAIMED, "claimed"),
        (DELIVERED, "delivered"),
        (DONE, "done"),
        (REFUSED, "refused"),
        (COLLECTED, "collected"),
        (REMOVING, "removing"),
        (RECLAIMED, "reclaimed"),
    ];
}

/// The longest payload of most messages: a claim of [`MOST_NAMES`] chunks, each in a partition of its own, has less.
const USUAL_BYTES: usize = 128 << 10;
/// The longest delivery. It has what one batch of a log has for a partition, or less than 64 Ki changes of several. A
/// change takes at least 21 bytes in a batch, and less than twice that here.
const DELIVERY_BYTES: usize = 2 * BATCH_MAX_BYTES as usize;
/// The longest report: all partitions of a store.
const REPORT_BYTES: usize = 2 << 20;
/// The longest step of a removal: [`MOST_REMOVED`] chunks.
const REMOVED_BYTES: usize = 1 << 20;
/// The longest answer to a collect: [`MOST_COLLECTED`] chunks.
const COLLECTED_BYTES: usize = 1 << 20;

/// Returns the longest payload of a kind. `None`: there is no such kind.
pub fn limit_bytes(kind: u8) -> Option<usize> {
    kinds::ALL.iter().any(|(known, _)| *known == kind).then_some(match kind {
        kinds::DELIVER => DELIVERY_BYTES,
        kinds::REPORT => REPORT_BYTES,
        kinds::COLLECTED => COLLECTED_BYTES,
        kinds::REMOVE | kinds::DEAD => REMOVED_BYTES,
        _ => USUAL_BYTES,
    })
}

type Decoded<T> = Result<T, WireError>;

impl Message {
    /// Returns the kind.
    pub fn kind(&self) -> u8 {
        match self {
            Message::Claim(_) => kinds::CLAIM,
            Message::Release(_) => kinds::RELEASE,
            Message::Wait { .. } => kinds::WAIT,
            Message::Hurry => kinds::HURRY,
            Message::Deliver { .. } => kinds::DELIVER,
            Message::Begin => kinds::BEGIN,
            Message::Seal { .. } => kinds::SEAL,
            Message::Collect { .. } => kinds::COLLECT,
            Message::Remove(_) => kinds::REMOVE,
            Message::Dead { .. } => kinds::DEAD,
            Message::Reclaim { .. } => kinds::RECLAIM,
            Message::Membership(Membership::Report(_)) => kinds::REPORT,
            Message::Membership(Membership::Order(_)) => kinds::ORDER,
            Message::Membership(Membership::Prepared(_)) => kinds::PREPARED,
            Message::Claimed(_) => kinds::CLAIMED,
            Message::Delivered(_) => kinds::DELIVERED,
            Message::Done => kinds::DONE,
            Message::Refused(_) => kinds::REFUSED,
            Message::Collected(_) => kinds::COLLECTED,
            Message::Removing(_) => kinds::REMOVING,
            Message::Reclaimed(_) => kinds::RECLAIMED,
        }
    }

    /// Encodes the payload. `table` is the newest table that the sender knows, `digest_bytes` the length of the store's
    /// fingerprints.
    pub fn encode(&self, table: u64, digest_bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_varint(&mut out, table);
        let put_name = |out: &mut Vec<u8>, name: &Fingerprint| out.extend_from_slice(name.digest(digest_bytes));
        match self {
            Message::Claim(parts) => {
                out.push(digest_bytes as u8);
                put_varint(&mut out, parts.len() as u64);
                for ClaimPart { partition, epoch, wanted } in parts {
                    put_varint(&mut out, (*partition).into());
                    put_varint(&mut out, *epoch);
                    put_varint(&mut out, wanted.len() as u64);
                    for (name, search) in wanted {
                        put_name(&mut out, name);
                        put_search(&mut out, *search);
                    }
                }
            }
            Message::Release(names) | Message::Collected(names) => {
                out.push(digest_bytes as u8);
                put_varint(&mut out, names.len() as u64);
                names.iter().for_each(|name| put_name(&mut out, name));
            }
            Message::Wait { partition, epoch, name, most_ms } => {
                out.push(digest_bytes as u8);
                put_varint(&mut out, (*partition).into());
                put_varint(&mut out, *epoch);
                put_name(&mut out, name);
                put_varint(&mut out, (*most_ms).into());
            }
            Message::Deliver { partition, epoch, delivery } => put_delivery(&mut out, digest_bytes, *partition, *epoch, delivery),
            Message::Seal { container, epoch } => {
                put_varint(&mut out, container.bits());
                put_varint(&mut out, *epoch);
            }
            Message::Collect { partition, epoch, after } => {
                out.push(digest_bytes as u8);
                put_varint(&mut out, (*partition).into());
                put_varint(&mut out, *epoch);
                out.push(after.is_some().into());
                after.iter().for_each(|name| put_name(&mut out, name));
            }
            Message::Remove(step) => put_step(&mut out, digest_bytes, step),
            Message::Dead { partition, epoch, copies } => {
                out.push(digest_bytes as u8);
                put_varint(&mut out, (*partition).into());
                put_varint(&mut out, *epoch);
                put_copies(&mut out, digest_bytes, copies);
            }
            Message::Membership(message) => message.encode(&mut out),
            Message::Removing(answer) => put_removal_answer(&mut out, answer),
            Message::Reclaim { request, options } => {
                out.extend_from_slice(&request.to_le_bytes());
                put_options(&mut out, *options);
            }
            Message::Reclaimed(reclaimed) => {
                out.push(reclaimed.is_some().into());
                reclaimed.iter().for_each(|reclaimed| put_report(&mut out, reclaimed));
            }
            Message::Claimed(claims) => {
                put_varint(&mut out, claims.len() as u64);
                claims.iter().for_each(|claim| put_claim(&mut out, *claim));
            }
            Message::Delivered(upto) => put_varint(&mut out, upto.0),
            Message::Refused(refusal) => put_refusal(&mut out, refusal),
            Message::Hurry | Message::Begin | Message::Done => {}
        }
        out
    }

    /// Decodes a payload: the newest table that the sender knows, and the message.
    ///
    /// Errors: the kind is unknown, the payload is malformed, or something follows it.
    pub fn decode(kind: u8, payload: &[u8]) -> Decoded<(u64, Message)> {
        let mut reader = Reader::new(payload);
        let table = reader.varint()?;
        let message = Message::decode_body(kind, &mut reader)?;
        reader.end()?;
        Ok((table, message))
    }

    fn decode_body(kind: u8, reader: &mut Reader<'_>) -> Decoded<Message> {
        Ok(match kind {
            kinds::CLAIM => {
                let digest_bytes = digest_bytes(reader)?;
                let mut names = 0;
                let parts = list(reader, 3, |reader| {
                    let (partition, epoch) = (partition(reader)?, reader.varint()?);
                    let wanted = list(reader, digest_bytes + 1, |reader| Ok((name(reader, digest_bytes)?, search(reader)?)))?;
                    names += wanted.len();
                    Ok(ClaimPart { partition, epoch, wanted })
                })?;
                at_most("names of a claim", names, MOST_NAMES, reader)?;
                Message::Claim(parts)
            }
            kinds::RELEASE => {
                let digest_bytes = digest_bytes(reader)?;
                let names = list(reader, digest_bytes, |reader| name(reader, digest_bytes))?;
                at_most("names of a release", names.len(), MOST_NAMES, reader)?;
                Message::Release(names)
            }
            kinds::WAIT => {
                let digest_bytes = digest_bytes(reader)?;
                let (partition, epoch) = (partition(reader)?, reader.varint()?);
                let name = name(reader, digest_bytes)?;
                let most_ms = reader.varint_to("milliseconds", u32::MAX.into())? as u32;
                Message::Wait { partition, epoch, name, most_ms }
            }
            kinds::HURRY => Message::Hurry,
            kinds::DELIVER => {
                let digest_bytes = digest_bytes(reader)?;
                let (partition, epoch) = (partition(reader)?, reader.varint()?);
                let (behind, upto) = (optional(reader)?.map(Position), Position(reader.varint()?));
                let places = list(reader, digest_bytes + 8, |reader| Ok((name(reader, digest_bytes)?, reader.u64()?)))?;
                let deltas = list(reader, digest_bytes + 1, |reader| Ok((name(reader, digest_bytes)?, reader.signed()?)))?;
                Message::Deliver { partition, epoch, delivery: Delivery { behind, upto, places, deltas } }
            }
            kinds::BEGIN => Message::Begin,
            kinds::SEAL => {
                let bits = reader.varint_to("container", (1 << 48) - 1)?;
                Message::Seal { container: ContainerId::from_bits(bits), epoch: reader.varint()? }
            }
            kinds::COLLECT => {
                let digest_bytes = digest_bytes(reader)?;
                let (partition, epoch) = (partition(reader)?, reader.varint()?);
                let after = flag(reader)?.then(|| name(reader, digest_bytes)).transpose()?;
                Message::Collect { partition, epoch, after }
            }
            kinds::REMOVE => Message::Remove(step(reader)?),
            kinds::DEAD => {
                let digest_bytes = digest_bytes(reader)?;
                let (partition, epoch) = (partition(reader)?, reader.varint()?);
                Message::Dead { partition, epoch, copies: copies(reader, digest_bytes)? }
            }
            kinds::RECLAIM => Message::Reclaim { request: reader.u64()?, options: options(reader)? },
            kinds::RECLAIMED => Message::Reclaimed(flag(reader)?.then(|| report(reader)).transpose()?),
            kinds::REMOVING => Message::Removing(removal_answer(reader)?),
            kinds::REPORT | kinds::ORDER | kinds::PREPARED => Message::Membership(Membership::decode(kind, reader)?),
            kinds::CLAIMED => {
                let claims = list(reader, 1, claim)?;
                at_most("answers to a claim", claims.len(), MOST_NAMES, reader)?;
                Message::Claimed(claims)
            }
            kinds::COLLECTED => {
                let digest_bytes = digest_bytes(reader)?;
                let names = list(reader, digest_bytes, |reader| name(reader, digest_bytes))?;
                at_most("answers to a collect", names.len(), MOST_COLLECTED, reader)?;
                Message::Collected(names)
            }
            kinds::DELIVERED => Message::Delivered(Position(reader.varint()?)),
            kinds::DONE => Message::Done,
            kinds::REFUSED => Message::Refused(refusal(reader)?),
            _ => return Err(unknown("kind of a message", kind, reader)),
        })
    }
}

impl Membership {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Membership::Report(Report { node, opening, table, is_leaving, released, restated }) => {
                put_varint(out, node.0.into());
                put_varint(out, opening.0);
                put_optional(out, *table);
                out.push((*is_leaving).into());
                let mut put = |entries: Vec<(Partition, u64, Position)>| {
                    put_varint(out, entries.len() as u64);
                    for (partition, epoch, position) in entries {
                        put_partition(out, partition);
                        put_varint(out, epoch);
                        put_varint(out, position.0);
                    }
                };
                put(released.iter().map(|released| (released.partition, released.epoch, released.upto)).collect());
                put(restated.iter().map(|restated| (restated.partition, restated.epoch, restated.since)).collect());
            }
            Membership::Order(Order::Prepare { table, at_least }) => {
                out.push(0);
                put_varint(out, *table);
                put_varint(out, at_least.0);
            }
            Membership::Order(Order::OpenAgain { opening }) => {
                out.push(1);
                put_varint(out, opening.0);
            }
            Membership::Order(Order::Release { partition, epoch }) => {
                out.push(2);
                put_partition(out, *partition);
                put_varint(out, *epoch);
            }
            Membership::Prepared(Prepared { node, opening, table, end }) => {
                put_varint(out, node.0.into());
                [opening.0, *table, end.0].into_iter().for_each(|number| put_varint(out, number));
            }
        }
    }

    fn decode(kind: u8, reader: &mut Reader<'_>) -> Decoded<Membership> {
        let node = |reader: &mut Reader<'_>| Ok(NodeNumber(reader.varint_to("node", u32::MAX.into())? as u32));
        let entry = |reader: &mut Reader<'_>| Ok((of_any_class(reader)?, reader.varint()?, Position(reader.varint()?)));
        Ok(match kind {
            kinds::REPORT => {
                let (node, opening, table) = (node(reader)?, Opening(reader.varint()?), optional(reader)?);
                let is_leaving = flag(reader)?;
                let released = list(reader, 4, |reader| entry(reader).map(|(partition, epoch, upto)| Released { partition, epoch, upto }))?;
                let restated =
                    list(reader, 4, |reader| entry(reader).map(|(partition, epoch, since)| Restated { partition, epoch, since }))?;
                Membership::Report(Report { node, opening, table, is_leaving, released, restated })
            }
            kinds::ORDER => Membership::Order(match reader.u8()? {
                0 => Order::Prepare { table: reader.varint()?, at_least: Position(reader.varint()?) },
                1 => Order::OpenAgain { opening: Opening(reader.varint()?) },
                2 => Order::Release { partition: of_any_class(reader)?, epoch: reader.varint()? },
                other => return Err(unknown("order", other, reader)),
            }),
            _ => {
                let (node, opening, table) = (node(reader)?, Opening(reader.varint()?), reader.varint()?);
                Membership::Prepared(Prepared { node, opening, table, end: Position(reader.varint()?) })
            }
        })
    }
}

/// Encodes the payload of a [`Message::Deliver`].
pub(crate) fn encode_delivery(table: u64, digest_bytes: usize, partition: u16, epoch: u64, delivery: &Delivery) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + delivery.places.len() * (digest_bytes + 8) + delivery.deltas.len() * (digest_bytes + 1));
    put_varint(&mut out, table);
    put_delivery(&mut out, digest_bytes, partition, epoch, delivery);
    out
}

fn put_delivery(out: &mut Vec<u8>, digest_bytes: usize, partition: u16, epoch: u64, delivery: &Delivery) {
    out.push(digest_bytes as u8);
    put_varint(out, partition.into());
    put_varint(out, epoch);
    put_optional(out, delivery.behind.map(|behind| behind.0));
    put_varint(out, delivery.upto.0);
    put_varint(out, delivery.places.len() as u64);
    for (name, address) in &delivery.places {
        out.extend_from_slice(name.digest(digest_bytes));
        out.extend_from_slice(&address.to_le_bytes());
    }
    put_varint(out, delivery.deltas.len() as u64);
    for (name, delta) in &delivery.deltas {
        out.extend_from_slice(name.digest(digest_bytes));
        put_signed(out, *delta);
    }
}

fn flag(reader: &mut Reader<'_>) -> Decoded<bool> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(unknown("flag", other, reader)),
    }
}

fn put_optional(out: &mut Vec<u8>, number: Option<u64>) {
    out.push(number.is_some().into());
    if let Some(number) = number {
        put_varint(out, number);
    }
}

fn optional(reader: &mut Reader<'_>) -> Decoded<Option<u64>> {
    flag(reader)?.then(|| reader.varint()).transpose()
}

fn put_partition(out: &mut Vec<u8>, Partition { class, number }: Partition) {
    out.push(class as u8);
    put_varint(out, number.into());
}

fn of_any_class(reader: &mut Reader<'_>) -> Decoded<Partition> {
    let class = match reader.u8()? {
        1 => PartitionClass::ChunkIndex,
        2 => PartitionClass::ObjectIndex,
        3 => PartitionClass::Container,
        other => return Err(unknown("class of a partition", other, reader)),
    };
    Ok(Partition { class, number: partition(reader)? })
}

fn partition(reader: &mut Reader<'_>) -> Decoded<u16> {
    Ok(reader.varint_to("partition", u64::from(Partition::ANY) - 1)? as u16)
}

fn put_search(out: &mut Vec<u8>, search: Search) {
    match search {
        Search::Stored => out.push(0),
        Search::Denied => out.push(1),
        Search::Not(address) => {
            out.push(2);
            out.extend_from_slice(&address.bits().to_le_bytes());
        }
        Search::Unasked => out.push(3),
    }
}

fn search(reader: &mut Reader<'_>) -> Decoded<Search> {
    Ok(match reader.u8()? {
        0 => Search::Stored,
        1 => Search::Denied,
        2 => Search::Not(Address::from_bits(reader.u64()?)),
        3 => Search::Unasked,
        other => return Err(unknown("search", other, reader)),
    })
}

fn put_claim(out: &mut Vec<u8>, claim: Claim) {
    match claim {
        Claim::Mine => out.push(0),
        // It is nobody's to refer to before it is durable.
        Claim::Theirs | Claim::Placed(_) => out.push(1),
        Claim::Known(address) => {
            out.push(2);
            out.extend_from_slice(&address.bits().to_le_bytes());
        }
    }
}

fn claim(reader: &mut Reader<'_>) -> Decoded<Claim> {
    Ok(match reader.u8()? {
        0 => Claim::Mine,
        1 => Claim::Theirs,
        2 => Claim::Known(Address::from_bits(reader.u64()?)),
        other => return Err(unknown("answer to a claim", other, reader)),
    })
}

fn put_refusal(out: &mut Vec<u8>, refusal: &Refusal) {
    let (code, text) = match refusal {
        Refusal::NotOwned => (0, ""),
        Refusal::Later(text) => (1, &**text),
        Refusal::Refused(text) => (2, &**text),
    };
    out.push(code);
    put_bytes(out, cut(text).as_bytes());
}

/// Returns as much of a text as may be sent.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn text(what: &'static str, reader: &mut Reader<'_>) -> Decoded<String> {
    let bytes = reader.bytes()?;
    at_most(what, bytes.len(), TEXT_BYTES, reader)?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn refusal(reader: &mut Reader<'_>) -> Decoded<Refusal> {
    let code = reader.u8()?;
    let text = text("text of a refusal", reader)?;
    match code {
        0 if text.is_empty() => Ok(Refusal::NotOwned),
        1 => Ok(Refusal::Later(text)),
        2 => Ok(Refusal::Refused(text)),
        other => Err(unknown("refusal", other, reader)),
    }
}

fn digest_bytes(reader: &mut Reader<'_>) -> Decoded<usize> {
    match reader.u8()? {
        length @ (20 | 32) => Ok(length.into()),
        other => Err(unknown("length of a fingerprint", other, reader)),
    }
}

fn name(reader: &mut Reader<'_>, digest_bytes: usize) -> Decoded<Fingerprint> {
    Ok(Fingerprint::from_digest(reader.take(digest_bytes)?))
}

/// Reads a count, which the bytes that are left must allow, and the items.
fn list<T>(reader: &mut Reader<'_>, item_bytes: usize, mut item: impl FnMut(&mut Reader<'_>) -> Decoded<T>) -> Decoded<Vec<T>> {
    let count = reader.count("count", item_bytes)?;
    (0..count).map(|_| item(reader)).collect()
}

fn at_most(what: &'static str, count: usize, limit: usize, reader: &Reader<'_>) -> Decoded<()> {
    if count <= limit {
        return Ok(());
    }
    Err(WireError::OutOfRange { what, value: count as u64, offset_bytes: reader.position() })
}

fn unknown(what: &'static str, value: u8, reader: &Reader<'_>) -> WireError {
    WireError::OutOfRange { what, value: value.into(), offset_bytes: reader.position() }
}

#[cfg(test)]
mod tests;
