//! Where secrets come from, so that they appear neither in a process list nor in a command history.

use crate::failure::{Failure, Result};
use crate::output::note;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, IsTerminal, Read, Stdin, Write, stderr, stdin};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// The environment variable that may hold a secret.
pub const VARIABLE: &str = "ONEFOLD_SECRET";
/// The longest secret, bytes.
const LIMIT_BYTES: usize = 1024;

/// A secret. It is never printed.
#[derive(Clone, Default, Deserialize, Serialize)]
pub struct Secret(Vec<u8>);

/// How often to ask a person for a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Once: a wrong one does no harm.
    Once,
    /// Twice: a mistyped one would be lost.
    Twice,
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

impl Secret {
    /// Returns the secret of these bytes, which the program made itself.
    pub fn of(bytes: Vec<u8>) -> Secret {
        Secret(bytes)
    }

    /// Returns its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads it from the file, otherwise from the environment, otherwise from the terminal.
    pub fn read(file: Option<&Path>, asking: Asking) -> Result<Secret> {
        if let Some(path) = file {
            let cannot = |error| Failure::cannot_run(format!("cannot read the secret from {}: {error}", path.display()));
            return if path == Path::new("-") { from(stdin().lock()) } else { File::open(path).map_err(cannot).and_then(from) };
        }
        if let Some(value) = std::env::var_os(VARIABLE) {
            return from(value.into_vec().as_slice());
        }
        let input = stdin();
        if !input.is_terminal() {
            return Err(Failure::cannot_run("no secret was given, and there is no terminal to ask for it")
                .advise(format!("give it with --secret-file FILE (`-` for standard input) or in {VARIABLE}")));
        }
        let secret = ask(&input, "secret: ")?;
        if asking == Asking::Twice && ask(&input, "repeat the secret: ")?.0 != secret.0 {
            return Err(Failure::cannot_run("the two secrets differ; nothing was changed"));
        }
        Ok(secret)
    }
}

/// Reads all that a file or a variable holds, without one newline at its end.
fn from(source: impl Read) -> Result<Secret> {
    let mut bytes = Vec::new();
    let read = source.take(LIMIT_BYTES as u64 + 3).read_to_end(&mut bytes);
    read.map_err(|error| Failure::cannot_run(format!("cannot read the secret: {error}")))?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    checked(bytes)
}

fn checked(bytes: Vec<u8>) -> Result<Secret> {
    match bytes.len() {
        0 => Err(Failure::cannot_run("the secret is empty").advise("give one of at least 8 bytes")),
        length if length > LIMIT_BYTES => Err(Failure::cannot_run(format!("the secret has more than {LIMIT_BYTES} bytes"))),
        _ => Ok(Secret(bytes)),
    }
}

/// Fewest bytes of a secret of CHAP (RFC 7143 section 9.2.1).
const CHAP_LEAST_BYTES: usize = 12;
/// The longest secret of CHAP. RFC 7143 requires less. Some initiators take only 16 bytes, those of Windows among them.
const CHAP_MOST_BYTES: usize = 128;

/// Reads a secret from a file that only its owner, and perhaps the owner's group, may read. `what` is for people.
fn private(path: &Path, what: &str) -> Result<Secret> {
    let shown = path.display();
    let cannot = |error: std::io::Error| Failure::cannot_run(format!("cannot read {what} from {shown}: {error}"));
    // A pipe in its place would make this wait.
    if !std::fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(Failure::cannot_run(format!("cannot read {what} from {shown}: it is not a file")));
    }
    let file = File::open(path).map_err(cannot)?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().map_err(cannot)?.permissions());
    if mode & 0o027 != 0 {
        return Err(Failure::cannot_run(format!(
            "{what} in {shown} is not safe: other users can read or change the file (mode {:03o})",
            mode & 0o777
        ))
        .advise(format!("run chmod 600 {shown}, and choose a new secret if others may have read it")));
    }
    from(file)
}

/// Reads a CHAP secret from a file that only its owner, and perhaps the owner's group, may read.
pub fn chap_secret(path: &Path) -> Result<Secret> {
    let shown = path.display();
    let secret = private(path, "the CHAP secret")?;
    let length = secret.0.len();
    if !(CHAP_LEAST_BYTES..=CHAP_MOST_BYTES).contains(&length) {
        return Err(Failure::cannot_run(format!(
            "the CHAP secret in {shown} has {length} bytes; it must have {CHAP_LEAST_BYTES} to {CHAP_MOST_BYTES} bytes"
        ))
        .advise("12 to 16 bytes suit all initiators: for example `openssl rand -base64 12`"));
    }
    Ok(secret)
}

/// Reads USER:PASSWORD from a file that only its owner, and perhaps the owner's group, may read.
pub fn user_and_password(path: &Path) -> Result<(String, String)> {
    let wrong = || Failure::cannot_run(format!("{} does not have USER:PASSWORD in one line", path.display()));
    let text = String::from_utf8(private(path, "the secret")?.0).map_err(|_| wrong())?;
    match text.split_once(':') {
        Some((user, password)) if !user.is_empty() && !password.is_empty() && !text.contains('\n') => {
            Ok((user.to_owned(), password.to_owned()))
        }
        _ => Err(wrong()),
    }
}

/// Asks on the terminal, which does not show what is typed.
fn ask(input: &Stdin, question: &str) -> Result<Secret> {
    let mut error = stderr();
    // A closed standard error shows no question. Whoever types knows what is asked.
    let _ = error.write_all(question.as_bytes()).and_then(|()| error.flush());
    let typed = {
        let _silence = Silence::of(input).map_err(|error| Failure::cannot_run(format!("cannot ask for the secret: {error}")))?;
        typed(input.lock())
    };
    note("");
    checked(typed?)
}

/// Keeps the terminal from showing what is typed and from sending signals: ^C must not leave it silent. Dropping this
/// ends it.
struct Silence<'a> {
    terminal: &'a Stdin,
    before: Termios,
}

impl<'a> Silence<'a> {
    fn of(terminal: &'a Stdin) -> rustix::io::Result<Silence<'a>> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        silent.special_codes[SpecialCodeIndex::VMIN] = 1;
        silent.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(Silence { terminal, before })
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// Returns a line as typed, after the keys that correct it.
fn typed(input: impl BufRead) -> Result<Vec<u8>> {
    const INTERRUPT: u8 = 0x03;
    const END: u8 = 0x04;
    const BACKSPACE: u8 = 0x08;
    const CLEAR: u8 = 0x15;
    const DELETE: u8 = 0x7f;
    let mut line = Vec::new();
    for key in input.bytes() {
        match key.map_err(|error| Failure::cannot_run(format!("cannot read the secret: {error}")))? {
            b'\n' | b'\r' | END => break,
            INTERRUPT => return Err(Failure::interrupted("stopped by ^C; nothing was changed")),
            CLEAR => line.clear(),
            BACKSPACE | DELETE => {
                // A letter may have several bytes.
                while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            byte if line.len() <= LIMIT_BYTES => line.push(byte),
            _ => {}
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_newline_at_the_end_does_not_count() {
        for (content, secret) in [("a b", "a b"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a ")] {
            assert_eq!(from(content.as_bytes()).unwrap().as_bytes(), secret.as_bytes());
        }
        assert!(from(&b"\n"[..]).is_err());
        assert!(from(&[b'x'; 1025][..]).is_err());
        assert_eq!(from(&[&[b'x'; 1024][..], b"\r\n"].concat()[..]).unwrap().as_bytes().len(), 1024);
    }

    #[test]
    fn what_is_typed_can_be_corrected() {
        for (keys, line) in [("abc\r", "abc"), ("ab\x7fc\nrest", "ac"), ("ä\x7f\x7fb\n", "b"), ("no\x15yes\x04", "yes"), ("", "")] {
            assert_eq!(typed(keys.as_bytes()).unwrap(), line.as_bytes(), "{keys:?}");
        }
        assert_eq!(typed(&b"abc\x03\n"[..]).unwrap_err().exit as i32, 130);
    }

    #[test]
    fn a_chap_secret_is_read_from_a_file_that_others_may_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let write = |content: &str, mode: u32| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            chap_secret(&path)
        };
        assert_eq!(write("twelve bytes\n", 0o600).unwrap().as_bytes(), b"twelve bytes");
        assert!(write("sixteen bytes...", 0o440).is_ok());
        for (content, mode, expected) in [
            ("twelve bytes", 0o604, "chmod 600"),
            ("twelve bytes", 0o620, "chmod 600"),
            ("eleven byte", 0o600, "12 to 16"),
            ("", 0o600, "at least"),
        ] {
            let failure = write(content, mode).unwrap_err();
            assert!(failure.advice.as_ref().unwrap().contains(expected), "{failure}");
        }
        assert!(chap_secret(directory.path()).unwrap_err().message.contains("not a file"));
        assert!(chap_secret(&directory.path().join("none")).is_err());
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", from(&b"open sesame"[..]).unwrap()), "Secret");
    }
}
