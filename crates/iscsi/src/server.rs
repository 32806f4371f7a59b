//! Accepts connections, and logs each one in.

use crate::limits::Limits;
use crate::login::{Login, Refused};
use crate::negotiation::Parameters;
use crate::pdu::{Header, Incoming, Outgoing, StatusNumber, opcode};
use crate::scsi::{Nexus, Port};
use crate::session::{Begun, serve};
use crate::shared::{Portal, Shared};
use crate::target::{Newcomer, NoPlace, SessionInfo, Sessions, Targets};
use crate::transport::{LOGIN_SEGMENT_BYTES, read, spell, write};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalConfig {
    /// The address.
    pub listen: SocketAddr,
    /// The address that initiators are told, if it differs: `HOST:PORT`.
    pub advertised: Option<String>,
}

/// A view and a control of a running server.
#[derive(Clone)]
pub struct Handle {
    sessions: Arc<Sessions>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Handle").field("sessions", &self.sessions.count()).finish()
    }
}

impl Handle {
    /// Returns the sessions, in the order in which they began.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.list()
    }

    /// Returns the number of sessions of a target.
    pub fn count_of(&self, target: &str) -> usize {
        self.sessions.count_of(target)
    }

    /// Returns the number of sessions ever begun.
    pub fn begun(&self) -> u64 {
        self.sessions.begun()
    }

    /// Closes the connection of a session. Returns whether the session exists. The initiator may log in again.
    pub fn close(&self, number: u64) -> bool {
        self.sessions.close_one(number)
    }

    /// Closes the connections of all sessions of a target.
    pub fn close_target(&self, target: &str) {
        self.sessions.close(target);
    }
}

/// A listening server.
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
        let shared = Arc::new(Shared::new(targets, limits, bound));
        Ok(Server { shared, listeners })
    }

    /// Returns the addresses, with the ports that the system chose.
    pub fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.shared.portals.iter().map(|portal| portal.address)
    }

    /// Relative identifiers of the target ports.
    pub fn ports(&self) -> Vec<u16> {
        self.shared.portals.iter().map(|portal| portal.group).collect()
    }

    /// Serves one connection that did not come through a portal, until it ends. For tests.
    ///
    /// # Errors
    /// The connection failed before its login was done.
    pub async fn serve_connection(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> io::Result<()> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let place = HalfOpen::enter(&self.shared, address.ip()).ok_or(io::ErrorKind::ConnectionRefused)?;
        let (input, output) = tokio::io::split(stream);
        connection(self.shared.clone(), input, output, Login::new(address.ip(), address, 1), place).await
    }

    /// Returns a handle to view and control the server while it runs.
    pub fn handle(&self) -> Handle {
        Handle { sessions: self.shared.sessions.clone() }
    }

    /// Serves until `shutdown` is done. Then initiators are asked to log out, and after [`Limits::farewell`] they are
    /// disconnected. On return no command is under way.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut accepting = tokio::task::JoinSet::new();
        for (listener, portal) in self.listeners.into_iter().zip(&self.shared.portals) {
            accepting.spawn(accept(self.shared.clone(), listener, portal.group));
        }
        shutdown.await;
        accepting.shutdown().await;
        self.shared.sessions.ask_to_log_out();
        let sessions = &self.shared.sessions;
        let all_gone = async |count: &(dyn Fn() -> usize + Sync)| {
            while count() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // Initiators that log out in time get the answer.
        if tokio::time::timeout(self.shared.limits.farewell, all_gone(&|| sessions.count_with_flushing())).await.is_err() {
            sessions.close_all();
            all_gone(&|| sessions.count()).await;
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, group: u16) {
    let mut crowd = Crowd::default();
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let shared = shared.clone();
                let Some(place) = HalfOpen::enter(&shared, address.ip()) else {
                    // Nothing is read from it, so it costs nothing.
                    crowd.turned_away(address.ip());
                    continue;
                };
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    let served = async {
                        let login = Login::new(address.ip(), stream.local_addr()?, group);
                        let (input, output) = stream.into_split();
                        connection(shared, input, output, login, place).await
                    };
                    if let Err(error) = served.await {
                        tracing::debug!(%address, %error, "a connection ended during its login");
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

/// Counts connections that were turned away, so that thousands of them do not fill the log.
#[derive(Default)]
struct Crowd {
    told: Option<Instant>,
    untold: u64,
}

impl Crowd {
    /// The shortest time between two log entries.
    const INTERVAL: Duration = Duration::from_secs(10);

    fn turned_away(&mut self, address: IpAddr) {
        self.untold += 1;
        if self.told.is_none_or(|told| told.elapsed() >= Crowd::INTERVAL) {
            tracing::warn!(
                "too many logins at once: closed {} connections, the last from {address}; the next report comes in {} seconds",
                self.untold,
                Crowd::INTERVAL.as_secs()
            );
            *self = Crowd { told: Some(Instant::now()), untold: 0 };
        }
    }
}

/// A connection in its login.
struct HalfOpen {
    shared: Arc<Shared>,
    address: IpAddr,
}

impl HalfOpen {
    /// Takes a place for a connection in its login. One address gets only a part of the places, so it cannot take all.
    fn enter(shared: &Arc<Shared>, address: IpAddr) -> Option<HalfOpen> {
        let mut half_open = shared.half_open.lock();
        let all: usize = half_open.values().sum();
        let own = half_open.entry(address).or_default();
        // An address without places keeps no entry in the map.
        let is_free = all < shared.limits.logins && *own < shared.limits.logins_of_address;
        if is_free {
            *own += 1;
        } else if *own == 0 {
            half_open.remove(&address);
        }
        is_free.then(|| HalfOpen { shared: shared.clone(), address })
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        let mut half_open = self.shared.half_open.lock();
        if let Some(count) = half_open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                half_open.remove(&self.address);
            }
        }
    }
}

async fn connection(
    shared: Arc<Shared>,
    mut input: impl AsyncRead + Send + Unpin + 'static,
    mut output: impl AsyncWrite + Send + Unpin + 'static,
    login: Login,
    place: HalfOpen,
) -> io::Result<()> {
    let patience = shared.limits.patience;
    let logged_in = tokio::time::timeout(patience, log_in(&shared, &mut input, &mut output, login)).await;
    drop(place);
    let begun = match logged_in {
        Ok(begun) => begun?,
        Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the login took too long")),
    };
    if let Some(begun) = begun {
        serve(shared, begun, tokio::io::BufReader::with_capacity(64 << 10, input), output).await;
    }
    Ok(())
}

async fn log_in(
    shared: &Arc<Shared>,
    input: &mut (impl AsyncRead + Unpin),
    output: &mut (impl AsyncWrite + Unpin),
    mut login: Login,
) -> io::Result<Option<Begun>> {
    let plain = Parameters::default();
    let mut status_number = 1;
    loop {
        let pdu = read(input, &plain, LOGIN_SEGMENT_BYTES, &mut Vec::new()).await?;
        if pdu.header.opcode() != opcode::LOGIN {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the first PDU is not a login request"));
        }
        let Incoming { header, data, .. } = pdu;
        let mut response = response_to(&header);
        let expected_command = header.command_number();
        // The decision about a login may read files.
        let step = || login.step(&header, &data, &*shared.targets);
        let answer = match tokio::task::block_in_place(step) {
            // Additional connections of a session are not offered. Sessions end with their connection.
            Ok(_) if header.tsih() != 0 => Err(Refused::NoSuchSession),
            answer => answer,
        };
        let begun = match &answer {
            Ok(answer) if answer.is_done => enter(shared, &login, &header, status_number).await,
            Ok(_) => Ok(None),
            Err(refused) => Err(*refused),
        };
        let begun = match begun {
            Ok(begun) => begun,
            Err(refused) => {
                let visitor = &login.visitor;
                if refused == Refused::AuthenticationFailure {
                    let (address, target) = (visitor.address, login.target.as_deref().unwrap_or("discovery"));
                    shared.denials.lock().denied(address, Instant::now(), &mut |unsaid| {
                        tracing::warn!(initiator = visitor.initiator, name = ?login.claimed().unwrap_or(""), %address, target, unsaid, "a \
                            login failed: the name or secret is wrong or missing");
                    });
                } else {
                    tracing::info!(initiator = visitor.initiator, address = %visitor.address, target = login.target, ?refused, "refused \
                        a login");
                }
                response.put(36, &(refused as u16).to_be_bytes());
                send(output, response, &mut status_number, expected_command, shared.limits.window(login.is_discovery)).await?;
                return Ok(None);
            }
        };
        if let Ok(answer) = answer {
            response.header[1] = answer.flags;
            response.data = answer.text.into();
        }
        if let Some(begun) = &begun {
            response.put(14, &begun.handle.to_be_bytes());
        }
        send(output, response, &mut status_number, expected_command, shared.limits.window(login.is_discovery)).await?;
        if let Some(begun) = begun {
            return Ok(Some(Begun { status_number, ..begun }));
        }
    }
}

/// Takes a place for a session after its login.
async fn enter(shared: &Arc<Shared>, login: &Login, header: &Header, status_number: u32) -> Result<Option<Begun>, Refused> {
    let target = match &login.target {
        // The owner of the targets may be changing them, which takes a while.
        Some(name) => Some(tokio::task::block_in_place(|| shared.targets.target(name)).ok_or(Refused::NotFound)?),
        None => None,
    };
    let (isid, visitor) = (header.isid(), login.visitor.clone());
    let hex = isid.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let nexus = Nexus { initiator: format!("{},i,0x{hex}", visitor.initiator), target_port: visitor.group };
    let (control, told) = mpsc::unbounded_channel();
    let newcomer = Newcomer { target: target.clone(), nexus: nexus.clone(), visitor: visitor.clone(), isid, parameters: login.parameters };
    let place = shared.sessions.enter(newcomer, &shared.limits, control).await.map_err(|why| match why {
        NoPlace::Full => Refused::OutOfResources,
        NoPlace::Closing => Refused::ServiceUnavailable,
    })?;
    // Changes of the target that began before the session was counted must end first. The target may be gone since.
    if let Some(target) = &target
        && !tokio::task::block_in_place(|| shared.targets.is_served(target))
    {
        return Err(Refused::NotFound);
    }
    Ok(Some(Begun {
        parameters: login.parameters,
        port: Port { target: login.target.clone().unwrap_or_default(), group: visitor.group },
        target,
        proved: login.proved().cloned(),
        visitor,
        nexus,
        place,
        handle: shared.next_handle.fetch_add(1, Ordering::Relaxed).max(1),
        control: told,
        expected_command: header.command_number(),
        status_number,
    }))
}

fn response_to(header: &Header) -> Outgoing {
    let mut response = Outgoing::new(opcode::LOGIN_RESPONSE, 0, header.task_tag(), StatusNumber::Own);
    response.put(8, &header.isid());
    response.put(14, &header.tsih().to_be_bytes());
    response
}

/// Sends an answer to a login. `window` is how many commands a session takes, beginning with this one.
async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    mut pdu: Outgoing,
    status_number: &mut u32,
    expected_command: u32,
    window: u32,
) -> io::Result<()> {
    pdu.finish(status_number, expected_command, expected_command.wrapping_add(window).wrapping_sub(1));
    write(stream, std::iter::once(&spell(pdu, &Parameters::default())), |_| ()).await
}
