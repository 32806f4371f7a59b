//! The rules of the chain as control flow.

use super::*;
use parking_lot::Mutex;

/// Answers from a script: one verdict per first byte of the data. It notes which chunks it was asked about.
#[derive(Debug)]
struct Scripted {
    name: &'static str,
    max: Verdict,
    answers: fn(u8) -> Option<Verdict>,
    asked: Mutex<Vec<u8>>,
    updated: Mutex<usize>,
    aborted: Mutex<usize>,
}

impl Scripted {
    fn new(name: &'static str, max: Verdict, answers: fn(u8) -> Option<Verdict>) -> Arc<Scripted> {
        Arc::new(Scripted { name, max, answers, asked: Mutex::default(), updated: Mutex::default(), aborted: Mutex::default() })
    }

    fn asked(&self) -> Vec<u8> {
        std::mem::take(&mut self.asked.lock())
    }
}

impl Filter for Scripted {
    fn name(&self) -> &'static str {
        self.name
    }
    fn max(&self) -> Verdict {
        self.max
    }
    fn component(&self) -> &'static Component {
        static COMPONENT: Component = Component::new("test");
        &COMPONENT
    }
    fn check(&self, _request: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> Result<()> {
        for at in active {
            let byte = lookups[*at].data[0];
            self.asked.lock().push(byte);
            if let Some(verdict) = (self.answers)(byte) {
                lookups[*at].verdict = verdict;
                lookups[*at].address = (verdict >= Verdict::StrongMaybe).then(|| Address::from_bits(u64::from(byte)));
            }
        }
        Ok(())
    }
    fn update(&self, stored: &[(Fingerprint, Address)]) {
        *self.updated.lock() += stored.len();
    }
    fn abort(&self, failed: &[Fingerprint]) {
        *self.aborted.lock() += failed.len();
    }
}

/// Stages of these filters, in order.
fn stages<const COUNT: usize>(filters: [&Arc<Scripted>; COUNT]) -> Vec<Stage> {
    filters.map(|filter| Stage::Filter(filter.clone())).into()
}

fn run(chain: &Chain, bytes: &[u8]) -> Vec<Verdict> {
    let data: Vec<[u8; 1]> = bytes.iter().map(|byte| [*byte]).collect();
    let mut lookups: Vec<_> = data.iter().map(|data| Lookup::new(Fingerprint::from_digest(data), data)).collect();
    chain.ask(&Request::default(), &mut lookups).unwrap();
    chain.confirm(&Request::default(), &mut lookups).unwrap();
    lookups.iter().map(|lookup| lookup.verdict).collect()
}

/// Fig. 3.2 of dedupv1: Bloom -> object index -> chunk index -> byte compare. Chunks: 1 is new and the Bloom filter
/// knows it; 2 is new but a false positive of the Bloom filter; 3 is in the overwritten block; 4 is in the chunk index;
/// 5 is in the chunk index, but its bytes differ.
#[test]
fn m0_4_m0_11_the_example_chain_of_figure_3_2() {
    use Verdict::*;
    let bloom = Scripted::new("bloom", WeakMaybe, |byte| (byte == 1).then_some(NonExisting));
    let block = Scripted::new("block-index", StrongMaybe, |byte| (byte == 3).then_some(StrongMaybe));
    let index = Scripted::new("chunk-index", StrongMaybe, |byte| Some(if byte == 2 { NonExisting } else { StrongMaybe }));
    let compare = Scripted::new("byte-compare", Existing, |byte| Some(if byte == 5 { NonExisting } else { Existing }));
    let chain = Chain::new(stages([&bloom, &block, &index, &compare]), Arc::default());

    assert_eq!(run(&chain, &[1, 2, 3, 4, 5]), [NonExisting, NonExisting, Existing, Existing, NonExisting]);
    assert_eq!(bloom.asked(), [1, 2, 3, 4, 5]);
    assert_eq!(block.asked(), [2, 3, 4, 5], "NON-EXISTING stops");
    assert_eq!(index.asked(), [2, 4, 5], "STRONG-MAYBE skips filters that cannot say EXISTING");
    assert_eq!(compare.asked(), [3, 4, 5], "STRONG-MAYBE goes on to filters that can");
    let statistics = chain.statistics();
    assert_eq!((statistics[0].non_existing, statistics[0].weak_maybe), (1, 4));
    assert_eq!((statistics[2].non_existing, statistics[2].strong_maybe), (1, 2));
    assert_eq!((statistics[3].non_existing, statistics[3].existing), (1, 2));
}

#[test]
fn m0_4_existing_stops_the_chain_and_weak_maybe_at_its_end_means_new() {
    use Verdict::*;
    let zero = Scripted::new("zero-chunk", Existing, |byte| (byte == 0).then_some(Existing));
    let cache = Scripted::new("container-cache", StrongMaybe, |_| None);
    let chain = Chain::new(stages([&zero, &cache]), Arc::default());
    assert_eq!(run(&chain, &[0, 1]), [Existing, WeakMaybe]);
    assert_eq!(cache.asked(), [1]);
    assert!(!Lookup { verdict: WeakMaybe, ..Lookup::new(Fingerprint::from_digest(&[]), b"") }.is_known());
}

#[test]
fn m0_5_every_filter_gets_the_update_pass_and_the_abort() {
    let one = Scripted::new("one", Verdict::WeakMaybe, |_| None);
    let two = Scripted::new("two", Verdict::StrongMaybe, |_| None);
    let chain = Chain::new(stages([&one, &two]), Arc::default());
    let name = Fingerprint::from_digest(&[1]);
    chain.update(&[(name, Address::from_bits(1))]);
    chain.abort(&[name, name]);
    for filter in [one, two] {
        assert_eq!((*filter.updated.lock(), *filter.aborted.lock()), (1, 2));
    }
}

#[test]
fn m0_7_the_block_index_filter_finds_what_the_block_has_without_reading() {
    let filter = BlockIndexFilter::default();
    let name = Fingerprint::from_digest(&[7; 32]);
    let address = Address::from_bits(77);
    let overwritten = [Piece::Zeros { length: 5 }, Piece::Chunk { fingerprint: name, address, offset: 0, length: 1 }];
    let mut lookups = [Lookup::new(name, b"a"), Lookup::new(Fingerprint::from_digest(&[8; 32]), b"b")];
    filter.check(&Request { overwritten: &overwritten }, &mut lookups, &[0, 1]).unwrap();
    assert_eq!((lookups[0].verdict, lookups[0].address), (Verdict::StrongMaybe, Some(address)));
    assert_eq!(lookups[1].verdict, Verdict::WeakMaybe);
}

#[test]
fn a_chain_of_some_filters_shares_their_counters_and_refuses_unknown_names() {
    let chain = Chain::new(vec![Stage::filter(ZeroChunkFilter), Stage::filter(BlockIndexFilter::default())], Arc::default());
    let some = chain.select(&["zero-chunk"]).unwrap();
    run(&some, &[0, 1]);
    assert_eq!(chain.statistics()[0].existing, 1);
    assert!(chain.select(&["zero-chunk", "zoro"]).unwrap_err().to_string().contains("zoro"));
}
