//! Arithmetic of GF(2^8) with the polynomial x^8 + x^4 + x^3 + x + 1, the field of AES (FIPS 197, section 4). It runs
//! at compile time wherever the result is a constant.

/// Returns `a * b`.
pub(super) const fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    product
}

/// Returns `x * a`.
pub(super) const fn double(a: u8) -> u8 {
    (a << 1) ^ if a >> 7 == 1 { 0x1b } else { 0 }
}

/// Returns `a` to a power.
pub(super) const fn power(a: u8, exponent: u32) -> u8 {
    let (mut square, mut left, mut product) = (a, exponent, 1);
    while left > 0 {
        if left & 1 == 1 {
            product = multiply(product, square);
        }
        square = multiply(square, square);
        left >>= 1;
    }
    product
}

/// The linear part of the S-box of AES: each bit of the inverse, xored with four others.
const AES_LINEAR: Linear = {
    let mut columns = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        let column = 1u8 << bit;
        columns[bit] = column ^ column.rotate_left(1) ^ column.rotate_left(2) ^ column.rotate_left(3) ^ column.rotate_left(4);
        bit += 1;
    }
    Linear(columns)
};
/// The constant that the S-box of AES adds after its linear part.
pub(super) const AES_CONSTANT: u8 = 0x63;

/// The S-box of AES (FIPS 197, section 5.1.1): the inverse (0 for 0), then a linear map, then a constant.
pub(super) const fn aes_substitution(byte: u8) -> u8 {
    AES_LINEAR.of(power(byte, 254)) ^ AES_CONSTANT
}

/// A linear map of bytes, given by the images of a byte's bits, lowest bit first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Linear(pub(super) [u8; 8]);

impl Linear {
    /// Maps every byte to itself.
    pub(super) const IDENTITY: Linear = Linear::times(1);

    /// Returns the multiplication by a constant.
    pub(super) const fn times(factor: u8) -> Linear {
        let mut columns = [0; 8];
        let mut bit = 0;
        while bit < 8 {
            columns[bit] = multiply(factor, 1 << bit);
            bit += 1;
        }
        Linear(columns)
    }

    /// Maps a byte.
    pub(super) const fn of(self, byte: u8) -> u8 {
        let mut sum = 0;
        let mut bit = 0;
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                sum ^= self.0[bit];
            }
            bit += 1;
        }
        sum
    }

    /// Returns the map that applies `inner` first, then this one.
    #[cfg_attr(not(any(test, target_arch = "x86_64")), expect(dead_code, reason = "only x86-64 has an instruction for any map"))]
    pub(super) fn after(self, inner: Linear) -> Linear {
        Linear(inner.0.map(|column| self.of(column)))
    }

    /// Returns the map that applies the linear part of the S-box of AES first, then this one.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn after_aes(self) -> Linear {
        self.after(AES_LINEAR)
    }

    /// Returns the images of all low halves of bytes, and of all high halves. The image of a byte is the sum of one of
    /// each.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) const fn halves(self) -> [[u8; 16]; 2] {
        let mut halves = [[0; 16]; 2];
        let mut half = 0;
        while half < 16 {
            halves[0][half as usize] = self.of(half);
            halves[1][half as usize] = self.of(half << 4);
            half += 1;
        }
        halves
    }

    /// Returns whether no two bytes have the same image.
    pub(super) fn is_invertible(self) -> bool {
        (1..=255).all(|byte| self.of(byte) != 0)
    }

    /// Returns the matrix for the instruction GF2P8AFFINEQB: bit `i` of the result is the parity of the argument and
    /// byte `7 - i`.
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn matrix(self) -> i64 {
        let mut matrix = 0u64;
        let mut row = 0;
        while row < 8 {
            let mut column = 0;
            while column < 8 {
                matrix |= ((self.0[column] >> row & 1) as u64) << (8 * (7 - row) + column);
                column += 1;
            }
            row += 1;
        }
        matrix.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_that_of_aes() {
        // Examples of FIPS 197, sections 4.2 and 5.1.1.
        assert_eq!(multiply(0x57, 0x83), 0xc1);
        assert_eq!(multiply(0x57, 0x13), 0xfe);
        assert_eq!(aes_substitution(0x53), 0xed);
        assert_eq!(aes_substitution(0), 0x63);
        for byte in 0..=255 {
            assert_eq!(double(byte), multiply(byte, 2));
        }
    }

    #[test]
    fn linear_maps_are_multiplications_and_compose() {
        let (first, second) = (Linear::times(0x1d), Linear::times(0xe7));
        for byte in 0..=255 {
            assert_eq!(first.of(byte), multiply(byte, 0x1d));
            assert_eq!(second.after(first).of(byte), second.of(first.of(byte)));
            assert_eq!(Linear::IDENTITY.of(byte), byte);
        }
        assert!(first.is_invertible());
        assert!(!Linear([1, 2, 4, 8, 16, 32, 64, 3]).is_invertible());
    }
}
