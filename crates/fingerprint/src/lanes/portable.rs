//! Four lanes in plain Rust. Tests compare the vector instructions with it, and Miri runs it.

use super::{Block, ByteOrder, Lanes, Task};

/// Lanes for any machine.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const COUNT: usize = 4;

/// Not inlined: the compiler would take minutes for hundreds of steps with four lanes each.
#[inline(never)]
fn each(work: impl Fn(usize) -> u32) -> [u32; COUNT] {
    std::array::from_fn(work)
}

impl Lanes for Portable {
    type Word = [u32; COUNT];
    const COUNT: usize = COUNT;

    fn run<T: Task>(self, task: T) -> T::Output {
        task.run()
    }

    fn splat(self, number: u32) -> Self::Word {
        [number; COUNT]
    }

    fn load(self, row: &[u32]) -> Self::Word {
        each(|lane| row[lane])
    }

    fn save(self, word: Self::Word, row: &mut [u32]) {
        row[..COUNT].copy_from_slice(&word);
    }

    fn add(self, a: Self::Word, b: Self::Word) -> Self::Word {
        each(|lane| a[lane].wrapping_add(b[lane]))
    }

    fn xor(self, a: Self::Word, b: Self::Word) -> Self::Word {
        each(|lane| a[lane] ^ b[lane])
    }

    fn xor3(self, a: Self::Word, b: Self::Word, c: Self::Word) -> Self::Word {
        each(|lane| a[lane] ^ b[lane] ^ c[lane])
    }

    fn choose(self, mask: Self::Word, a: Self::Word, b: Self::Word) -> Self::Word {
        each(|lane| (mask[lane] & a[lane]) | (!mask[lane] & b[lane]))
    }

    fn majority(self, a: Self::Word, b: Self::Word, c: Self::Word) -> Self::Word {
        each(|lane| (a[lane] & b[lane]) | (a[lane] & c[lane]) | (b[lane] & c[lane]))
    }

    fn rotate_right<const BITS: i32>(self, a: Self::Word) -> Self::Word {
        each(|lane| a[lane].rotate_right(BITS as u32))
    }

    fn shift_right<const BITS: u32>(self, a: Self::Word) -> Self::Word {
        each(|lane| a[lane] >> BITS)
    }

    fn load_blocks(self, blocks: &[&Block], order: ByteOrder) -> [Self::Word; 16] {
        std::array::from_fn(|at| {
            each(|lane| {
                let bytes = blocks[lane][4 * at..4 * at + 4].try_into().expect("four bytes");
                if order == ByteOrder::Big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
            })
        })
    }

    fn prefetch(self, block: &Block, ahead_bytes: usize) {
        let _ = (block, ahead_bytes);
    }

    fn store(self, words: &[Self::Word; 8], out: &mut [[u32; 8]]) {
        for lane in 0..COUNT {
            out[lane] = std::array::from_fn(|at| words[at][lane]);
        }
    }
}
