//! `onefold`: see the library of this crate.

fn main() -> std::process::ExitCode {
    onefold::main()
}
