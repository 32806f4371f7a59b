//! Requests other than SCSI commands: NOP, logout, SendTargets.

use super::{Session, Then};
use crate::pdu::{Incoming, NO_TAG, Outgoing, StatusNumber, opcode, reason};

impl Session {
    pub(super) fn nop(&mut self, pdu: Incoming) {
        if self.ping.is_some_and(|tag| tag == pdu.header.transfer_tag()) {
            self.ping = None;
        }
        if pdu.header.task_tag() != NO_TAG {
            let mut answer = Outgoing::new(opcode::NOP_IN, 0x80, pdu.header.task_tag(), StatusNumber::Own);
            answer.put(8, &pdu.header.0[8..16]);
            answer.put_u32(20, NO_TAG);
            let mut data = pdu.data;
            data.truncate(self.begun.parameters.send_segment_bytes as usize);
            // Data that waits to be sent counts all that time.
            data.shrink_to_fit();
            self.send(answer.with_data(data));
        }
    }

    /// A logout ends all commands (RFC 7143 section 11.14). It is answered when none of them has an effect any more,
    /// because the initiator may then continue on another path.
    pub(super) fn logout(&mut self, pdu: &Incoming) {
        let tag = pdu.header.task_tag();
        // 0 closes the session, 1 the connection, which is the same here. Connection recovery is not offered.
        if pdu.header.0[1] & 0x7f > 1 {
            return self.answer_logout(tag, 2);
        }
        self.is_leaving = true;
        let running = self.end_tasks(&|_| true);
        self.wait_for(running, Then::LogOut(tag));
    }

    pub(super) fn answer_logout(&mut self, tag: u32, response: u8) {
        let mut answer = Outgoing::new(opcode::LOGOUT_RESPONSE, 0x80, tag, StatusNumber::Own);
        answer.header[2] = response;
        self.send(answer);
    }

    /// SendTargets (RFC 7143 appendix C).
    pub(super) fn text(&mut self, pdu: &Incoming) {
        // The initiator asks for the rest of an answer with its tag, without keys (RFC 7143 section 11.10).
        let tag = pdu.header.transfer_tag();
        if let Some((_, rest)) = self.more_text.take_if(|(own, _)| *own == tag) {
            return self.send_text(pdu, rest);
        }
        self.more_text = None;
        let mut out = Vec::new();
        let pairs = match crate::text::parse(&pdu.data) {
            Ok(pairs) if pdu.header.is_final() && pdu.data.len() <= crate::text::MAX_TEXT_BYTES => pairs,
            _ => return self.reject(reason::PROTOCOL_ERROR, pdu),
        };
        // The owner of the targets may be changing them, which takes a while.
        let names = || tokio::task::block_in_place(|| self.shared.targets.names(&self.begun.visitor));
        let mut is_answered = false;
        for (key, value) in pairs {
            if key == "SendTargets" && std::mem::replace(&mut is_answered, true) {
                // The list comes once, however often it is requested.
                crate::text::put(&mut out, &key, "Reject");
                continue;
            }
            if key != "SendTargets" {
                crate::text::put(&mut out, &key, "NotUnderstood");
                continue;
            }
            let names = match (value.as_str(), &self.begun.target) {
                ("All", None) => names(),
                ("", Some(target)) => vec![target.name.clone()],
                ("All" | "", _) => {
                    crate::text::put(&mut out, &key, "Reject");
                    continue;
                }
                (name, _) => names().into_iter().filter(|known| known == name).collect(),
            };
            for name in names {
                crate::text::put(&mut out, "TargetName", &name);
                for portal in self.shared.portals(self.begun.visitor.portal) {
                    crate::text::put(&mut out, "TargetAddress", &portal);
                }
            }
        }
        self.send_text(pdu, out);
    }

    /// Sends an answer to a text request: as much as fits, and the rest on request.
    fn send_text(&mut self, pdu: &Incoming, mut out: Vec<u8>) {
        let room = self.begun.parameters.send_segment_bytes as usize;
        let rest = if out.len() > room { out.split_off(room) } else { Vec::new() };
        // F for the last part, C for earlier ones.
        let (flags, tag) = if rest.is_empty() { (0x80, NO_TAG) } else { (0x40, self.transfer_tag()) };
        let mut answer = Outgoing::new(opcode::TEXT_RESPONSE, flags, pdu.header.task_tag(), StatusNumber::Own);
        answer.put(8, &pdu.header.0[8..16]);
        answer.put_u32(20, tag);
        if !rest.is_empty() {
            self.more_text = Some((tag, rest));
        }
        self.send(answer.with_data(out));
    }
}
