//! A gate between a node and one server of ZooKeeper. It holds requests back while the test says so, and lets them
//! through later, also those of connections that the node has given up.

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// ZooKeeper's number of a request that writes data.
const SET_DATA: [u8; 4] = 5u32.to_be_bytes();
/// Longest request of a node.
const LIMIT_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    Nothing,
    /// Writes of the number of the table, and what comes behind one on its connection.
    TableWrites,
    Everything,
}

pub struct Gate {
    port: u16,
    state: Arc<Mutex<State>>,
}

struct State {
    hold: Hold,
    /// How many connections have a write of the number of the table that is held.
    held_writes: usize,
    is_over: bool,
}

impl Gate {
    /// Opens a gate to a server on loopback.
    pub fn new(server_port: u16) -> Gate {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State { hold: Hold::Nothing, held_writes: 0, is_over: false }));
        let of_thread = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if of_thread.lock().is_over {
                    return;
                }
                let Ok(client) = client else { continue };
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port)) else { continue };
                let (mut answers, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut answers, &mut to_client);
                    let _ = to_client.shutdown(Shutdown::Both);
                });
                let state = of_thread.clone();
                std::thread::spawn(move || {
                    let _ = forward(client, &server, &state);
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        Gate { port, state }
    }

    pub fn servers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn hold(&self, hold: Hold) {
        self.state.lock().hold = hold;
    }

    pub fn holds_a_write(&self) -> bool {
        self.state.lock().held_writes > 0
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        *self.state.lock() = State { hold: Hold::Nothing, held_writes: 0, is_over: true };
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Forwards requests, one after the other.
fn forward(mut client: TcpStream, mut server: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    loop {
        let mut length = [0; 4];
        client.read_exact(&mut length)?;
        let length_bytes = u32::from_be_bytes(length) as usize;
        assert!(length_bytes <= LIMIT_BYTES);
        let mut request = vec![0; length_bytes];
        client.read_exact(&mut request)?;
        let is_write = request.get(4..8) == Some(&SET_DATA) && request.windows(6).any(|bytes| bytes == b"/table");
        let mut was_held = false;
        loop {
            let mut state = state.lock();
            let is_held = match state.hold {
                Hold::Nothing => false,
                Hold::TableWrites => is_write,
                Hold::Everything => true,
            };
            if is_write && is_held != was_held {
                state.held_writes = if is_held { state.held_writes + 1 } else { state.held_writes.saturating_sub(1) };
                was_held = is_held;
            }
            if !is_held {
                break;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(5));
        }
        server.write_all(&length)?;
        server.write_all(&request)?;
    }
}
