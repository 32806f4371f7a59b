//! The record of a target (`docs/format.md` section 7.9).

use crate::access::Network;
use crate::error::{Result, TargetError};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The version at the beginning of values.
pub(crate) const VERSION: u8 = 1;
/// The record number for the LUNs of the target with all volumes. It has no name of its own.
pub const DEFAULT_TARGET: u32 = 0;
/// The number of targets that are in the settings file and not in the store. No record has it.
pub const FILE_TARGET: u32 = u32::MAX;
/// The greatest LUN: one level, flat space.
pub const MAX_LUN: u16 = 0x3fff;
/// Most entries of each list in a record, except the units.
pub(crate) const MAX_ENTRIES: usize = 256;

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Its number, which is in its key.
    pub number: u32,
    /// Its iSCSI name.
    pub name: String,
    /// Its units, by LUN.
    pub units: BTreeMap<u16, Unit>,
    /// Patterns for names of allowed initiators; none: all.
    pub initiators: Vec<String>,
    /// Networks of allowed initiators; none: all.
    pub networks: Vec<Network>,
    /// CHAP accounts of initiators; none: no proof is asked for.
    pub accounts: Vec<Account>,
    /// The account with which the target proves itself on request.
    pub own_account: Option<Account>,
    /// The digest of headers.
    pub header_digest: Digest,
    /// The digest of data.
    pub data_digest: Digest,
    /// Sessions at a time; 0: as many as the server accepts.
    pub max_sessions: u32,
    /// Whether all its units are write-protected.
    pub is_read_only: bool,
    /// When it was created, nanoseconds since 1970.
    pub created_ns: i64,
}

/// A volume as a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The number of the volume.
    pub volume: u32,
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Whether it is write-protected, even if the volume is not.
    pub is_read_only: bool,
    /// Whether initiators may eject and load its medium.
    pub is_removable: bool,
}

/// A CHAP name and the file with its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// CHAP_N.
    pub name: String,
    /// The file of the secret. The secret is not in the store, so a copy of the store does not reveal it.
    pub secret_file: PathBuf,
}

/// Whether a digest is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Digest {
    /// The initiator decides.
    #[default]
    Optional,
    /// Always.
    Required,
    /// Never.
    Off,
}

impl Digest {
    const ALL: [Digest; 3] = [Digest::Optional, Digest::Required, Digest::Off];

    /// Returns its word.
    pub fn name(self) -> &'static str {
        match self {
            Digest::Optional => "optional",
            Digest::Required => "required",
            Digest::Off => "off",
        }
    }

    /// Returns the digest for a word.
    pub fn of(name: &str) -> Option<Digest> {
        Digest::ALL.into_iter().find(|digest| digest.name() == name)
    }
}

impl Target {
    /// Returns whether anybody who reaches it may use it.
    pub fn is_open(&self) -> bool {
        self.initiators.is_empty() && self.networks.is_empty() && self.accounts.is_empty()
    }

    /// Returns the smallest free LUN.
    pub fn free_lun(&self) -> Option<u16> {
        (0..=MAX_LUN).find(|lun| !self.units.contains_key(lun))
    }

    /// Returns the LUN of a volume.
    pub fn lun_of(&self, volume: u32) -> Option<u16> {
        self.units.iter().find(|(_, unit)| unit.volume == volume).map(|(lun, _)| *lun)
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (what, count) in
            [("patterns of initiators", self.initiators.len()), ("networks", self.networks.len()), ("accounts", self.accounts.len())]
        {
            if count > MAX_ENTRIES {
                return Err(TargetError::TooMany { what, limit: MAX_ENTRIES });
            }
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bytes(&mut out, self.name.as_bytes());
        put_signed(&mut out, self.created_ns);
        out.extend_from_slice(&[u8::from(self.is_read_only), self.header_digest as u8, self.data_digest as u8]);
        put_varint(&mut out, self.max_sessions.into());
        put_varint(&mut out, self.units.len() as u64);
        for (lun, unit) in &self.units {
            out.extend_from_slice(&lun.to_le_bytes());
            out.extend_from_slice(&unit.volume.to_le_bytes());
            out.extend_from_slice(&unit.block_bytes.to_le_bytes());
            out.extend_from_slice(&[u8::from(unit.is_read_only), u8::from(unit.is_removable)]);
        }
        put_varint(&mut out, self.initiators.len() as u64);
        self.initiators.iter().for_each(|pattern| put_bytes(&mut out, pattern.as_bytes()));
        put_varint(&mut out, self.networks.len() as u64);
        for network in &self.networks {
            match network.address() {
                IpAddr::V4(address) => put_bytes(&mut out, &address.octets()),
                IpAddr::V6(address) => put_bytes(&mut out, &address.octets()),
            }
            out.push(network.bits());
        }
        put_varint(&mut out, self.accounts.len() as u64);
        self.accounts.iter().for_each(|account| account.encode(&mut out));
        out.push(u8::from(self.own_account.is_some()));
        if let Some(account) = &self.own_account {
            account.encode(&mut out);
        }
        out
    }

    pub(crate) fn decode(number: u32, value: &[u8]) -> Result<Target> {
        Target::read(number, value)
            .map_err(|error| TargetError::Damaged { object: format!("the record of target {number}"), reason: error.to_string() })
    }

    fn read(number: u32, value: &[u8]) -> std::result::Result<Target, WireError> {
        let mut reader = Reader::new(value);
        check_version(&mut reader)?;
        let name = text(&mut reader, "name")?;
        let created_ns = reader.signed()?;
        let is_read_only = choice(&mut reader, "read-only", 1)? == 1;
        let [header_digest, data_digest] = [choice(&mut reader, "header digest", 2)?, choice(&mut reader, "data digest", 2)?];
        let max_sessions = reader.varint_to("sessions", u32::MAX.into())? as u32;
        let mut units = BTreeMap::new();
        for _ in 0..reader.count("units", 12)? {
            let offset_bytes = reader.position();
            let lun = reader.u16()?;
            if lun > MAX_LUN {
                return Err(WireError::OutOfRange { what: "LUN", value: lun.into(), offset_bytes });
            }
            let volume = reader.u32()?;
            let offset_bytes = reader.position();
            let block_bytes = reader.u32()?;
            if !matches!(block_bytes, 512 | 4096) {
                return Err(WireError::OutOfRange { what: "block size", value: block_bytes.into(), offset_bytes });
            }
            let is_read_only = choice(&mut reader, "read-only", 1)? == 1;
            let is_removable = choice(&mut reader, "removable", 1)? == 1;
            units.insert(lun, Unit { volume, block_bytes, is_read_only, is_removable });
        }
        let mut initiators = Vec::new();
        for _ in 0..reader.count("initiators", 1)? {
            initiators.push(text(&mut reader, "initiator")?);
        }
        let mut networks = Vec::new();
        for _ in 0..reader.count("networks", 6)? {
            let offset_bytes = reader.position();
            let address = reader.bytes()?;
            let address = <[u8; 4]>::try_from(address).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(address).map(IpAddr::from));
            let bits = reader.u8()?;
            let network = address.ok().and_then(|address| Network::new(address, bits));
            networks.push(network.ok_or(WireError::OutOfRange { what: "network", value: bits.into(), offset_bytes })?);
        }
        let mut accounts = Vec::new();
        for _ in 0..reader.count("accounts", 2)? {
            accounts.push(Account::read(&mut reader)?);
        }
        let own_account = if choice(&mut reader, "own account", 1)? == 1 { Some(Account::read(&mut reader)?) } else { None };
        reader.end()?;
        Ok(Target {
            number,
            name,
            units,
            initiators,
            networks,
            accounts,
            own_account,
            header_digest: Digest::ALL[usize::from(header_digest)],
            data_digest: Digest::ALL[usize::from(data_digest)],
            max_sessions,
            is_read_only,
            created_ns,
        })
    }
}

impl Account {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.name.as_bytes());
        put_bytes(out, self.secret_file.as_os_str().as_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> std::result::Result<Account, WireError> {
        let name = text(reader, "name of an account")?;
        Ok(Account { name, secret_file: OsString::from_vec(reader.bytes()?.to_vec()).into() })
    }
}

/// Reads a byte from 0 to `last`.
pub(crate) fn choice(reader: &mut Reader<'_>, what: &'static str, last: u8) -> std::result::Result<u8, WireError> {
    let offset_bytes = reader.position();
    match reader.u8()? {
        value if value <= last => Ok(value),
        value => Err(WireError::OutOfRange { what, value: value.into(), offset_bytes }),
    }
}

pub(crate) fn check_version(reader: &mut Reader<'_>) -> std::result::Result<(), WireError> {
    match reader.u8()? {
        VERSION => Ok(()),
        version => Err(WireError::OutOfRange { what: "version", value: version.into(), offset_bytes: 0 }),
    }
}

pub(crate) fn text(reader: &mut Reader<'_>, what: &'static str) -> std::result::Result<String, WireError> {
    let offset_bytes = reader.position();
    let bytes = reader.bytes()?;
    String::from_utf8(bytes.to_vec()).map_err(|_| WireError::OutOfRange { what, value: bytes.len() as u64, offset_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn account() -> impl Strategy<Value = Account> {
        ("[a-z]{1,9}", "/[a-z]{1,9}").prop_map(|(name, path)| Account { name, secret_file: path.into() })
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_written(
            name in "[a-z.:]{0,40}",
            units in proptest::collection::btree_map(0..=MAX_LUN, (any::<u32>(), any::<bool>(), any::<[bool; 2]>()), 0..5),
            initiators in proptest::collection::vec("[a-z*]{1,20}", 0..3),
            networks in proptest::collection::vec(any::<IpAddr>(), 0..3),
            accounts in proptest::collection::vec(account(), 0..3),
            own_account in proptest::option::of(account()),
            digests in (0usize..3, 0usize..3),
            max_sessions: u32,
            is_read_only: bool,
            created_ns: i64,
        ) {
            let unit = |(volume, small, [is_read_only, is_removable]): (u32, bool, [bool; 2])| Unit {
                volume,
                block_bytes: if small { 512 } else { 4096 },
                is_read_only,
                is_removable,
            };
            let network = |address: IpAddr| Network::new(address, if address.is_ipv4() { 32 } else { 128 }).unwrap();
            let target = Target {
                number: 7,
                name,
                units: units.into_iter().map(|(lun, of)| (lun, unit(of))).collect(),
                initiators,
                networks: networks.into_iter().map(network).collect(),
                accounts,
                own_account,
                header_digest: Digest::ALL[digests.0],
                data_digest: Digest::ALL[digests.1],
                max_sessions,
                is_read_only,
                created_ns,
            };
            prop_assert_eq!(Target::decode(7, &target.encode()).unwrap(), target);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Target::decode(1, &bytes);
        }
    }

    #[test]
    fn luns_are_found_and_given() {
        let unit = |volume| Unit { volume, block_bytes: 512, is_read_only: false, is_removable: false };
        let target = Target { units: BTreeMap::from([(0, unit(5)), (1, unit(9)), (3, unit(2))]), ..Target::default() };
        assert_eq!((target.free_lun(), target.lun_of(9), target.lun_of(4)), (Some(2), Some(1), None));
    }
}
