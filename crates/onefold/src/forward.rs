//! Connections of clients, passed on to the node that serves them.

use crate::failure::{Failure, Result};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How long a connection to the other node may take. Then the client is turned away, and tries again.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
/// How long it waits after an error of the listening socket: too many open files, for example.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens at some addresses, and passes every connection on.
#[derive(Debug)]
pub struct Forwarder {
    listeners: Vec<TcpListener>,
    to: String,
}

impl Forwarder {
    /// Listens. Connections go `to` HOST:PORT. Errors: an address is in use, or is not of this machine.
    pub async fn bind(addresses: &[SocketAddr], to: String) -> Result<Forwarder> {
        let mut listeners = Vec::with_capacity(addresses.len());
        for address in addresses {
            let listener = TcpListener::bind(address).await;
            listeners.push(listener.map_err(|error| {
                Failure::cannot_run(format!("cannot listen at {address} for clients: {error}"))
                    .advise("stop what listens there, or give this node another address")
            })?);
        }
        Ok(Forwarder { listeners, to })
    }

    /// Passes connections on, for ever. When the future is dropped, they break.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        for listener in self.listeners {
            tasks.spawn(pass_on(listener, self.to.clone()));
        }
        while tasks.join_next().await.is_some() {}
    }
}

async fn pass_on(listener: TcpListener, to: String) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => drop(connections.spawn(pass_one(client, to.clone()))),
            Err(error) => {
                tracing::warn!(%error, "a client cannot be let in");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn pass_one(mut client: TcpStream, to: String) {
    let connecting = tokio::time::timeout(CONNECTS_WITHIN, TcpStream::connect(&to));
    match connecting.await {
        Ok(Ok(mut server)) => {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let _ = copy_bidirectional(&mut client, &mut server).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "the node that serves clients cannot be reached at {to}"),
        Err(_) => tracing::debug!("the node that serves clients cannot be reached at {to} in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_go_both_ways_and_an_end_is_passed_on() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = server.local_addr().unwrap().to_string();
        let forwarder = Forwarder::bind(&["127.0.0.1:0".parse().unwrap()], to).await.unwrap();
        let address = forwarder.listeners[0].local_addr().unwrap();
        let running = tokio::spawn(forwarder.run());
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let (mut there, _) = server.accept().await.unwrap();
        let mut asked = Vec::new();
        there.read_to_end(&mut asked).await.unwrap();
        there.write_all(b"answer").await.unwrap();
        drop(there);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!((&asked[..], &answer[..]), (&b"question"[..], &b"answer"[..]));
        // Nobody is there any more: the client is turned away.
        drop(server);
        let mut client = TcpStream::connect(address).await.unwrap();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap_or(0), 0);
        running.abort();
    }

    #[tokio::test]
    async fn an_address_that_is_in_use_is_named() {
        let used = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = used.local_addr().unwrap();
        let error = Forwarder::bind(&[address], "127.0.0.1:1".to_owned()).await.unwrap_err();
        assert!(error.message.contains(&address.to_string()), "{}", error.message);
    }
}
