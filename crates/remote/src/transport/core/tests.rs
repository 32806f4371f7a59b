//! Sessions without sockets: two ends and what is between them, and one end against garbage.

use super::super::budget::{Budget, FIRST_WINDOW_BYTES};
use super::super::channel::{Message, Received};
use super::*;
use proptest::prelude::*;

fn end(budget: &Arc<Budget>, is_server: bool) -> Arc<Core> {
    let settings =
        Settings { payload_bytes: 1 << 20, window_bytes: FIRST_WINDOW_BYTES, channels: 16, keep_alive: Duration::from_secs(1), is_server };
    Core::new(settings, budget.admit().unwrap())
}

#[derive(Debug, Clone)]
enum Step {
    /// The client sends a message on one of its channels.
    Send { channel: usize, length: usize },
    /// The server echoes what a channel has.
    Echo { channel: usize },
    /// The client takes what came back.
    Receive { channel: usize },
    /// An end writes a batch.
    Write { end: usize, ack: bool },
    /// So many frames arrive at an end.
    Arrive { end: usize, count: usize },
    /// The link breaks.
    Break,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let channel = 0usize..3;
    let step = prop_oneof![
        4 => (channel.clone(), 0usize..3000).prop_map(|(channel, length)| Step::Send { channel, length }),
        4 => channel.clone().prop_map(|channel| Step::Echo { channel }),
        2 => channel.prop_map(|channel| Step::Receive { channel }),
        5 => (0usize..2, any::<bool>()).prop_map(|(end, ack)| Step::Write { end, ack }),
        5 => (0usize..2, 0usize..8).prop_map(|(end, count)| Step::Arrive { end, count }),
        1 => Just(Step::Break),
    ];
    prop::collection::vec(step, 0..200)
}

/// Two ends of a session and the link between them.
struct Pair {
    ends: [Arc<Core>; 2],
    generations: [u64; 2],
    /// Frames to each end.
    link: [VecDeque<Frame>; 2],
    served: HashMap<u8, Channel>,
}

impl Pair {
    fn new(budget: &Arc<Budget>) -> Pair {
        let ends = [end(budget, false), end(budget, true)];
        let mut pair = Pair { ends, generations: [0; 2], link: Default::default(), served: HashMap::new() };
        pair.relink();
        pair
    }

    fn relink(&mut self) {
        self.link = Default::default();
        let (generation, received) = self.ends[1].attach(self.ends[0].received()).unwrap();
        self.generations = [self.ends[0].attach(received).unwrap().0, generation];
    }

    /// Returns whether anything was written.
    fn write(&mut self, end: usize, step: bool) -> bool {
        let Taken::Frames { frames, ack, .. } = self.ends[end].take(self.generations[end], step) else { panic!("the session goes on") };
        let wrote = !frames.is_empty() || ack.is_some();
        let link = &mut self.link[1 - end];
        link.extend(ack.map(|count| Frame::new(kinds::ACK, 0, count.to_le_bytes().to_vec())));
        link.extend(frames);
        wrote
    }

    fn arrive(&mut self, end: usize) -> bool {
        let Some(frame) = self.link[end].pop_front() else { return false };
        let header = Header { length: frame.payload.len() as u32, kind: frame.kind, channel: frame.channel };
        self.ends[end].check(header).unwrap();
        match self.ends[end].arrived(self.generations[end], header, frame.payload.to_vec()).unwrap() {
            Arrival::Nothing => {}
            Arrival::Opened { service, channel, .. } => assert!(self.served.insert(service, channel).is_none()),
            Arrival::Ended | Arrival::Stale => panic!("the session goes on"),
        }
        true
    }

    /// Moves frames until nothing is left to move.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for end in 0..2 {
                moved |= self.write(end, true);
                while self.arrive(end) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn echo(&mut self, service: usize) {
        let Some(channel) = self.served.get(&(service as u8)) else { return };
        while let Received::Message(message) = channel.try_receive().unwrap() {
            channel.send(message.kind, message.payload).unwrap();
        }
    }
}

proptest! {
    #[test]
    fn two_ends_agree_whatever_their_links_lose(steps in steps()) {
        let budget = Budget::new(8 << 20, 2);
        let mut pair = Pair::new(&budget);
        let channels: Vec<Channel> = (0..3).map(|service| pair.ends[0].open(service, &[]).unwrap()).collect();
        let mut sent: [Vec<Message>; 3] = Default::default();
        let mut back: [Vec<Message>; 3] = Default::default();
        let receive = |channel: &Channel, back: &mut Vec<Message>| {
            while let Received::Message(message) = channel.try_receive().unwrap() {
                back.push(message);
            }
        };
        let mut room = [FIRST_WINDOW_BYTES; 3];
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Send { channel, length } => {
                    // Nobody may wait here, so all that is sent stays within the first window.
                    let cost = length as u64 + 64;
                    if room[channel] >= cost {
                        room[channel] -= cost;
                        let message = Message { kind: (number % 128) as u8, payload: vec![number as u8; length] };
                        channels[channel].send(message.kind, message.payload.clone()).unwrap();
                        sent[channel].push(message);
                    }
                }
                Step::Echo { channel } => pair.echo(channel),
                Step::Receive { channel } => receive(&channels[channel], &mut back[channel]),
                Step::Write { end, ack } => { pair.write(end, ack); }
                Step::Arrive { end, count } => { (0..count).for_each(|_| { pair.arrive(end); }); }
                Step::Break => pair.relink(),
            }
        }
        pair.settle();
        for (service, channel) in channels.iter().enumerate() {
            pair.echo(service);
            channel.finish();
            pair.served[&(service as u8)].finish();
        }
        pair.settle();
        for (index, channel) in channels.iter().enumerate() {
            receive(channel, &mut back[index]);
            prop_assert_eq!(channel.try_receive().unwrap(), Received::Finished);
            prop_assert_eq!(&back[index], &sent[index]);
        }
        prop_assert_eq!(pair.ends[0].channels() + pair.ends[1].channels(), 0);
        drop(channels);
        pair.served.clear();
        pair.settle();
        for end in &pair.ends {
            let state = end.state.lock();
            prop_assert!(state.lanes.is_empty());
            prop_assert_eq!((state.small, state.sequence.kept()), (0, 0));
        }
        prop_assert!(budget.high_water_bytes() <= budget.total_bytes());
        drop(pair);
        prop_assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn garbage_ends_a_session_without_a_panic_and_frees_everything(
        steps in prop::collection::vec((0u8..26, 0u32..6, prop::collection::vec(any::<u8>(), 0..9), 0usize..200_000), 0..300),
    ) {
        let budget = Budget::new(8 << 20, 2);
        let core = end(&budget, true);
        let (mut generation, _) = core.attach(0).unwrap();
        let mut written = 0;
        let mut channels: Vec<Channel> = Vec::new();
        let mut opened = 0;
        for (what, id, bytes, length) in steps {
            let at = id as usize % channels.len().max(1);
            let (kind, payload) = match what {
                0..=3 => { opened += 1; (kinds::OPEN, vec![1]) }
                4 => (kinds::OPEN, vec![1]),
                5 => (kinds::FINISH, vec![]),
                6 => (kinds::CANCEL, [&[0, 0][..], &bytes].concat()),
                7 => (kinds::CREDIT, (length as u32).to_le_bytes().to_vec()),
                8 => (kinds::PART, vec![1; length.max(1)]),
                9..=11 => (0x80, vec![1; length % 5000]),
                12 => (kinds::ACK, u64::from(id).to_le_bytes().to_vec()),
                13 => (kinds::ACK, bytes.clone()),
                14 => (kinds::CREDIT, bytes.clone()),
                15 | 16 => (kinds::ACK, u64::to_le_bytes(written).to_vec()),
                _ => {
                    match (what, channels.get(at)) {
                        (17 | 18, Some(channel)) => while let Ok(Received::Message(_)) = channel.try_receive() {},
                        (19, Some(channel)) => channel.finish(),
                        (20, Some(channel)) => channel.cancel(),
                        (21, Some(_)) => { channels.swap_remove(at); }
                        // Within what an untouched channel can always send.
                        (22, Some(channel)) => {
                            let id = channel.id();
                            core.change(id, |lane| {
                                let mut share = Budget::new(4 << 20, 1).admit().unwrap();
                                if let Ok(Room::All) = lane.room(50, &mut share) && lane.windows() == 2 * FIRST_WINDOW_BYTES {
                                    lane.send(Frame::new(0x80, id, vec![0; 50]));
                                }
                            });
                        }
                        (23, _) => {
                            if let Ok((newer, _)) = core.attach(written) {
                                generation = newer;
                            }
                        }
                        _ => {
                            if let Taken::Frames { frames, .. } = core.take(generation, true) {
                                written += frames.len() as u64;
                            }
                        }
                    }
                    continue;
                }
            };
            let channel = match kind {
                kinds::ACK => 0,
                kinds::OPEN if what < 4 => opened,
                _ => id.max(1),
            };
            let header = Header { length: payload.len() as u32, kind, channel };
            match core.check(header).and_then(|()| core.arrived(generation, header, payload)) {
                Ok(Arrival::Opened { channel, .. }) => channels.push(channel),
                Ok(_) => {}
                Err(violation) => core.end(
                    ChannelError::Violated { code: violation.code, text: violation.text.clone() },
                    Some((violation.code, &violation.text)),
                ),
            }
            prop_assert!(budget.high_water_bytes() <= budget.total_bytes());
        }
        drop(channels);
        core.end(ChannelError::Closed, None);
        prop_assert!(core.state.lock().lanes.is_empty());
        drop(core);
        prop_assert_eq!(budget.used_bytes(), 0);
    }
}
