//! The chunkers that are compared.

use onefold_chunking::{Chunker, Galois, Implementation, Kind, Sizes, chunker};

/// Appends the ends of all chunks.
type Cut = Box<dyn Fn(&[u8], &mut Vec<usize>)>;

/// A chunker under its name. All others are compared with the first one.
pub struct Contender {
    pub name: String,
    /// Whether no earlier contender cuts at the same places.
    pub cuts_by_itself: bool,
    cut: Cut,
}

impl Contender {
    /// Returns the ends of all chunks of `data`.
    pub fn cut(&self, data: &[u8], cuts: &mut Vec<usize>) {
        cuts.clear();
        (self.cut)(data, cuts);
    }

    /// Returns the lengths of all chunks of `data`.
    pub fn lengths(&self, data: &[u8]) -> Vec<usize> {
        let mut cuts = Vec::new();
        self.cut(data, &mut cuts);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        starts.zip(&cuts).map(|(start, end)| end - start).collect()
    }
}

pub fn all(sizes: Sizes) -> Vec<Contender> {
    let other = |name: &str, cut: Cut| Contender { name: name.into(), cuts_by_itself: true, cut };
    let ours = |name: String, cuts_by_itself, chunker: Box<dyn Chunker>| Contender {
        name,
        cuts_by_itself,
        cut: Box::new(move |data, cuts| {
            chunker.cut(data, true, cuts);
        }),
    };
    let of_kind = |kind: Kind| {
        let chunker = chunker(kind, sizes).expect("sizes for all");
        let cut = move |data: &[u8], cuts: &mut Vec<usize>| {
            chunker.cut(data, true, cuts);
        };
        (kind, cut)
    };

    let mut contenders = vec![
        other("crate fastcdc", Box::new(move |data, cuts| fastcdc_crate(data, cuts, sizes))),
        other("crate gearhash", Box::new(move |data, cuts| gearhash_crate(data, cuts, sizes))),
    ];
    let galois = || Galois::new(sizes).expect("sizes for all");
    contenders.push(ours("galois".into(), true, Box::new(galois())));
    for implementation in Implementation::available() {
        let galois = galois().by(implementation).expect("it is available");
        contenders.push(ours(format!("galois by {implementation}"), false, Box::new(galois)));
    }
    for implementation in Implementation::available() {
        let galois = Galois::keyed(sizes, &[7; 32]).and_then(|galois| galois.by(implementation)).expect("it is available");
        let is_first = implementation == Implementation::best();
        contenders.push(ours(format!("galois keyed, {implementation}"), is_first, Box::new(galois)));
    }
    for kind in [Kind::FastCdc, Kind::Rabin, Kind::Fixed] {
        let (kind, cut) = of_kind(kind);
        contenders.push(Contender { name: kind.name().into(), cuts_by_itself: kind != Kind::FastCdc, cut: Box::new(cut) });
    }
    contenders
}

/// Uses version 2020, normalisation 2.
fn fastcdc_crate(data: &[u8], cuts: &mut Vec<usize>, sizes: Sizes) {
    let level = fastcdc::v2020::Normalization::Level2;
    let chunker = fastcdc::v2020::FastCDC::with_level(data, sizes.min, sizes.target, sizes.max, level);
    cuts.extend(chunker.map(|chunk| chunk.offset + chunk.length));
}

/// The crate only searches, so this adds minimum and maximum as in the other chunkers. It uses one mask with as many
/// bits as the target has, so chunks average minimum + target.
fn gearhash_crate(data: &[u8], cuts: &mut Vec<usize>, sizes: Sizes) {
    let mask = !(u64::MAX >> sizes.target.ilog2());
    let mut start = 0;
    while start < data.len() {
        let longest = (data.len() - start).min(sizes.max);
        let rest = &data[start..start + longest];
        let length = rest.get(sizes.min..).and_then(|searched| gearhash::Hasher::default().next_match(searched, mask));
        start += length.map_or(longest, |length| sizes.min + length);
        cuts.push(start);
    }
}
