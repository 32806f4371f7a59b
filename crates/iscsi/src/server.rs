//! Listening, and the login of each connection.

use crate::login::{Login, Refused};
use crate::negotiation::Parameters;
use crate::pdu::{Header, Incoming, Outgoing, StatusNumber, opcode};
use crate::scsi::{Nexus, Port, Tokens};
use crate::session::{Begun, Limits, serve};
use crate::target::{Sessions, Targets};
use crate::transport::{read, spell};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalConfig {
    /// The address.
    pub listen: SocketAddr,
    /// The address that initiators are told, where it is another one: `HOST:PORT`.
    pub advertised: Option<String>,
}

/// Commands that are worked on at a time, of all sessions.
const WORKERS: usize = 64;

/// What sessions share.
pub(crate) struct Shared {
    pub(crate) targets: Arc<dyn Targets>,
    pub(crate) limits: Limits,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) workers: Arc<Semaphore>,
    pub(crate) tokens: Tokens,
    portals: Vec<Portal>,
    next_handle: AtomicU16,
}

struct Portal {
    /// Portal group: each portal is one, so that each is a path of its own.
    group: u16,
    address: SocketAddr,
    advertised: Option<String>,
}

impl Shared {
    /// The addresses of all portals with their groups, as initiators are told.
    pub(crate) fn portals(&self) -> Vec<String> {
        let address = |portal: &Portal| portal.advertised.clone().unwrap_or_else(|| portal.address.to_string());
        self.portals.iter().map(|portal| format!("{},{}", address(portal), portal.group)).collect()
    }
}

/// A server that listens.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
}

impl Server {
    /// Listens on all portals.
    pub async fn bind(portals: &[PortalConfig], targets: Arc<dyn Targets>, limits: Limits) -> io::Result<Server> {
        let (mut listeners, mut bound) = (Vec::new(), Vec::new());
        for (number, portal) in portals.iter().enumerate() {
            let listener = TcpListener::bind(portal.listen).await?;
            bound.push(Portal { group: number as u16 + 1, address: listener.local_addr()?, advertised: portal.advertised.clone() });
            listeners.push(listener);
        }
        let shared = Shared {
            targets,
            limits,
            sessions: Arc::default(),
            workers: Arc::new(Semaphore::new(WORKERS)),
            tokens: Tokens::default(),
            portals: bound,
            next_handle: AtomicU16::new(1),
        };
        Ok(Server { shared: Arc::new(shared), listeners })
    }

    /// The addresses, with the ports that were given.
    pub fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.shared.portals.iter().map(|portal| portal.address)
    }

    /// Relative identifiers of the target ports.
    pub fn ports(&self) -> Vec<u16> {
        self.shared.portals.iter().map(|portal| portal.group).collect()
    }

    /// Serves until `shutdown` is done; then initiators are asked to log out, and after a while disconnected.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut accepting = tokio::task::JoinSet::new();
        for (listener, portal) in self.listeners.into_iter().zip(&self.shared.portals) {
            accepting.spawn(accept(self.shared.clone(), listener, portal.group));
        }
        shutdown.await;
        accepting.shutdown().await;
        self.shared.sessions.ask_to_log_out();
        let begun = tokio::time::Instant::now();
        while self.shared.sessions.count() > 0 && begun.elapsed() < self.shared.limits.patience {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, group: u16) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    if let Err(error) = connection(shared, stream, group).await {
                        tracing::debug!(%address, %error, "a connection ended in its login");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// Connections in their login, for each place of a session.
async fn connection(shared: Arc<Shared>, mut stream: TcpStream, group: u16) -> io::Result<()> {
    let patience = shared.limits.patience;
    let logged_in = tokio::time::timeout(patience, log_in(&shared, &mut stream, group)).await;
    let begun = match logged_in {
        Ok(begun) => begun?,
        Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the login takes too long")),
    };
    if let Some(begun) = begun {
        let (input, output) = stream.into_split();
        serve(shared, begun, tokio::io::BufReader::with_capacity(64 << 10, input), output).await;
    }
    Ok(())
}

async fn log_in(shared: &Arc<Shared>, stream: &mut TcpStream, group: u16) -> io::Result<Option<Begun>> {
    let mut login = Login::new(group);
    let plain = Parameters::default();
    let mut status_number = 1;
    loop {
        let pdu = read(stream, &plain).await?;
        if pdu.header.opcode() != opcode::LOGIN {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the first PDU is no login"));
        }
        let Incoming { header, data, .. } = pdu;
        let mut response = response_to(&header);
        let expected_command = header.command_number();
        let answer = login.step(&header, &data, &*shared.targets).and_then(|answer| {
            if header.tsih() != 0 {
                // More connections of a session are not offered, and sessions end with their connection.
                return Err(Refused::NoSuchSession);
            }
            if answer.is_done && shared.sessions.count() >= shared.limits.sessions {
                return Err(Refused::OutOfResources);
            }
            Ok(answer)
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(refused) => {
                response.put(36, &(refused as u16).to_be_bytes());
                send(stream, response, &mut status_number, expected_command).await?;
                return Ok(None);
            }
        };
        response.header[1] = answer.flags;
        response.data = answer.text;
        if !answer.is_done {
            send(stream, response, &mut status_number, expected_command).await?;
            continue;
        }
        let target = match &login.target {
            Some(name) => Some(shared.targets.target(name).ok_or_else(|| io::Error::other("the target is gone"))?),
            None => None,
        };
        let isid = header.isid();
        let hex = isid.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let nexus = Nexus { initiator: format!("{},i,0x{hex}", login.initiator), target_port: group };
        let (control, told) = mpsc::unbounded_channel();
        let place = shared.sessions.enter(login.target.clone(), nexus.clone(), control).await;
        let handle = shared.next_handle.fetch_add(1, Ordering::Relaxed).max(1);
        response.put(14, &handle.to_be_bytes());
        send(stream, response, &mut status_number, expected_command).await?;
        return Ok(Some(Begun {
            parameters: login.parameters,
            port: Port { target: login.target.clone().unwrap_or_default(), group },
            target,
            initiator: login.initiator,
            nexus,
            place,
            control: told,
            expected_command,
            status_number,
        }));
    }
}

fn response_to(header: &Header) -> Outgoing {
    let mut response = Outgoing::new(opcode::LOGIN_RESPONSE, 0, header.task_tag(), StatusNumber::Own);
    response.put(8, &header.isid());
    response.put(14, &header.tsih().to_be_bytes());
    response
}

async fn send(stream: &mut TcpStream, mut pdu: Outgoing, status_number: &mut u32, expected_command: u32) -> io::Result<()> {
    // A refused login has no sequence numbers that matter.
    pdu.finish(status_number, expected_command, expected_command.wrapping_add(16));
    stream.write_all(&spell(pdu, &Parameters::default())).await?;
    stream.flush().await
}
