//! Computes when operations end on modelled devices.
//!
//! Nothing here waits. A device records until when its places, its rate of operations and its channel are taken. A new
//! operation goes behind them.

use super::DeviceModel;

const SECOND_NS: u64 = 1_000_000_000;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Write,
    Sync,
}

/// The devices that share a part.
#[derive(Debug)]
pub(super) struct Devices {
    model: DeviceModel,
    devices: Vec<Device>,
}

/// Until when the resources of one device are taken. Times are nanoseconds of the clock.
#[derive(Clone, Debug)]
struct Device {
    /// When each place of the queue becomes free.
    free_ns: Vec<u64>,
    /// When the rate limit lets the next operation start.
    next_ns: u64,
    /// When the bytes of all operations so far will have passed.
    channel_free_ns: u64,
    /// Where the last operation ended: the file's name and the offset on this device. `None`: no operation yet.
    head: Option<(u64, u64)>,
}

/// One device's share of an operation: its offset on that device, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    offset: u64,
    length_bytes: u64,
}

impl Devices {
    pub(super) fn new(mut model: DeviceModel) -> Devices {
        model.queue = model.queue.clamp(1, 1024);
        model.devices = model.devices.clamp(1, 1024);
        if model.stripe_bytes > 0 {
            model.stripe_bytes = model.stripe_bytes.max(512);
        }
        let device = Device { free_ns: vec![0; model.queue], next_ns: 0, channel_free_ns: 0, head: None };
        Devices { devices: vec![device; model.devices], model }
    }

    pub(super) fn count(&self) -> usize {
        self.devices.len()
    }

    /// Returns when an operation that arrives now ends. If it spans several devices, they all work on it at the same
    /// time. Sound only if `now_ns` never falls from call to call.
    pub(super) fn end_of(&mut self, now_ns: u64, work: Work, name: u64, offset: u64, length_bytes: u64) -> u64 {
        let shares = match work {
            Work::Sync => self.synced(name),
            Work::Read | Work::Write => self.shares(name, offset, length_bytes),
        };
        let mut end_ns = now_ns;
        for (device, share) in self.devices.iter_mut().zip(shares) {
            if let Some(share) = share {
                end_ns = end_ns.max(device.end_of(&self.model, now_ns, work, name, share));
            }
        }
        end_ns
    }

    fn is_striped(&self) -> bool {
        self.model.stripe_bytes > 0 && self.devices.len() > 1
    }

    fn first_device(&self, name: u64) -> usize {
        (name % self.devices.len() as u64) as usize
    }

    /// Returns, for each device, its share of a range of a file. Stripes of a file that follow each other on a device
    /// are contiguous there.
    fn shares(&self, name: u64, offset: u64, length_bytes: u64) -> Vec<Option<Share>> {
        let mut shares: Vec<Option<Share>> = vec![None; self.devices.len()];
        let first = self.first_device(name);
        if !self.is_striped() {
            shares[first] = Some(Share { offset, length_bytes });
            return shares;
        }
        let (stripe_bytes, count) = (self.model.stripe_bytes, self.devices.len() as u64);
        let end = offset.saturating_add(length_bytes);
        let mut at = offset;
        while at < end {
            let stripe = at / stripe_bytes;
            let within = at % stripe_bytes;
            let taken = (stripe_bytes - within).min(end - at);
            let device = (first as u64 + stripe % count) % count;
            let start = Share { offset: stripe / count * stripe_bytes + within, length_bytes: 0 };
            shares[device as usize].get_or_insert(start).length_bytes += taken;
            at += taken;
        }
        shares
    }

    /// Returns, for each device, whether a sync of a file goes there.
    fn synced(&self, name: u64) -> Vec<Option<Share>> {
        let first = self.first_device(name);
        let goes_to = |device| self.is_striped() || device == first;
        (0..self.devices.len()).map(|device| goes_to(device).then_some(Share { offset: 0, length_bytes: 0 })).collect()
    }
}

impl Device {
    fn end_of(&mut self, model: &DeviceModel, now_ns: u64, work: Work, name: u64, share: Share) -> u64 {
        let time_us = match work {
            Work::Read => model.read_us,
            Work::Write => model.write_us,
            Work::Sync => model.sync_us,
        };
        let mut time_ns = time_us * 1000;
        if work == Work::Sync && time_ns == 0 {
            return now_ns;
        }
        let free_ns = self.free_ns.iter_mut().min().expect("a queue has at least one place");
        let mut start_ns = now_ns.max(*free_ns);
        let mut end_ns = start_ns + time_ns;
        if work != Work::Sync {
            // `None`: no limit.
            if let Some(pause_ns) = SECOND_NS.checked_div(model.operations_per_s) {
                start_ns = start_ns.max(self.next_ns);
                self.next_ns = start_ns + pause_ns;
            }
            if self.head != Some((name, share.offset)) {
                time_ns += model.seek_us * 1000;
            }
            self.head = Some((name, share.offset.saturating_add(share.length_bytes)));
            let bytes_per_s = if work == Work::Read { model.read_bytes_per_s } else { model.write_bytes_per_s };
            end_ns = start_ns + time_ns;
            if bytes_per_s > 0 {
                let through_ns = u128::from(share.length_bytes) * u128::from(SECOND_NS) / u128::from(bytes_per_s);
                end_ns = end_ns.max(self.channel_free_ns).saturating_add(u64::try_from(through_ns).unwrap_or(u64::MAX));
                self.channel_free_ns = end_ns;
            }
        }
        *free_ns = end_ns;
        end_ns
    }
}
