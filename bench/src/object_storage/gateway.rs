//! A service of object storage for one contender: the Versity gateway, in a process of its own whose temporary
//! directory is where the repositories are.

use anyhow::{Context, Result};
use onefold_bucket::gateway::Gateway;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running service. It ends, and its objects are deleted, when this is dropped or this program is killed.
pub struct Service {
    process: Child,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its bucket.
    pub bucket: String,
    /// The directory that has the objects of the bucket as files.
    pub objects: PathBuf,
    pub region: String,
    pub key: String,
    pub secret: String,
}

impl Service {
    /// Starts a service with an empty bucket in a directory.
    pub fn start(directory: &Path) -> Result<Service> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("gateway").env("TMPDIR", directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start this program again")?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no pipe")?).read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).context("there is no gateway: set ONEFOLD_VERSITYGW to one")?;
        let text = |name: &str| said[name].as_str().map(str::to_owned).with_context(|| format!("the gateway says no {name}"));
        let address = text("endpoint")?.trim_start_matches("http://").parse()?;
        let bucket = text("url")?.trim_start_matches("s3://").to_owned();
        Ok(Service {
            process,
            address,
            bucket,
            objects: text("objects")?.into(),
            region: text("AWS_REGION")?,
            key: text("AWS_ACCESS_KEY_ID")?,
            secret: text("AWS_SECRET_ACCESS_KEY")?,
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It ends when its standard input does.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The process in between: starts the gateway, says where it is, and stops it when standard input ends.
pub fn serve() -> Result<()> {
    let gateway = Gateway::start().context("there is no gateway")?;
    let mut said = json!({"endpoint": gateway.endpoint(), "url": gateway.url(), "objects": gateway.objects()});
    for (name, value) in gateway.environment() {
        said[name] = value.into();
    }
    println!("{said}");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
