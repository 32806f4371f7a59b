//! Commands against a vector of bytes, and CDBs of any kind against what must hold for all.

use super::opcodes::{Access, COMMANDS, Operation};
use super::testing::{MAPPED_BYTES, MemoryDisk, options, send, sense_of};
use super::{Disk, Geometry, LogicalUnit, Status, UnitOptions, u32_at, u64_at};
use proptest::prelude::*;
use std::sync::Arc;

const SIZE: u64 = 4 * MAPPED_BYTES + 4096;

#[derive(Clone, Copy, Debug)]
enum Form {
    Six,
    Ten,
    Twelve,
    Sixteen,
}

#[derive(Clone, Debug)]
enum Step {
    Read(Form),
    Write(Form),
    WriteAndVerify(Form),
    Verify { form: Form, mode: u8, is_same: bool },
    WriteSame { form: Form, unmap: bool, no_data: bool, zeros: bool },
    WriteAtomic,
    OrWrite,
    CompareAndWrite { is_same: bool },
    Unmap { more: Option<(u64, u32)> },
    Copy { to: u64 },
    Status,
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Six), Just(Form::Ten), Just(Form::Twelve), Just(Form::Sixteen)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => form().prop_map(Step::Read),
        4 => form().prop_map(Step::Write),
        1 => form().prop_map(Step::WriteAndVerify),
        2 => (form(), 0u8..4, any::<bool>()).prop_map(|(form, mode, is_same)| Step::Verify { form, mode, is_same }),
        3 => (form(), any::<[bool; 3]>()).prop_map(|(form, [unmap, no_data, zeros])| Step::WriteSame { form, unmap, no_data, zeros }),
        1 => Just(Step::WriteAtomic),
        1 => Just(Step::OrWrite),
        2 => any::<bool>().prop_map(|is_same| Step::CompareAndWrite { is_same }),
        2 => proptest::option::of((lba(), count())).prop_map(|more| Step::Unmap { more }),
        1 => lba().prop_map(|to| Step::Copy { to }),
        1 => Just(Step::Status),
    ]
}

/// Places near the ends of the disk and of its blocks, and anywhere.
fn lba() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0u64..SIZE / 512 + 3,
        2 => (0u64..6, 0u64..4).prop_map(|(block, before)| (block * MAPPED_BYTES / 512).saturating_sub(before)),
        1 => any::<u64>(),
    ]
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..20, 2 => 100u32..200, 1 => any::<u32>()]
}

fn cdb(opcodes: [u8; 4], form: Form, lba: u64, count: u32) -> Option<Vec<u8>> {
    let (short_lba, medium_count) = (u32::try_from(lba), u16::try_from(count));
    Some(match form {
        Form::Six => {
            let lba = short_lba.ok().filter(|lba| *lba < 1 << 21)?.to_be_bytes();
            vec![opcodes[0], lba[1], lba[2], lba[3], u8::try_from(count).ok().filter(|count| *count > 0)?, 0]
        }
        Form::Ten => [&[opcodes[1], 0][..], &short_lba.ok()?.to_be_bytes(), &[0], &medium_count.ok()?.to_be_bytes(), &[0]].concat(),
        Form::Twelve => [&[opcodes[2], 0][..], &short_lba.ok()?.to_be_bytes(), &count.to_be_bytes(), &[0; 2]].concat(),
        Form::Sixteen => [&[opcodes[3], 0][..], &lba.to_be_bytes(), &count.to_be_bytes(), &[0; 2]].concat(),
    })
    .filter(|cdb| cdb[0] != 0)
}

struct Scene {
    disk: Arc<MemoryDisk>,
    unit: LogicalUnit,
    geometry: Geometry,
    model: Vec<u8>,
}

const OUT_OF_RANGE: (u8, u8, u8) = (5, 0x21, 0);
const MISCOMPARE: (u8, u8, u8) = (0xe, 0x1d, 0);
const INVALID_FIELD: (u8, u8, u8) = (5, 0x24, 0);

impl Scene {
    fn new(logical_block_bytes: u32) -> Scene {
        let disk = MemoryDisk::new(SIZE);
        let unit = LogicalUnit::new(disk.clone(), UnitOptions { logical_block_bytes, ..options() }, Box::new(|_| Ok(())));
        Scene { geometry: unit.geometry(), disk, unit, model: vec![0; SIZE as usize] }
    }

    fn bytes(&self, seed: u8, length: usize) -> Vec<u8> {
        (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect()
    }

    /// Sends a command, and checks that it ends with this sense.
    fn check(&self, cdb: &[u8], data: &[u8], sense: (u8, u8, u8)) -> Vec<u8> {
        let reply = send(&self.unit, cdb, data);
        assert_eq!(sense_of(&reply), sense, "{cdb:02x?}");
        assert_eq!(reply.status == Status::Good, sense == (0, 0, 0));
        reply.data
    }

    fn step(&mut self, step: Step, lba: u64, count: u32, seed: u8) {
        let logical = self.geometry.logical as usize;
        let blocks = self.geometry.blocks();
        let is_inside = |lba: u64, count: u64| lba <= blocks && count <= blocks - lba;
        let range = |lba: u64, count: u64| lba as usize * logical..(lba + count) as usize * logical;
        let fits = is_inside(lba, count.into());
        let own = if fits { range(lba, count.into()) } else { 0..0 };
        let found = self.model[own.clone()].to_vec();
        let data = self.bytes(seed, own.len());
        let good = |fits: bool| if fits { (0, 0, 0) } else { OUT_OF_RANGE };
        match step {
            Step::Read(form) => {
                let Some(cdb) = cdb([0x08, 0x28, 0xa8, 0x88], form, lba, count) else { return };
                assert!(self.check(&cdb, &[], good(fits)) == found);
            }
            Step::Write(form) => {
                let Some(cdb) = cdb([0x0a, 0x2a, 0xaa, 0x8a], form, lba, count) else { return };
                self.check(&cdb, &data, good(fits));
                self.model[own].copy_from_slice(&data);
            }
            Step::WriteAndVerify(form) => {
                let Some(cdb) = cdb([0, 0x2e, 0xae, 0x8e], form, lba, count) else { return };
                self.check(&cdb, &data, good(fits));
                self.model[own].copy_from_slice(&data);
            }
            Step::Verify { form, mode, is_same } => {
                let Some(mut cdb) = cdb([0, 0x2f, 0xaf, 0x8f], form, lba, count) else { return };
                cdb[1] |= mode << 1;
                let given = if is_same { found.clone() } else { data };
                let (given, wanted) = match mode {
                    1 => (given.clone(), if given == found { (0, 0, 0) } else { MISCOMPARE }),
                    3 => {
                        let block = given.get(..logical).map_or(vec![0; logical], <[u8]>::to_vec);
                        let is_equal = found.chunks(logical).all(|found| found == block);
                        (block, if is_equal { (0, 0, 0) } else { MISCOMPARE })
                    }
                    2 => (Vec::new(), INVALID_FIELD),
                    _ => (Vec::new(), (0, 0, 0)),
                };
                self.check(&cdb, &given, if fits || mode == 2 && wanted != INVALID_FIELD { wanted } else { OUT_OF_RANGE });
            }
            Step::WriteSame { form, unmap, no_data, zeros } => {
                let Some(mut cdb) = cdb([0, 0x41, 0, 0x93], form, lba, count) else { return };
                let no_data = no_data && matches!(form, Form::Sixteen);
                cdb[1] |= u8::from(unmap) << 3 | u8::from(no_data);
                let block = if zeros || no_data { vec![0; logical] } else { self.bytes(seed, logical) };
                self.check(&cdb, if no_data { &[] } else { &block }, if fits && count == 0 { INVALID_FIELD } else { good(fits) });
                self.model[own].chunks_mut(logical).for_each(|target| target.copy_from_slice(&block));
            }
            Step::WriteAtomic => {
                let Ok(count) = u16::try_from(count) else { return };
                let granule = u64::from(self.geometry.mapped_block_blocks());
                let is_one = count == 0 || lba / granule == (lba.saturating_add(count.into()) - 1) / granule;
                let cdb = [&[0x9c, 0][..], &lba.to_be_bytes(), &[0; 2], &count.to_be_bytes(), &[0; 2]].concat();
                let sense = if u64::from(count) > granule {
                    INVALID_FIELD
                } else if !fits {
                    OUT_OF_RANGE
                } else if !is_one {
                    INVALID_FIELD
                } else {
                    (0, 0, 0)
                };
                self.check(&cdb, &data, sense);
                if sense.0 == 0 {
                    self.model[own].copy_from_slice(&data);
                }
            }
            Step::OrWrite => {
                let Some(cdb) = cdb([0, 0, 0, 0x8b], Form::Sixteen, lba, count) else { return };
                self.check(&cdb, &data, good(fits));
                self.model[own].iter_mut().zip(data).for_each(|(target, byte)| *target |= byte);
            }
            Step::CompareAndWrite { is_same } => {
                let Ok(count) = u8::try_from(count) else { return };
                let cdb = [&[0x89, 0][..], &lba.to_be_bytes(), &[0, 0, 0, count, 0, 0]].concat();
                let expected = if is_same { found.clone() } else { self.bytes(seed.wrapping_add(1), own.len()) };
                let is_equal = expected == found;
                let both = [expected, data.clone()].concat();
                self.check(
                    &cdb,
                    &both,
                    if !fits {
                        OUT_OF_RANGE
                    } else if is_equal {
                        (0, 0, 0)
                    } else {
                        MISCOMPARE
                    },
                );
                if is_equal {
                    self.model[own].copy_from_slice(&data);
                }
            }
            Step::Unmap { more } => {
                let ranges: Vec<(u64, u32)> = [(lba, count)].into_iter().chain(more).collect();
                let mut list = vec![0, (ranges.len() * 16 + 6) as u8, 0, (ranges.len() * 16) as u8, 0, 0, 0, 0];
                for (lba, count) in &ranges {
                    list.extend_from_slice(&[&lba.to_be_bytes()[..], &count.to_be_bytes(), &[0; 4]].concat());
                }
                let fits = ranges.iter().all(|(lba, count)| is_inside(*lba, (*count).into()));
                self.check(&[0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, good(fits));
                for (lba, count) in ranges.into_iter().filter(|_| fits) {
                    self.model[range(lba, count.into())].fill(0);
                }
            }
            Step::Copy { to } => {
                let Ok(count) = u16::try_from(count) else { return };
                let naa = [&[0xe4, 0, 0, 0, 1, 3, 0, 8][..], &self.unit.identity.naa(), &[0; 12]].concat();
                let target = [&naa[..], &(logical as u32).to_be_bytes()].concat();
                let segment = [&[2, 0, 0, 24, 0, 0, 0, 0, 0, 0][..], &count.to_be_bytes(), &lba.to_be_bytes(), &to.to_be_bytes()].concat();
                let list = [&[0, 0x18, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0][..], &target, &segment].concat();
                let fits = fits && is_inside(to, count.into());
                let cdb = [&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &(list.len() as u32).to_be_bytes(), &[0; 2]].concat();
                self.check(&cdb, &list, if fits { (0, 0, 0) } else { (0xa, 0x0d, 0x02) });
                if fits {
                    self.model.copy_within(own, to as usize * logical);
                }
            }
            Step::Status => {
                let cdb = [&[0x9e, 0x12][..], &lba.to_be_bytes(), &[0, 0, 0, 200, 0, 0]].concat();
                let out = self.check(&cdb, &[], good(lba < blocks));
                let mut at = lba;
                for descriptor in out.get(8..).unwrap_or_default().chunks(16) {
                    assert_eq!(u64_at(descriptor, 0), at);
                    let own = range(at, u32_at(descriptor, 8).into());
                    assert!(descriptor[12] == 0 || self.model[own].iter().all(|byte| *byte == 0));
                    at += u64::from(u32_at(descriptor, 8));
                }
                assert!(out.is_empty() || at > lba);
            }
        }
        assert!(self.disk.content() == self.model);
    }
}

/// A CDB of a command that is there, with bits that mean something in it; sometimes a few more.
fn any_cdb() -> impl Strategy<Value = Vec<u8>> {
    (0..COMMANDS.len(), any::<[u8; 16]>(), any::<[u8; 16]>(), 0u8..8, 0usize..40).prop_map(|(at, random, small, keeps, cut)| {
        let command = &COMMANDS[at];
        let mut cdb: Vec<u8> = command
            .usage
            .iter()
            .zip(random.iter().zip(small))
            .map(|(usage, (byte, small))| {
                // Fields of few bits set make small numbers.
                usage & if keeps & 1 == 0 { byte & small & 0x0f } else { *byte }
            })
            .collect();
        cdb[0] = command.opcode;
        if let Some(action) = command.action {
            cdb[1] = cdb[1] & 0xe0 | action;
        }
        if keeps == 7 {
            cdb[usize::from(random[15]) % command.usage.len()] ^= 1 << (random[14] % 8);
        }
        if cut < cdb.len() {
            cdb.truncate(cut);
        }
        cdb
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_unit_is_a_disk(is_long: bool, steps in proptest::collection::vec((step(), lba(), count(), any::<u8>()), 1..40)) {
        let mut scene = Scene::new(if is_long { 4096 } else { 512 });
        for (step, lba, count, seed) in steps {
            scene.step(step, lba, count, seed);
        }
    }

    #[test]
    fn whatever_comes_is_answered_and_what_only_reads_changes_nothing(
        read_only: bool,
        commands in proptest::collection::vec((any_cdb(), proptest::collection::vec(any::<u8>(), 0..2048), 0u8..3), 1..30),
    ) {
        let disk = MemoryDisk::new(SIZE);
        disk.write(0, &[7; 4096], false).unwrap();
        disk.read_only.store(read_only, std::sync::atomic::Ordering::Relaxed);
        let unit = LogicalUnit::new(disk.clone(), options(), Box::new(|_| Ok(())));
        let tokens = super::Tokens::default();
        for (cdb, mut data, who) in commands {
            let before = disk.content();
            data.resize(unit.data_out_bytes(&cdb).min(data.len()), 0);
            prop_assert!(unit.data_out_bytes(&cdb) <= 2 * super::MAX_TRANSFER_BYTES as usize);
            let reply = super::testing::send_among(&unit, &[], &tokens, ["a", "b", "c"][usize::from(who)], &cdb, &data);
            prop_assert_eq!(reply.status == Status::CheckCondition, !reply.sense.is_empty());
            prop_assert!(reply.status == Status::Good || reply.data.is_empty());
            let definition = super::opcodes::Definition::of(&cdb);
            let _ = unit.sanitizer.wait(&|| false);
            let only_reads = definition.is_ok_and(|definition| definition.access != Access::Write) || definition.is_err();
            if only_reads || read_only {
                prop_assert!(disk.content() == before, "{cdb:02x?}");
            }
            // What names the room for its answer does not get more.
            if definition.is_ok_and(|definition| definition.operation == Operation::Inquiry) {
                prop_assert!(reply.data.len() <= usize::from(super::u16_at(&cdb, 3)));
            }
        }
    }
}
