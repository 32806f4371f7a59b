//! The chunker galois: every implementation that this processor runs cuts as the scalar one does, and confirms its own
//! boundaries.

use onefold_chunking::{Chunker, Galois, Implementation, Sizes};

/// One byte chooses the key, six the sizes, one how often what follows is repeated: so that even short inputs are cut
/// often.
pub fn run(data: &[u8]) {
    let Some((choices, bytes)) = data.split_at_checked(8) else { return };
    let number = |at: usize| usize::from(choices[at]) << 8 | usize::from(choices[at + 1]);
    let chosen = Sizes { min: number(1), target: number(3).next_power_of_two(), max: number(5) };
    let bytes = bytes.repeat(1 + usize::from(choices[7] % 16));

    let make = |sizes: Sizes| match choices[0] % 4 {
        0 => Galois::keyed(sizes, &[choices[0]; 32]),
        _ => Galois::new(sizes),
    };
    // Sizes that are refused, and the smallest ones in their place.
    let sizes = if make(chosen).is_ok() { chosen } else { Sizes { min: 64, target: 256, max: 1024 } };

    let expected = cut(make(sizes).expect("these sizes are allowed"), Implementation::Scalar, &bytes, sizes);
    for implementation in Implementation::available() {
        let cuts = cut(make(sizes).expect("as above"), implementation, &bytes, sizes);
        assert_eq!(cuts, expected, "{implementation}");
    }
}

fn cut(galois: Galois, implementation: Implementation, bytes: &[u8], sizes: Sizes) -> Vec<usize> {
    let galois = galois.by(implementation).expect("it is available");
    let mut cuts = Vec::new();
    assert_eq!(galois.cut(bytes, true, &mut cuts), bytes.len());
    let mut start = 0;
    for (index, end) in cuts.iter().enumerate() {
        let is_tail = index + 1 == cuts.len();
        assert!(*end > start && end - start <= sizes.max);
        assert!(end - start >= sizes.min || is_tail);
        assert!(galois.confirms(&bytes[start..], end - start) || is_tail);
        start = *end;
    }
    cuts
}
