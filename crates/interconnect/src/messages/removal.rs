//! Messages about the removal of chunks, and about the space that this frees.

use super::{Decoded, MOST_PROBLEMS, MOST_REMOVED, at_most, cut, digest_bytes, flag, list, name, text, unknown};
use onefold_engine::{Candidate, PruneOptions, PruneReport, PruneRequests, RemovalAnswer, RemovalStep};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use onefold_storage::Address;

pub(super) fn put_step(out: &mut Vec<u8>, digest_bytes: usize, step: &RemovalStep) {
    match step {
        RemovalStep::Permit => out.push(0),
        RemovalStep::Watch { removal, names } => {
            out.push(1);
            out.extend_from_slice(&removal.to_le_bytes());
            out.push(digest_bytes as u8);
            put_varint(out, names.len() as u64);
            names.iter().for_each(|name| out.extend_from_slice(name.digest(digest_bytes)));
        }
        RemovalStep::Settle { removal } => {
            out.push(2);
            out.extend_from_slice(&removal.to_le_bytes());
        }
        RemovalStep::Doom { removal, copies } => {
            out.push(3);
            out.extend_from_slice(&removal.to_le_bytes());
            out.push(digest_bytes as u8);
            put_copies(out, digest_bytes, copies);
        }
        RemovalStep::End { removal } => {
            out.push(4);
            out.extend_from_slice(&removal.to_le_bytes());
        }
    }
}

pub(super) fn step(reader: &mut Reader<'_>) -> Decoded<RemovalStep> {
    Ok(match reader.u8()? {
        0 => RemovalStep::Permit,
        1 => {
            let (removal, digest_bytes) = (reader.u64()?, digest_bytes(reader)?);
            let names = list(reader, digest_bytes, |reader| name(reader, digest_bytes))?;
            at_most("chunks of a removal", names.len(), MOST_REMOVED, reader)?;
            RemovalStep::Watch { removal, names }
        }
        2 => RemovalStep::Settle { removal: reader.u64()? },
        3 => {
            let (removal, digest_bytes) = (reader.u64()?, digest_bytes(reader)?);
            RemovalStep::Doom { removal, copies: copies(reader, digest_bytes)? }
        }
        4 => RemovalStep::End { removal: reader.u64()? },
        other => return Err(unknown("step of a removal", other, reader)),
    })
}

pub(super) fn put_copies(out: &mut Vec<u8>, digest_bytes: usize, copies: &[Candidate]) {
    put_varint(out, copies.len() as u64);
    for copy in copies {
        out.extend_from_slice(copy.fingerprint.digest(digest_bytes));
        out.extend_from_slice(&copy.address.bits().to_le_bytes());
    }
}

pub(super) fn copies(reader: &mut Reader<'_>, digest_bytes: usize) -> Decoded<Vec<Candidate>> {
    let copies = list(reader, digest_bytes + 8, |reader| {
        Ok(Candidate { fingerprint: name(reader, digest_bytes)?, address: Address::from_bits(reader.u64()?) })
    })?;
    at_most("chunks of a removal", copies.len(), MOST_REMOVED, reader)?;
    Ok(copies)
}

pub(super) fn put_removal_answer(out: &mut Vec<u8>, answer: &RemovalAnswer) {
    match answer {
        RemovalAnswer::Done => out.push(0),
        RemovalAnswer::Permitted => out.push(1),
        RemovalAnswer::NotYet => out.push(2),
        RemovalAnswer::Kept(why) => {
            out.push(3);
            put_bytes(out, cut(why).as_bytes());
        }
        RemovalAnswer::Undelivered(why) => {
            out.push(5);
            put_bytes(out, cut(why).as_bytes());
        }
        RemovalAnswer::Held(why) => {
            out.push(6);
            put_bytes(out, cut(why).as_bytes());
        }
        RemovalAnswer::Doomed(doomed) => {
            out.push(4);
            put_varint(out, doomed.len() as u64);
            out.extend(doomed.iter().map(|doomed| u8::from(*doomed)));
        }
    }
}

pub(super) fn removal_answer(reader: &mut Reader<'_>) -> Decoded<RemovalAnswer> {
    Ok(match reader.u8()? {
        0 => RemovalAnswer::Done,
        1 => RemovalAnswer::Permitted,
        2 => RemovalAnswer::NotYet,
        3 => RemovalAnswer::Kept(text("reason of a removal", reader)?),
        4 => {
            let doomed = list(reader, 1, flag)?;
            at_most("answers to a removal", doomed.len(), MOST_REMOVED, reader)?;
            RemovalAnswer::Doomed(doomed)
        }
        5 => RemovalAnswer::Undelivered(text("reason of a removal", reader)?),
        6 => RemovalAnswer::Held(text("reason of a removal", reader)?),
        other => return Err(unknown("answer to a removal", other, reader)),
    })
}

pub(super) fn put_options(out: &mut Vec<u8>, options: PruneOptions) {
    out.extend_from_slice(&options.max_unused.to_bits().to_le_bytes());
    out.extend_from_slice(&options.max_fill.to_bits().to_le_bytes());
    out.push(options.dry_run.into());
}

pub(super) fn options(reader: &mut Reader<'_>) -> Decoded<PruneOptions> {
    Ok(PruneOptions { max_unused: share(reader)?, max_fill: share(reader)?, dry_run: flag(reader)? })
}

pub(super) fn put_report(out: &mut Vec<u8>, report: &PruneReport) {
    let PruneReport { chunks, chunk_bytes, containers_before, containers_after, freed_bytes, unused_bytes, raw_bytes, .. } = report;
    let numbers = [chunks, chunk_bytes, containers_before, containers_after, freed_bytes, unused_bytes, raw_bytes];
    numbers.into_iter().for_each(|number| put_varint(out, *number));
    let problems = &report.problems[..report.problems.len().min(MOST_PROBLEMS)];
    put_varint(out, problems.len() as u64);
    problems.iter().for_each(|problem| put_bytes(out, cut(problem).as_bytes()));
    out.push(report.kept_for.is_some().into());
    report.kept_for.iter().for_each(|whom| put_bytes(out, cut(whom).as_bytes()));
    out.push(report.is_complete.into());
    out.push(report.requests.is_some().into());
    if let Some(PruneRequests { puts, gets, lists, deletions, read_bytes, written_bytes }) = report.requests {
        [puts, gets, lists, deletions, read_bytes, written_bytes].into_iter().for_each(|number| put_varint(out, number));
    }
}

pub(super) fn report(reader: &mut Reader<'_>) -> Decoded<PruneReport> {
    Ok(PruneReport {
        chunks: reader.varint()?,
        chunk_bytes: reader.varint()?,
        containers_before: reader.varint()?,
        containers_after: reader.varint()?,
        freed_bytes: reader.varint()?,
        unused_bytes: reader.varint()?,
        raw_bytes: reader.varint()?,
        problems: {
            let problems = list(reader, 1, |reader| text("problem", reader))?;
            at_most("problems", problems.len(), MOST_PROBLEMS, reader)?;
            problems
        },
        kept_for: flag(reader)?.then(|| text("reader", reader)).transpose()?,
        is_complete: flag(reader)?,
        requests: flag(reader)?.then(|| requests(reader)).transpose()?,
    })
}

fn requests(reader: &mut Reader<'_>) -> Decoded<PruneRequests> {
    Ok(PruneRequests {
        puts: reader.varint()?,
        gets: reader.varint()?,
        lists: reader.varint()?,
        deletions: reader.varint()?,
        read_bytes: reader.varint()?,
        written_bytes: reader.varint()?,
    })
}

/// Reads a share, from 0 to 1.
fn share(reader: &mut Reader<'_>) -> Decoded<f64> {
    let (offset_bytes, bits) = (reader.position(), reader.u64()?);
    let share = f64::from_bits(bits);
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(WireError::OutOfRange { what: "share", value: bits, offset_bytes }) }
}
