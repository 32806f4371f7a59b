//! Where a chunk is: container and slot.

use onefold_ground::wire::{Reader, WireError};
use std::fmt;

/// The name of a container: partition (16 bits) and a number counted up within the partition (32 bits, from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(u64);

impl ContainerId {
    /// Returns the id of container `number` of `partition`.
    pub const fn new(partition: u16, number: u32) -> ContainerId {
        ContainerId((partition as u64) << 32 | number as u64)
    }

    /// Converts the 48 bits that formats store.
    pub fn from_bits(bits: u64) -> ContainerId {
        ContainerId(bits & 0xffff_ffff_ffff)
    }

    /// Returns the 48 bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the partition.
    pub fn partition(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Returns the number within the partition.
    pub fn number(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{:08x}", self.partition(), self.number())
    }
}

/// Where a chunk is: a container and a slot (its place in the container's catalog). 64 bits; once valid, always valid.
///
/// Above this crate an address is opaque. It names the container that first stored the chunk, which may be gone. Ask
/// [`ContainerStore::container_of`](crate::ContainerStore::container_of) where the chunk is now, and the
/// [origin](Self::origin) for which chunks are together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(u64);

impl Address {
    /// Returns the address of slot `slot` of `container`.
    pub fn new(container: ContainerId, slot: u16) -> Address {
        Address(container.bits() << 16 | u64::from(slot))
    }

    /// Converts the 64 bits that formats store.
    pub fn from_bits(bits: u64) -> Address {
        Address(bits)
    }

    /// Returns the 64 bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the container that first stored the chunk.
    pub(crate) fn container(self) -> ContainerId {
        ContainerId(self.0 >> 16)
    }

    /// Returns the origin of the chunk, which it shares with the chunks that were stored together with it.
    pub fn origin(self) -> Origin {
        Origin(self.container())
    }

    /// Returns the slot.
    pub fn slot(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.container(), self.slot())
    }
}

/// Stands for chunks that were stored together. They stay together forever: they are found together and move together.
/// Of all chunks that a container has, those that were first stored in the same container have the same origin. It is a
/// key for sets and maps, and a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(ContainerId);

impl Origin {
    /// Converts the 48 bits that formats store.
    pub fn from_bits(bits: u64) -> Origin {
        Origin(ContainerId::from_bits(bits))
    }

    /// Returns the 48 bits.
    pub fn bits(self) -> u64 {
        self.0.bits()
    }

    /// Returns the address of one of its chunks.
    pub fn address(self, slot: u16) -> Address {
        Address::new(self.0, slot)
    }

    /// Returns the origin of the chunks whose container was begun next in the same partition, if there was one.
    pub(crate) fn next(self) -> Option<Origin> {
        Some(Origin(ContainerId::new(self.0.partition(), self.0.number().checked_add(1)?)))
    }

    pub(crate) fn container(self) -> ContainerId {
        self.0
    }
}

impl From<Address> for Origin {
    fn from(address: Address) -> Origin {
        address.origin()
    }
}

/// The origin of chunks that were first stored in a container.
impl From<ContainerId> for Origin {
    fn from(container: ContainerId) -> Origin {
        Origin(container)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Reads the name of a container: 48 bits, the number not 0.
pub(crate) fn decode_container(reader: &mut Reader<'_>) -> Result<ContainerId, WireError> {
    let offset_bytes = reader.position();
    let bits = reader.u64()?;
    let container = ContainerId::from_bits(bits);
    if container.bits() != bits || container.number() == 0 {
        return Err(WireError::OutOfRange { what: "container", value: bits, offset_bytes });
    }
    Ok(container)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_its_parts() {
        let address = Address::new(ContainerId::new(0xabcd, 0x1234_5678), 0x9abc);
        let again = Address::from_bits(address.bits());
        assert_eq!((again.container().partition(), again.container().number(), again.slot()), (0xabcd, 0x1234_5678, 0x9abc));
        assert_eq!(ContainerId::from_bits(address.container().bits()), address.container());
        assert_eq!(again.to_string(), "43981-12345678/39612");
    }
}
