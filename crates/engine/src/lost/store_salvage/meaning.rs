//! What objects mean to the crates above. The engine knows keys and values only, so a salvage asks them which objects
//! do harm when they are lost, and what to tell people of a loss.

/// The meaning of objects, for a salvage. Each text is whole sentences or, for a loss, one line.
pub trait Meaning {
    /// Returns whether objects whose keys begin with this byte do harm where they are lost, or are of another time than
    /// the others. All others save time or room, or can be told from the containers, or are looked at by a person.
    fn is_needed(&self, kind: u8) -> bool;
    /// Objects were taken from a second copy.
    fn copied(&self) -> String;
    /// A loss: the objects that were kept are as of a position of the log.
    fn older(&self, position: u64) -> String;
    /// A loss: so many ranges of keys of needed objects.
    fn lost_ranges(&self, ranges: usize) -> String;
    /// A loss: a part of the log is lost, and was applied before. `lost` names the part.
    fn applied(&self, lost: &str) -> String;
    /// Changes of objects are lost with a part of the log. While the file at `kept` exists, nothing is dropped because
    /// nobody uses it.
    fn lost_changes(&self, kept: &str) -> Vec<String>;
    /// Returns the text of that file.
    fn kept_text(&self) -> &'static str;
}
