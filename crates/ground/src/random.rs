//! The system's random numbers.

use std::io;

/// Fills `out` with random bytes that nobody can guess. Blocks only in the first seconds after boot, until the system
/// has gathered enough entropy.
///
/// # Errors
/// The system's error if it has none to give (a kernel without the call, a sandbox that forbids it). Then nothing in
/// `out` may be used.
pub fn fill_random(out: &mut [u8]) -> io::Result<()> {
    fill_from(out, &mut |rest| Ok(rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?))
}

fn fill_from(out: &mut [u8], source: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        match source(&mut out[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            // A signal interrupted it before any bytes came.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_filled_and_what_fails_is_told() {
        let (mut one, mut other) = ([0; 40], [0; 40]);
        fill_random(&mut one).unwrap();
        fill_random(&mut other).unwrap();
        assert_ne!(one, other);
        let mut answers = [Err(io::ErrorKind::Interrupted.into()), Ok(3), Err(io::ErrorKind::Unsupported.into())].into_iter();
        let failed = fill_from(&mut one, &mut |_| answers.next().expect("it is asked no more after an error"));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert!(fill_from(&mut one, &mut |_| Ok(0)).is_err(), "and it does not ask for ever");
    }
}
