//! The memory of hooks: buckets of ten, two for each hook.

use super::HooksStatistics;
use onefold_fingerprint::Fingerprint;

/// A cache line.
pub(super) const BUCKET_BYTES: usize = 64;
pub(super) const HOOKS_IN_BUCKET: usize = 10;
/// Words of 64 bits in a bucket: in the first five the containers, two in each; in the other three the tags, four in
/// each. The last 32 bits are 0.
pub(super) const WORDS: usize = BUCKET_BYTES / 8;
const TAG_WORDS: usize = 5;

const TAG_BITS: u32 = 15;
const FORCED: u16 = 1 << TAG_BITS;
/// The largest T is 2 to this power. Beyond it, tags of the sample would have too few bits left to tell fingerprints
/// apart, and only forced hooks are taken.
const MAX_RATE_LOG2: u8 = 12;
/// The rate at which only forced hooks are taken.
pub(super) const ONLY_FORCED: u8 = MAX_RATE_LOG2 + 1;

pub(super) type Bucket = [u64; WORDS];

/// What the table knows of a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    bucket: usize,
    tag: u16,
}

impl Key {
    pub(super) fn of(name: &Fingerprint, buckets: usize) -> Key {
        let bytes = name.as_bytes();
        let word = u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"));
        let tag = u16::from_be_bytes([bytes[8], bytes[9]]) & !FORCED;
        Key { bucket: scale(word, buckets), tag }
    }

    /// Returns how many zeros the tag ends with: while log2 T is not above it, the fingerprint is in the sample.
    pub(super) fn zeros(self) -> u32 {
        self.tag.trailing_zeros().min(TAG_BITS)
    }
}

/// Returns a number below `buckets`, in proportion to `word`.
fn scale(word: u64, buckets: usize) -> usize {
    ((u128::from(word) * buckets as u128) >> 64) as usize
}

/// A hook as it is stored: a container, and a tag with the bit [`FORCED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) container: u32,
    pub(super) tag: u16,
}

impl Hook {
    fn is_forced(self) -> bool {
        self.tag & FORCED != 0
    }
}

pub(super) fn hook(bucket: &Bucket, at: usize) -> Hook {
    let container = (bucket[at / 2] >> (32 * (at % 2))) as u32;
    let tag = (bucket[TAG_WORDS + at / 4] >> (16 * (at % 4))) as u16;
    Hook { container, tag }
}

fn set_hook(bucket: &mut Bucket, at: usize, hook: Hook) {
    let shift = 32 * (at % 2);
    let word = &mut bucket[at / 2];
    *word = *word & !(u64::from(u32::MAX) << shift) | u64::from(hook.container) << shift;
    let shift = 16 * (at % 4);
    let word = &mut bucket[TAG_WORDS + at / 4];
    *word = *word & !(u64::from(u16::MAX) << shift) | u64::from(hook.tag) << shift;
}

/// What became of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is there.
    Kept,
    /// It is not in the sample.
    NotSampled,
    /// There is no room, and T cannot grow any more.
    Full,
}

/// Buckets and the rate of the sample.
pub(super) struct Table {
    /// The buckets, from `first` on: they begin where a cache line begins.
    words: Vec<u64>,
    first: usize,
    buckets: usize,
    /// log2 T, or [`ONLY_FORCED`].
    rate: u8,
    hooks: u64,
    forced: u64,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Table").field("buckets", &self.buckets).field("rate", &self.rate).field("hooks", &self.hooks).finish()
    }
}

/// Asks the system to give this memory, if there is much of it, in huge pages. Hooks are everywhere in it from the
/// beginning, and the first use of each page of 4 KiB costs microseconds. The system may refuse.
fn ask_for_huge_pages(words: &mut [u64]) {
    const PAGE_BYTES: usize = 4096;
    const LEAST_BYTES: usize = 4 << 20;
    let bytes = std::mem::size_of_val(words);
    let start = words.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(PAGE_BYTES);
    if bytes < LEAST_BYTES || skipped >= bytes {
        return;
    }
    let length = (bytes - skipped) / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: the range is whole pages inside of `words`, which is borrowed. The advice changes how memory is given,
    // not what is in it.
    let _ = unsafe { rustix::mm::madvise(start.add(skipped).cast(), length, rustix::mm::Advice::LinuxHugepage) };
}

impl Table {
    pub(super) fn new(memory_bytes: usize) -> Table {
        let buckets = (memory_bytes / BUCKET_BYTES).max(2);
        // Zeros from the allocator: pages that nobody wrote to take no memory.
        let mut words = vec![0u64; (buckets + 1) * WORDS];
        ask_for_huge_pages(&mut words);
        let first = words.as_ptr().align_offset(BUCKET_BYTES).min(WORDS);
        Table { words, first, buckets, rate: 0, hooks: 0, forced: 0 }
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets
    }

    pub(super) fn rate(&self) -> u8 {
        self.rate
    }

    /// Takes a smaller sample if it is not as small already.
    pub(super) fn lower_rate_to(&mut self, rate: u8) {
        self.rate = self.rate.max(rate.min(ONLY_FORCED));
    }

    /// Returns `count` buckets from one on, as words.
    pub(super) fn words(&self, bucket: usize, count: usize) -> &[u64] {
        &self.words[self.first + bucket * WORDS..][..count * WORDS]
    }

    fn bucket(&self, bucket: usize) -> &Bucket {
        self.words(bucket, 1).try_into().expect("a bucket has eight words")
    }

    fn bucket_mut(&mut self, bucket: usize) -> &mut Bucket {
        (&mut self.words[self.first + bucket * WORDS..][..WORDS]).try_into().expect("a bucket has eight words")
    }

    /// Returns the other bucket of hooks with this tag: the other one of that is this one.
    fn other(&self, bucket: usize, tag: u16) -> usize {
        // Multiplied with an odd number, so that neighbouring tags go far apart.
        let sum = scale((u64::from(tag & !FORCED) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), self.buckets);
        if sum >= bucket { sum - bucket } else { sum + self.buckets - bucket }
    }

    /// Reads all buckets that look-ups of these fingerprints will read, so that the processor waits for many at once.
    pub(super) fn touch(&self, names: &[Fingerprint]) {
        let mut all = 0;
        for name in names {
            let key = Key::of(name, self.buckets);
            all ^= self.bucket(key.bucket)[0] ^ self.bucket(self.other(key.bucket, key.tag))[0];
        }
        std::hint::black_box(all);
    }

    pub(super) fn find(&self, key: Key, found: &mut dyn FnMut(u32)) {
        let other = self.other(key.bucket, key.tag);
        for (nth, bucket) in [key.bucket, other].into_iter().enumerate() {
            if nth == 1 && other == key.bucket {
                break;
            }
            let bucket = self.bucket(bucket);
            for at in 0..HOOKS_IN_BUCKET {
                let hook = hook(bucket, at);
                if hook.tag & !FORCED == key.tag && hook.container != 0 {
                    found(hook.container);
                }
            }
        }
    }

    /// Returns whether a hook is in the sample, or stays for another reason.
    fn stays(&self, hook: Hook) -> bool {
        hook.is_forced() || self.is_sampled(hook.tag)
    }

    /// Returns whether a fingerprint is in the sample.
    pub(super) fn has_in_sample(&self, key: Key) -> bool {
        self.is_sampled(key.tag)
    }

    fn is_sampled(&self, tag: u16) -> bool {
        self.rate <= MAX_RATE_LOG2 && tag & ((1 << self.rate) - 1) == 0
    }

    /// Puts a hook into one of its buckets. If there is no room, makes the sample smaller. No forced hook moves between
    /// the buckets below `saved` and the others.
    pub(super) fn put(&mut self, key: Key, container: u32, is_forced: bool, saved: usize) -> Put {
        let tag = key.tag | if is_forced { FORCED } else { 0 };
        loop {
            if !is_forced && !self.is_sampled(key.tag) {
                return Put::NotSampled;
            }
            if self.put_now(key.bucket, Hook { container, tag }, saved) {
                return Put::Kept;
            }
            if self.rate >= ONLY_FORCED {
                return Put::Full;
            }
            self.rate += 1;
        }
    }

    /// Fills a bucket. Returns false if it is not empty.
    pub(super) fn fill(&mut self, bucket: usize, with: &Bucket) -> bool {
        if self.bucket(bucket).iter().any(|word| *word != 0) {
            return false;
        }
        for at in 0..HOOKS_IN_BUCKET {
            let hook = hook(with, at);
            if hook.container != 0 {
                self.set(bucket, at, hook);
            }
        }
        true
    }

    /// Puts a hook into `bucket`, if that has a free place or the hook is somewhere already.
    pub(super) fn put_at(&mut self, bucket: usize, hook: Hook) -> bool {
        if self.is_there(bucket, hook) || self.is_there(self.other(bucket, hook.tag), hook) {
            return true;
        }
        let Some((at, _)) = self.free(bucket) else { return false };
        self.set(bucket, at, hook);
        true
    }

    /// Puts a hook into `bucket`, its other one, or where a hook of these leaves room by moving.
    pub(super) fn put_now(&mut self, bucket: usize, hook: Hook, saved: usize) -> bool {
        let other = self.other(bucket, hook.tag);
        if self.is_there(bucket, hook) || self.is_there(other, hook) {
            return true;
        }
        let free = [bucket, other].map(|bucket| self.free(bucket));
        let place = match free {
            [Some((first, room)), Some((second, more))] => Some(if more > room { (other, second) } else { (bucket, first) }),
            [Some((at, _)), None] => Some((bucket, at)),
            [None, Some((at, _))] => Some((other, at)),
            [None, None] => {
                let replaced = |bucket: usize| self.replaceable(bucket).map(|at| (bucket, at));
                replaced(bucket).or_else(|| replaced(other))
            }
        };
        let place = place.or_else(|| self.make_room(bucket, saved)).or_else(|| self.make_room(other, saved));
        let Some((bucket, at)) = place else { return false };
        self.set(bucket, at, hook);
        true
    }

    /// Returns whether the bucket has this hook. Makes it forced if it has to be.
    fn is_there(&mut self, bucket: usize, wanted: Hook) -> bool {
        let is_same = |found: Hook| found.container == wanted.container && found.tag & !FORCED == wanted.tag & !FORCED;
        let Some(at) = (0..HOOKS_IN_BUCKET).find(|at| is_same(hook(self.bucket(bucket), *at))) else { return false };
        if wanted.is_forced() {
            self.set(bucket, at, wanted);
        }
        true
    }

    /// Returns the first free place of a bucket, and how many are free.
    fn free(&self, bucket: usize) -> Option<(usize, usize)> {
        let bucket = self.bucket(bucket);
        let mut free = (0..HOOKS_IN_BUCKET).filter(|at| hook(bucket, *at).container == 0);
        free.next().map(|first| (first, 1 + free.count()))
    }

    /// Returns a place whose hook has left the sample.
    fn replaceable(&self, bucket: usize) -> Option<usize> {
        (0..HOOKS_IN_BUCKET).find(|at| !self.stays(hook(self.bucket(bucket), *at)))
    }

    /// Moves a hook of a full bucket to its other bucket, if one has room there. Returns the place that it left.
    fn make_room(&mut self, bucket: usize, saved: usize) -> Option<(usize, usize)> {
        for at in 0..HOOKS_IN_BUCKET {
            let moved = hook(self.bucket(bucket), at);
            let other = self.other(bucket, moved.tag);
            // A snapshot that is being written would have it never or twice.
            if other == bucket || (moved.is_forced() && (other < saved) != (bucket < saved)) {
                continue;
            }
            if let Some(room) = self.free(other).map(|(at, _)| at).or_else(|| self.replaceable(other)) {
                self.set(other, room, moved);
                return Some((bucket, at));
            }
        }
        None
    }

    /// Writes a place, and counts.
    fn set(&mut self, bucket: usize, at: usize, new: Hook) {
        let bucket = self.bucket_mut(bucket);
        let old = hook(bucket, at);
        set_hook(bucket, at, new);
        let counted = |hook: Hook| (u64::from(hook.container != 0), u64::from(hook.container != 0 && hook.is_forced()));
        let ((old, old_forced), (new, new_forced)) = (counted(old), counted(new));
        self.hooks = self.hooks + new - old;
        self.forced = self.forced + new_forced - old_forced;
    }

    pub(super) fn remove(&mut self, key: Key, container: u32) {
        for bucket in [key.bucket, self.other(key.bucket, key.tag)] {
            for at in 0..HOOKS_IN_BUCKET {
                let found = hook(self.bucket(bucket), at);
                if found.container == container && found.tag & !FORCED == key.tag {
                    self.set(bucket, at, Hook { container: 0, tag: 0 });
                }
            }
        }
    }

    pub(super) fn statistics(&self) -> HooksStatistics {
        HooksStatistics {
            hooks: self.hooks,
            forced: self.forced,
            rate_log2: (self.rate <= MAX_RATE_LOG2).then_some(self.rate.into()),
            memory_bytes: (self.buckets * BUCKET_BYTES) as u64,
        }
    }
}
