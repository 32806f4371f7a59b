//! Words that people type.

/// Returns the known word nearest to an unknown one, if it is near enough to be meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Jaro-Winkler measures likeness, but does not see that `ndb` is `nbd` with two letters swapped.
    let likeness = |candidate: &str| match strsim::osa_distance(word, candidate) {
        1 => 0.9,
        _ => strsim::jaro_winkler(word, candidate),
    };
    known
        .into_iter()
        .map(|candidate| (likeness(candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_named_only_when_it_is_near() {
        assert_eq!(nearest("frame_cach", ["frame_cache", "listen"]), Some("frame_cache"));
        assert_eq!(nearest("ndb", ["memory", "nbd"]), Some("nbd"));
        assert_eq!(nearest("zzz", ["frame_cache", "listen"]), None);
    }
}
