//! Messages of backups over the network, as both ends decode them. What was decoded is encoded and decoded to the same.

use onefold_remote::services::messages::*;
use onefold_remote::services::server::parse_unfinished;
use std::fmt::Debug;

/// The first byte says what the rest is, the second its kind.
pub fn run(data: &[u8]) {
    let [which, kind, payload @ ..] = data else { return };
    let kind = *kind;
    match which % 11 {
        0 => same(Begin::decode(payload), |begin| Begin::decode(&begin.encode())),
        1 => same(Open::decode(payload), |open| Open::decode(&open.encode())),
        2 => same(BackupRequest::decode(kind, payload), |request| {
            let (kind, payload) = request.encode();
            BackupRequest::decode(kind, &payload)
        }),
        3 => same(BackupAnswer::decode(kind, payload), |answer| {
            let (kind, payload) = answer.encode();
            BackupAnswer::decode(kind, &payload)
        }),
        4 => {
            let digest_bytes = if kind & 0x80 == 0 { 32 } else { 20 };
            same(ContentsRequest::decode(kind & 0x7f, payload, digest_bytes), |request| {
                let (kind, payload) = request.encode(digest_bytes);
                ContentsRequest::decode(kind, &payload, digest_bytes)
            });
        }
        5 => same(Wanted::decode(payload), |wanted| Wanted::decode(&wanted.encode())),
        6 => same(ReadRequest::decode(kind, payload, 32), |request| {
            let (kind, payload) = request.encode(32);
            ReadRequest::decode(kind, &payload, 32)
        }),
        7 => same(ReadAnswer::decode(kind, payload, 32).map(plain), |answer| {
            let (kind, payload) = answer.encode(32);
            ReadAnswer::decode(kind, &payload, 32).map(plain)
        }),
        8 => {
            if let Some((account, names)) = parse_unfinished(payload) {
                assert!(account.len() + names.len() * 24 <= payload.len(), "more was read than is there");
            }
        }
        9 => {
            let plain = |listed| match listed {
                Listed::Records(Records(records)) => Listed::Records(Records(records.iter().map(without_root).collect())),
                Listed::Missing => Listed::Missing,
            };
            same(Listed::decode(kind, payload).map(plain), |listed| {
                let (kind, payload) = listed.encode();
                Listed::decode(kind, &payload)
            });
        }
        _ => same(Step::decode_all(payload), |steps| {
            let mut again = Vec::new();
            steps.iter().for_each(|step| step.encode(&mut again));
            Step::decode_all(&again)
        }),
    }
}

fn same<T: Debug + PartialEq, E: Debug>(decoded: Result<T, E>, again: impl FnOnce(&T) -> Result<T, E>) {
    let Ok(decoded) = decoded else { return };
    assert_eq!(again(&decoded).expect("what was encoded is decoded"), decoded);
}

/// Leaves out what a server never says: a root of the newer backup, and a long or torn text.
fn plain(answer: ReadAnswer) -> ReadAnswer {
    match answer {
        ReadAnswer::Opened { number, digest_bytes, backup, newer_partial } => {
            let newer_partial = newer_partial.map(|newer| Box::new(without_root(&newer)));
            ReadAnswer::Opened { number, digest_bytes, backup, newer_partial }
        }
        ReadAnswer::Failed(_) => ReadAnswer::Failed(String::new()),
        answer => answer,
    }
}
