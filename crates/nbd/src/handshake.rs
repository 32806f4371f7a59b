//! The negotiation of a connection: transfers the bytes that [`crate::haggling`] decides about.

use crate::context::{Context, LINGER, stopped};
use crate::haggling::{Haggling, Next, Session, TlsState, greeting};
use crate::options::{self, MAX_DATA_BYTES, MAX_SKIPPED_BYTES, OptionHeader};
use crate::tls::Wire;
use crate::wire::option;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// The result of the negotiation, and the stream, which may now be encrypted. `None`: the session ended as the protocol
/// allows.
pub(crate) type Agreed = Option<(Box<dyn Wire>, Session)>;

/// Negotiates. Never reads ahead, so bytes sent before TLS never count as sent under it. The caller limits the time.
pub(crate) async fn negotiate(mut stream: Box<dyn Wire>, tls: TlsState, context: &Arc<Context>) -> io::Result<Agreed> {
    stream.write_all(&greeting()).await?;
    stream.flush().await?;
    let Some(flags) = read_or_stop::<4>(&mut stream, context, None).await? else { return Ok(None) };
    let mut haggling = Haggling::new(u32::from_be_bytes(flags), tls).ok_or_else(|| broken("unknown client flags"))?;
    loop {
        let Some(header) = read_or_stop(&mut stream, context, Some(&mut haggling)).await? else { return Ok(None) };
        let header = options::parse_header(&header).ok_or_else(|| broken("the magic number of an option is wrong"))?;
        let answer = if header.length > MAX_SKIPPED_BYTES {
            return Err(broken("an option is too long"));
        } else if header.length > MAX_DATA_BYTES {
            let mut limited = (&mut stream).take(u64::from(header.length));
            tokio::io::copy(&mut limited, &mut tokio::io::sink()).await?;
            haggling.answer_too_big(header.option)
        } else {
            let mut data = vec![0; header.length as usize];
            stream.read_exact(&mut data).await?;
            let (returned, answer) = answer(haggling, header, data, context).await?;
            haggling = returned;
            answer
        };
        stream.write_all(&answer.bytes).await?;
        stream.flush().await?;
        match answer.next {
            Next::Continue => {}
            Next::StartTls => {
                let acceptor = context.acceptor.as_ref().ok_or_else(|| broken("TLS is enabled without a certificate"))?;
                stream = Box::new(acceptor.accept(stream).await?);
                haggling.tls_started();
            }
            Next::Transmit(session) => return Ok(Some((stream, session))),
            Next::Close => {
                stream.shutdown().await?;
                return Ok(None);
            }
        }
    }
}

/// Answers an option. If it asks about exports, runs on a thread of the pool, because finding them may take a while.
async fn answer(
    mut haggling: Haggling,
    header: OptionHeader,
    data: Vec<u8>,
    context: &Arc<Context>,
) -> io::Result<(Haggling, crate::haggling::Answer)> {
    if matches!(header.option, option::ABORT | option::STARTTLS | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS) {
        let answer = haggling.answer(header.option, &data, &*context.exports);
        return Ok((haggling, answer));
    }
    let worker = Arc::clone(&context.workers).acquire_owned().await.expect("nobody closes the semaphore");
    let exports = Arc::clone(&context.exports);
    let (sender, answered) = tokio::sync::oneshot::channel();
    context.pool.run(move || {
        let answer = haggling.answer(header.option, &data, &*exports);
        drop(worker);
        // No receiver: the negotiation timed out.
        let _ = sender.send((haggling, answer));
    });
    answered.await.map_err(|_| broken("the exports panicked"))
}

/// Reads `N` bytes. If the server stops meanwhile, waits only a moment longer. Returns `None` if the client stayed
/// silent until then, or left, which it may do between options.
async fn read_or_stop<const N: usize>(
    stream: &mut Box<dyn Wire>,
    context: &Context,
    haggling: Option<&mut Haggling>,
) -> io::Result<Option<[u8; N]>> {
    let mut stop = context.stop.subscribe();
    let mut bytes = [0; N];
    let read = stream.read_exact(&mut bytes);
    tokio::pin!(read);
    let outcome = tokio::select! {
        biased;
        () = stopped(&mut stop) => {
            if let Some(haggling) = haggling {
                haggling.stop();
            }
            match timeout(LINGER, read).await {
                Ok(outcome) => outcome,
                Err(_) => return Ok(None),
            }
        }
        outcome = &mut read => outcome,
    };
    match outcome {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
