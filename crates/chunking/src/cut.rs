//! The loop over chunks that all chunkers share.

/// Cuts `data` with `next`. `next` receives the rest of the data and returns the length of its first chunk: from 1 up
/// to the whole rest, or `None` if more data could move that chunk's end. Keeps the contract of
/// [`Chunker::cut`](crate::Chunker::cut).
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
