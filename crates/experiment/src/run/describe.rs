//! A variant in words, for the results.

use crate::results::Variant;
use crate::spec::{PARTS, Scaled, VariantSpec};
use onefold_ground::DeviceModel;
use onefold_ground::size::size;

/// Returns a variant without measurements.
pub(super) fn variant(variant: &VariantSpec, scaled: &Scaled) -> Variant {
    let modelled = |((part, _), model): (&(&str, &str), &Option<DeviceModel>)| {
        let device = device(model.as_ref()?);
        let of_partition = match variant.partitions_of(part) {
            1 => device,
            partitions => format!("for each of {partitions} partitions {device}"),
        };
        Some(((*part).to_owned(), of_partition))
    };
    Variant {
        name: variant.name.clone(),
        face: variant.run.face.name().to_owned(),
        clients: variant.workload.clients,
        modelled: PARTS.iter().zip(&variant.devices).filter_map(modelled).collect(),
        discards_data: variant.store.discard_data,
        settings: scaled.text.clone(),
        repetitions: Vec::new(),
        fills: Vec::new(),
        failure: None,
    }
}

/// Describes a device in a line: its name, how many, and its times.
fn device(model: &DeviceModel) -> String {
    let mut text = if model.devices == 1 { model.name.clone() } else { format!("{} x {}", model.devices, model.name) };
    text.push_str(&format!(": {} us a read, {} us a write, {} us a sync", model.read_us, model.write_us, model.sync_us));
    let mut add = |is_said: bool, words: String| {
        if is_said {
            text.push_str(&format!(", {words}"));
        }
    };
    add(model.seek_us > 0, format!("{} us more for a seek", model.seek_us));
    add(model.operations_per_s > 0, format!("at most {} operations/s", model.operations_per_s));
    add(model.read_bytes_per_s > 0, format!("at most {}/s read", size(model.read_bytes_per_s)));
    add(model.write_bytes_per_s > 0, format!("at most {}/s written", size(model.write_bytes_per_s)));
    add(true, format!("{} at a time", model.queue));
    add(model.devices > 1 && model.stripe_bytes > 0, format!("striped by {}", size(model.stripe_bytes)));
    if model.devices > 1 {
        text.push_str("; each");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_said_in_a_line() {
        let ssd = DeviceModel { name: "ssd".into(), read_us: 245, operations_per_s: 5400, queue: 12, devices: 4, ..DeviceModel::default() };
        assert_eq!(
            device(&ssd),
            "4 x ssd: 245 us a read, 0 us a write, 0 us a sync, at most 5400 operations/s, 12 at a time, striped by 64KiB; each"
        );
        let disk = DeviceModel { name: "disk".into(), seek_us: 8000, read_bytes_per_s: 100 << 20, ..DeviceModel::default() };
        assert_eq!(
            device(&disk),
            "disk: 0 us a read, 0 us a write, 0 us a sync, 8000 us more for a seek, at most 100MiB/s read, 1 at a time"
        );
    }
}
