//! One ZooKeeper server of Debian's package on loopback, in a temporary directory. It is killed by its process id when
//! this is dropped.

use super::scene::{PATIENCE, free_port};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const JAR: &str = "/usr/share/java/zookeeper.jar";
/// Sessions have eight of them at least, and twenty at most.
const TICK_MS: u64 = 250;

pub struct ZooKeeper {
    directory: TempDir,
    port: u16,
    child: Option<Child>,
}

impl ZooKeeper {
    /// Starts one, and waits until it serves. `None`: it cannot run here, and the reason is printed.
    pub fn start() -> Option<ZooKeeper> {
        if !Path::new(JAR).exists() {
            println!("skipped: {JAR} is missing (apt-get install zookeeper)");
            return None;
        }
        if !Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            println!("skipped: java is missing (apt-get install default-jre-headless)");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let settings = format!(
            "tickTime={TICK_MS}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n",
            directory.path().join("data").display()
        );
        std::fs::write(directory.path().join("zoo.cfg"), settings).unwrap();
        let mut server = ZooKeeper { directory, port, child: None };
        server.go_on();
        Some(server)
    }

    /// Returns where it is.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills it. Its data stay.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it with its data, and waits until it serves.
    pub fn go_on(&mut self) {
        let output = File::create(self.directory.path().join("output")).unwrap();
        let mut command = Command::new("java");
        // Nobody needs these data when the machine loses power.
        command.args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]);
        command.args(["-Dzookeeper.jmx.log4j.disable=true", "-cp", JAR]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(self.directory.path().join("zoo.cfg"));
        command.current_dir(self.directory.path()).stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let child = self.child.insert(command.spawn().unwrap());
        let end = Instant::now() + PATIENCE;
        while !serves(self.port) {
            let has_ended = child.try_wait().unwrap().is_some();
            if has_ended || Instant::now() > end {
                let said = std::fs::read_to_string(self.directory.path().join("output")).unwrap_or_default();
                panic!("ZooKeeper does not serve: {said}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn serves(port: u16) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(b"srvr").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer.contains("Mode: "))
    };
    ask().unwrap_or(false)
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
