//! What content-defined chunkers have in common: going from chunk to chunk.

/// Cuts `data` by `next`, which is given what is left and returns the length of its first chunk, from 1 to all that is left, or
/// `None` when more data could move that chunk's end. Keeps the contract of [`Chunker::cut`](crate::Chunker::cut).
pub(crate) fn cut_all(data: &[u8], last: bool, cuts: &mut Vec<usize>, next: impl Fn(&[u8]) -> Option<usize>) -> usize {
    let mut at = 0;
    while at < data.len() {
        let rest = &data[at..];
        match next(rest) {
            Some(length) => at += length,
            None if last => at = data.len(),
            None => break,
        }
        cuts.push(at);
    }
    at
}
