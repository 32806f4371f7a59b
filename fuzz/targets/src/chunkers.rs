//! Chunkers: any bytes in any slices are cut as the whole is, within the limits (M0.2).

use onefold_chunking::{Kind, Sizes, chunker};

/// One byte chooses the chunker, six its sizes, eight the lengths of slices; what follows is cut.
pub fn run(data: &[u8]) {
    let Some((choices, bytes)) = data.split_at_checked(15) else { return };
    let kind = [Kind::FastCdc, Kind::Rabin, Kind::Fixed, Kind::Galois][usize::from(choices[0] % 4)];
    let number = |at: usize| usize::from(choices[at]) << 8 | usize::from(choices[at + 1]);
    let sizes = Sizes { min: number(1), target: number(3).next_power_of_two(), max: number(5) };
    let slices = &choices[7..];

    let chunker = chunker(kind, sizes).or_else(|_| chunker(kind, Sizes::around(256))).expect("usual sizes");
    let limits = chunker.limits();

    let mut whole = Vec::new();
    assert_eq!(chunker.cut(bytes, true, &mut whole), bytes.len());
    let mut start = 0;
    for (index, end) in whole.iter().enumerate() {
        assert!(*end > start && end - start <= limits.max);
        assert!(end - start >= limits.min || index + 1 == whole.len());
        start = *end;
    }
    assert_eq!(start, bytes.len());

    // Slices of the chosen lengths, again and again; the tail of one is carried to the front of the next.
    let mut sliced = Vec::new();
    let (mut start, mut end) = (0, 0);
    let mut lengths = slices.iter().map(|slice| 1 + 8 * usize::from(*slice)).cycle();
    while start < bytes.len() {
        end = bytes.len().min(end + lengths.next().unwrap_or(1));
        let mut cuts = Vec::new();
        let consumed = chunker.cut(&bytes[start..end], end == bytes.len(), &mut cuts);
        assert_eq!(consumed, cuts.last().copied().unwrap_or(0));
        assert!(consumed > 0 || end - start < limits.max);
        sliced.extend(cuts.iter().map(|cut| start + cut));
        start += consumed;
    }
    assert_eq!(sliced, whole);
}
