//! A proxy on loopback that counts the bytes of each direction, and delays them on request.
//!
//! What it adds is the same for all that is measured through it. A delay holds for each direction, so a round trip
//! takes twice as long; a new connection waits for one round trip, as its handshake would. Bytes in flight are bounded,
//! so a sender that is faster than the receiver still waits for it.

use anyhow::Result;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const BUFFER_BYTES: usize = 256 << 10;
/// What a direction of a connection may have in flight: 320 MB/s with 25 ms, more than a window of TCP lets through.
const IN_FLIGHT_BYTES: usize = 8 << 20;

/// A proxy that runs until it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    is_stopping: AtomicBool,
    open: Mutex<Vec<Weak<TcpStream>>>,
}

impl Proxy {
    /// Passes connections to `target`; every byte arrives `delay` after it was sent.
    pub fn start(target: SocketAddr, delay: Duration) -> Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let of_acceptor = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            for client in listener.incoming() {
                if of_acceptor.is_stopping.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                let shared = Arc::clone(&of_acceptor);
                thread::spawn(move || connect(client, target, delay, &shared));
            }
        });
        Ok(Proxy { address, shared, acceptor: Some(acceptor) })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that clients have sent and received so far, all connections together.
    pub fn passed_bytes(&self) -> (u64, u64) {
        (self.shared.sent_bytes.load(Ordering::SeqCst), self.shared.received_bytes.load(Ordering::SeqCst))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor; without that it would wait for a client.
        let is_awake = TcpStream::connect(self.address).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| is_awake) {
            let _ = acceptor.join();
        }
        for stream in lock(&self.shared.open).drain(..).filter_map(|stream| stream.upgrade()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The content, also after a panic of another thread: counts and queues are whole at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one client until both directions have ended.
fn connect(client: TcpStream, target: SocketAddr, delay: Duration, shared: &Shared) {
    let Ok(server) = TcpStream::connect(target) else { return };
    let (client, server) = (Arc::new(client), Arc::new(server));
    {
        let mut open = lock(&shared.open);
        open.retain(|stream| stream.strong_count() > 0);
        open.extend([Arc::downgrade(&client), Arc::downgrade(&server)]);
    }
    for stream in [&client, &server] {
        // A connection that has just broken ends in `pass`.
        let _ = stream.set_nodelay(true);
    }
    thread::sleep(2 * delay);
    thread::scope(|scope| {
        scope.spawn(|| pass(&client, &server, delay, &shared.sent_bytes));
        pass(&server, &client, delay, &shared.received_bytes);
    });
}

/// Passes one direction on until it ends; then the receiver is told that no more comes.
fn pass(from: &TcpStream, to: &TcpStream, delay: Duration, passed: &AtomicU64) {
    if delay.is_zero() {
        copy(from, passed, |bytes| write(to, bytes));
    } else {
        let flight = Flight::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                while let Some((due, bytes)) = flight.take() {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    if !write(to, &bytes) {
                        flight.end();
                        break;
                    }
                }
            });
            copy(from, passed, |bytes| flight.put(Instant::now() + delay, bytes.to_vec()));
            flight.end();
        });
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Hands on what comes from a stream until it ends, or the receiver takes no more.
fn copy(mut from: &TcpStream, passed: &AtomicU64, mut hand_on: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
            Ok(count) => {
                passed.fetch_add(count as u64, Ordering::SeqCst);
                if !hand_on(&buffer[..count]) {
                    // The sender must notice, as it would without a proxy.
                    let _ = from.shutdown(Shutdown::Both);
                    return;
                }
            }
        }
    }
}

fn write(mut to: &TcpStream, bytes: &[u8]) -> bool {
    to.write_all(bytes).is_ok()
}

/// Bytes on their way, the oldest first, each with the time of its arrival.
#[derive(Default)]
struct Flight {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    is_ended: bool,
}

impl Flight {
    /// Waits for room. False: nobody takes bytes any more.
    fn put(&self, due: Instant, bytes: Vec<u8>) -> bool {
        let mut state = lock(&self.state);
        while state.bytes >= IN_FLIGHT_BYTES && !state.is_ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_ended {
            return false;
        }
        state.bytes += bytes.len();
        state.pieces.push_back((due, bytes));
        self.changed.notify_all();
        true
    }

    /// The next piece; None after the last one.
    fn take(&self) -> Option<(Instant, Vec<u8>)> {
        let mut state = lock(&self.state);
        loop {
            if let Some((due, bytes)) = state.pieces.pop_front() {
                state.bytes -= bytes.len();
                self.changed.notify_all();
                return Some((due, bytes));
            }
            if state.is_ended {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No more is put; what is on its way still arrives.
    fn end(&self) {
        lock(&self.state).is_ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers all that one client sent, in reverse, once the client has ended.
    fn reversing() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            bytes.reverse();
            stream.write_all(&bytes[..bytes.len() / 2]).unwrap();
        });
        address
    }

    fn ask(proxy: &Proxy, question: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.write_all(question).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    #[test]
    fn bytes_pass_in_order_and_are_counted_both_ways() {
        let question: Vec<u8> = (0..10_000_000u32).map(|number| (number % 251) as u8).collect();
        for delay_ms in [0, 5] {
            let proxy = Proxy::start(reversing(), Duration::from_millis(delay_ms)).unwrap();
            let answer = ask(&proxy, &question);
            assert!(answer.iter().eq(question.iter().rev().take(question.len() / 2)), "delay {delay_ms} ms");
            assert_eq!(proxy.passed_bytes(), (10_000_000, 5_000_000), "delay {delay_ms} ms");
        }
    }

    #[test]
    fn a_question_and_its_answer_take_two_round_trips_with_the_handshake() {
        let proxy = Proxy::start(reversing(), Duration::from_millis(40)).unwrap();
        let begun = Instant::now();
        assert_eq!(ask(&proxy, b"ab"), b"b");
        assert!(begun.elapsed() >= Duration::from_millis(160), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_client_of_no_server_is_told() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let proxy = Proxy::start(free, Duration::ZERO).unwrap();
        assert_eq!(TcpStream::connect(proxy.address()).unwrap().read(&mut [0]).unwrap_or(0), 0);
    }

    #[test]
    fn dropping_ends_open_connections() {
        let proxy = Proxy::start(reversing(), Duration::from_millis(1)).unwrap();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.write_all(b"x").unwrap();
        while proxy.passed_bytes().0 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(proxy);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
}
