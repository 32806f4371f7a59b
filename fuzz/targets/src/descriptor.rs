//! The descriptor of a store (`docs/format.md` section 2): any text is refused, or is a descriptor that is the same
//! when written and read again, and that a store could have.

use onefold_engine::Descriptor;
use onefold_ground::checksum;

/// The bytes as they are, then as the lines before a checksum that is right.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    look_at(text);
    look_at(&format!("{text}\nchecksum = \"{:016x}\"\n", checksum(format!("{text}\n").as_bytes())));
}

fn look_at(text: &str) {
    match Descriptor::from_text(text, "descriptor") {
        Ok(descriptor) => {
            descriptor.validate().expect("what was read is valid");
            let again = Descriptor::from_text(&descriptor.to_text(), "descriptor").expect("a descriptor is read as written");
            assert_eq!(again, descriptor);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
