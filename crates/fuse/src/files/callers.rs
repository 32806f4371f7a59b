//! Identifies the caller of a request.

use fuser::Request;

/// Returns whether a caller may keep set-group-id on a file of a group: root, and members of the group.
///
/// The kernel knows, and tells servers that ask for it (FUSE_SETXATTR_EXT); fuser does not parse that. A request has
/// one group of its process. The kernel lists the others in `/proc`, for as long as the process waits for the answer.
pub(super) fn may_keep_set_group(request: &Request, group: u32) -> bool {
    if request.uid() == 0 || request.gid() == group {
        return true;
    }
    // A process of another namespace has no number here, and is taken for no member.
    let status = std::fs::read_to_string(format!("/proc/{}/status", request.pid())).unwrap_or_default();
    has_group(&status, group)
}

/// Returns whether a group is among the supplementary ones.
fn has_group(status: &str, group: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_ascii_whitespace().any(|own| own.parse() == Ok(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supplementary_groups_are_found_in_the_status_of_a_process() {
        let status = "Name:\tx\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nNStgid:\t9\n";
        assert!([4, 24, 1000].into_iter().all(|group| has_group(status, group)));
        assert!([7, 9, 100].into_iter().all(|group| !has_group(status, group)));
        assert!(!has_group("", 0));
    }
}
