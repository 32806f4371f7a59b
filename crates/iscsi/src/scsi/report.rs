//! What a unit and its target report: lists of units, commands, ports and log pages.

use super::opcodes::COMMANDS;
use super::sense::Sense;
use super::{u16_at, u32_at};

/// All ports are in one group, which is active (SPC-4 section 6.36).
pub(super) fn port_groups(ports: &[u16], cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    let is_extended = match cdb[1] >> 5 {
        0 => false,
        1 => true,
        _ => return Err(Sense::invalid_field(1, Some(7))),
    };
    // Preferred, active/optimized. Supports only active/optimized.
    let mut groups = Vec::new();
    for port in ports {
        let [high, low] = port.to_be_bytes();
        groups.extend_from_slice(&[0x80, 0x01, high, low, 0, 2, 0, 1, 0, 0, high, low]);
    }
    let head: &[u8] = if is_extended { &[0x10, 0, 0, 0] } else { &[] };
    let length = (head.len() + groups.len()) as u32;
    Ok([&length.to_be_bytes()[..], head, &groups].concat())
}

/// REPORT LUNS (SPC-4 section 6.33): flat space addressing above 255.
pub(super) fn report_luns(cdb: &[u8], luns: &[u16]) -> Result<Vec<u8>, Sense> {
    if u32_at(cdb, 6) < 16 {
        return Err(Sense::invalid_field(6, None));
    }
    let shown: &[u16] = match cdb[2] {
        0x00 | 0x02 => luns,
        // There are no well-known units, and none below other units.
        0x01 | 0x10 | 0x11 | 0x12 => &[],
        _ => return Err(Sense::invalid_field(2, None)),
    };
    let mut out = ((shown.len() * 8) as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&[0; 4]);
    for lun in shown {
        let [high, low] = if *lun < 256 { lun.to_be_bytes() } else { (lun | 0x4000).to_be_bytes() };
        out.extend_from_slice(&[high, low, 0, 0, 0, 0, 0, 0]);
    }
    Ok(out)
}

/// REPORT SUPPORTED OPERATION CODES (SPC-4 section 6.35).
pub(super) fn report_opcodes(cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    /// Nominal and recommended timeouts are not given: zeros.
    const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let with_timeouts = cdb[2] & 0x80 != 0;
    let (options, opcode, action) = (cdb[2] & 7, cdb[3], u16_at(cdb, 4));
    if options == 0 {
        let mut out = vec![0; 4];
        for command in COMMANDS {
            let flags = u8::from(with_timeouts) << 1 | u8::from(command.action.is_some());
            out.extend_from_slice(&[command.opcode, 0, 0, command.action.unwrap_or_default(), 0, flags, 0, command.usage.len() as u8]);
            out.extend_from_slice(&TIMEOUTS[..if with_timeouts { 12 } else { 0 }]);
        }
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_be_bytes());
        return Ok(out);
    }
    let of_opcode = || COMMANDS.iter().filter(|command| command.opcode == opcode);
    let has_actions = of_opcode().any(|command| command.action.is_some());
    let by_action = || of_opcode().find(|command| command.action.map(u16::from) == Some(action));
    let found = match options {
        1 if has_actions => return Err(Sense::invalid_field(2, Some(2))),
        1 => of_opcode().next(),
        2 if !has_actions && of_opcode().next().is_some() => return Err(Sense::invalid_field(2, Some(2))),
        2 => by_action(),
        3 if has_actions => by_action(),
        3 if action == 0 => of_opcode().next(),
        3 => None,
        _ => return Err(Sense::invalid_field(2, Some(2))),
    };
    let Some(command) = found else { return Ok(vec![0, 1, 0, 0]) };
    let usage = command.usage_data();
    let mut out = vec![0, u8::from(with_timeouts) << 7 | 3, 0, usage.len() as u8];
    out.extend_from_slice(&usage);
    out.extend_from_slice(&TIMEOUTS[..if with_timeouts { 12 } else { 0 }]);
    Ok(out)
}
