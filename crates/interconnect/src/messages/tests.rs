use super::*;
use onefold_engine::PruneRequests;
use proptest::collection::vec;
use proptest::prelude::*;

fn any_name(digest_bytes: usize) -> impl Strategy<Value = Fingerprint> {
    vec(any::<u8>(), digest_bytes).prop_map(|digest| Fingerprint::from_digest(&digest))
}

fn any_search() -> impl Strategy<Value = Search> {
    prop_oneof![
        Just(Search::Stored),
        Just(Search::Denied),
        Just(Search::Unasked),
        any::<u64>().prop_map(|bits| Search::Not(Address::from_bits(bits))),
    ]
}

fn any_claim() -> impl Strategy<Value = Claim> {
    prop_oneof![Just(Claim::Mine), Just(Claim::Theirs), any::<u64>().prop_map(|bits| Claim::Known(Address::from_bits(bits)))]
}

fn any_partition() -> impl Strategy<Value = Partition> {
    let class = prop_oneof![Just(PartitionClass::ChunkIndex), Just(PartitionClass::ObjectIndex), Just(PartitionClass::Container)];
    (class, 0..Partition::ANY).prop_map(|(class, number)| Partition { class, number })
}

fn any_position() -> impl Strategy<Value = Position> {
    any::<u64>().prop_map(Position)
}

fn any_membership() -> impl Strategy<Value = Membership> {
    let entries = || vec((any_partition(), any::<u64>(), any_position()), 0..5);
    let report = (any::<u32>(), any::<u64>(), any::<Option<u64>>(), any::<bool>(), entries(), entries());
    let report = report.prop_map(|(node, opening, table, is_leaving, released, restated)| {
        Membership::Report(Report {
            node: NodeNumber(node),
            opening: Opening(opening),
            table,
            is_leaving,
            released: released.into_iter().map(|(partition, epoch, upto)| Released { partition, epoch, upto }).collect(),
            restated: restated.into_iter().map(|(partition, epoch, since)| Restated { partition, epoch, since }).collect(),
        })
    });
    let order = prop_oneof![
        (any::<u64>(), any_position()).prop_map(|(table, at_least)| Order::Prepare { table, at_least }),
        any::<u64>().prop_map(|opening| Order::OpenAgain { opening: Opening(opening) }),
        (any_partition(), any::<u64>()).prop_map(|(partition, epoch)| Order::Release { partition, epoch }),
    ];
    let prepared = (any::<u32>(), any::<u64>(), any::<u64>(), any_position()).prop_map(|(node, opening, table, end)| {
        Membership::Prepared(Prepared { node: NodeNumber(node), opening: Opening(opening), table, end })
    });
    prop_oneof![report, order.prop_map(Membership::Order), prepared]
}

fn any_refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![Just(Refusal::NotOwned), "\\PC{0,40}".prop_map(Refusal::Later), "\\PC{0,40}".prop_map(Refusal::Refused)]
}

/// A message and the length of fingerprints in it.
fn any_message() -> impl Strategy<Value = (usize, Message)> {
    prop_oneof![Just(20usize), Just(32)].prop_flat_map(|bytes| {
        let part = (0..Partition::ANY, any::<u64>(), vec((any_name(bytes), any_search()), 0..6));
        let part = part.prop_map(|(partition, epoch, wanted)| ClaimPart { partition, epoch, wanted });
        let wait = (0..Partition::ANY, any::<u64>(), any_name(bytes), any::<u32>())
            .prop_map(|(partition, epoch, name, most_ms)| Message::Wait { partition, epoch, name, most_ms });
        let changes = (vec((any_name(bytes), any::<u64>()), 0..6), vec((any_name(bytes), any::<i64>()), 0..6));
        let delivery = (any::<Option<u64>>(), any_position(), changes).prop_map(|(behind, upto, (places, deltas))| Delivery {
            behind: behind.map(Position),
            upto,
            places,
            deltas,
        });
        let deliver = (0..Partition::ANY, any::<u64>(), delivery).prop_map(|(partition, epoch, delivery)| Message::Deliver {
            partition,
            epoch,
            delivery,
        });
        let seal = (any::<u64>(), any::<u64>()).prop_map(|(bits, epoch)| Message::Seal { container: ContainerId::from_bits(bits), epoch });
        let collect = (0..Partition::ANY, any::<u64>(), proptest::option::of(any_name(bytes)))
            .prop_map(|(partition, epoch, after)| Message::Collect { partition, epoch, after });
        let copies = move || vec((any_name(bytes), any::<u64>()), 0..6);
        let candidates = |copies: Vec<(Fingerprint, u64)>| -> Vec<Candidate> {
            copies.into_iter().map(|(fingerprint, bits)| Candidate { fingerprint, address: Address::from_bits(bits) }).collect()
        };
        let dead = (0..Partition::ANY, any::<u64>(), copies()).prop_map(move |(partition, epoch, copies)| Message::Dead {
            partition,
            epoch,
            copies: candidates(copies),
        });
        let step = prop_oneof![
            Just(RemovalStep::Permit),
            (any::<u64>(), vec(any_name(bytes), 0..6)).prop_map(|(removal, names)| RemovalStep::Watch { removal, names }),
            any::<u64>().prop_map(|removal| RemovalStep::Settle { removal }),
            (any::<u64>(), copies()).prop_map(move |(removal, copies)| RemovalStep::Doom { removal, copies: candidates(copies) }),
            any::<u64>().prop_map(|removal| RemovalStep::End { removal }),
        ];
        let removing = prop_oneof![
            Just(RemovalAnswer::Done),
            Just(RemovalAnswer::Permitted),
            Just(RemovalAnswer::NotYet),
            "\\PC{0,40}".prop_map(RemovalAnswer::Kept),
            "\\PC{0,40}".prop_map(RemovalAnswer::Undelivered),
            "\\PC{0,40}".prop_map(RemovalAnswer::Held),
            vec(any::<bool>(), 0..9).prop_map(RemovalAnswer::Doomed),
        ];
        let options = (0.0..=1.0f64, 0.0..=1.0f64, any::<bool>()).prop_map(|(max_unused, max_fill, dry_run)| PruneOptions {
            max_unused,
            max_fill,
            dry_run,
        });
        let reclaim = (any::<u64>(), options).prop_map(|(request, options)| Message::Reclaim { request, options });
        let texts = (vec("\\PC{0,20}", 0..4), proptest::option::of("\\PC{0,20}"));
        let requests = proptest::option::of(any::<[u64; 6]>().prop_map(|[puts, gets, lists, deletions, read_bytes, written_bytes]| {
            PruneRequests { puts, gets, lists, deletions, read_bytes, written_bytes }
        }));
        let reclaimed =
            (any::<[u64; 7]>(), texts, any::<bool>(), requests).prop_map(|(numbers, (problems, kept_for), is_complete, requests)| {
                let [chunks, chunk_bytes, containers_before, containers_after, freed_bytes, unused_bytes, raw_bytes] = numbers;
                PruneReport {
                    chunks,
                    chunk_bytes,
                    containers_before,
                    containers_after,
                    freed_bytes,
                    unused_bytes,
                    raw_bytes,
                    problems,
                    kept_for,
                    is_complete,
                    requests,
                }
            });
        let message = prop_oneof![
            reclaim,
            proptest::option::of(reclaimed).prop_map(Message::Reclaimed),
            dead,
            step.prop_map(Message::Remove),
            removing.prop_map(Message::Removing),
            collect,
            vec(any_name(bytes), 0..8).prop_map(Message::Collected),
            vec(part, 0..4).prop_map(Message::Claim),
            vec(any_name(bytes), 0..8).prop_map(Message::Release),
            wait,
            deliver,
            seal,
            Just(Message::Hurry),
            Just(Message::Begin),
            Just(Message::Done),
            any_membership().prop_map(Message::Membership),
            vec(any_claim(), 0..8).prop_map(Message::Claimed),
            any_position().prop_map(Message::Delivered),
            any_refusal().prop_map(Message::Refused),
        ];
        (Just(bytes), message)
    })
}

proptest! {
    #[test]
    fn a_message_survives_and_nothing_may_follow_it((bytes, message) in any_message(), table: u64) {
        let kind = message.kind();
        let mut payload = message.encode(table, bytes);
        prop_assert!(payload.len() <= limit_bytes(kind).unwrap());
        prop_assert_eq!(Message::decode(kind, &payload), Ok((table, message)));
        payload.push(0);
        prop_assert!(Message::decode(kind, &payload).is_err());
    }

    #[test]
    fn a_message_that_ends_early_is_refused((bytes, message) in any_message(), table: u64) {
        let payload = message.encode(table, bytes);
        for length in 0..payload.len() {
            prop_assert!(Message::decode(message.kind(), &payload[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_flipped_bit_makes_an_error_or_another_message((bytes, message) in any_message(), table: u64, at: prop::sample::Index) {
        let mut payload = message.encode(table, bytes);
        let at = at.index(payload.len() * 8);
        payload[at / 8] ^= 1 << (at % 8);
        prop_assert_ne!(Message::decode(message.kind(), &payload), Ok((table, message)));
    }

    #[test]
    fn garbage_of_every_kind_is_refused_or_a_message_without_a_panic(payload in vec(any::<u8>(), 0..300)) {
        for (kind, _) in kinds::ALL {
            let _ = Message::decode(kind, &payload);
        }
    }
}

#[test]
fn counts_that_the_bytes_do_not_allow_are_refused_before_anything_is_allocated() {
    for kind in [kinds::CLAIM, kinds::RELEASE, kinds::CLAIMED] {
        let digest: &[u8] = if kind == kinds::CLAIMED { &[] } else { &[32] };
        let payload = [&[0][..], digest, &[0xff, 0xff, 0xff, 0xff, 0x7f]].concat();
        assert!(matches!(Message::decode(kind, &payload), Err(WireError::OutOfRange { what: "count", .. })), "{kind:#x}");
    }
}

#[test]
fn more_names_than_the_limit_are_refused_and_a_full_claim_fits_a_frame() {
    let claim = |count: usize| {
        let part = |_| ClaimPart {
            partition: 9999,
            epoch: u64::MAX,
            wanted: vec![(Fingerprint::from_digest(&[7; 32]), Search::Not(Address::from_bits(1)))],
        };
        Message::Claim((0..count).map(part).collect())
    };
    let full = claim(MOST_NAMES).encode(u64::MAX, 32);
    assert!(full.len() <= limit_bytes(kinds::CLAIM).unwrap() && Message::decode(kinds::CLAIM, &full).is_ok());
    assert!(Message::decode(kinds::CLAIM, &claim(MOST_NAMES + 1).encode(0, 32)).is_err());
    let names = vec![Fingerprint::from_digest(&[7; 32]); MOST_NAMES + 1];
    assert!(Message::decode(kinds::RELEASE, &Message::Release(names).encode(0, 32)).is_err());
}

#[test]
fn a_text_is_cut_at_its_limit() {
    let payload = Message::Refused(Refusal::Later("é".repeat(TEXT_BYTES))).encode(3, 32);
    let (table, Message::Refused(Refusal::Later(text))) = Message::decode(kinds::REFUSED, &payload).unwrap() else { panic!() };
    assert_eq!((table, text.len()), (3, TEXT_BYTES));
}
