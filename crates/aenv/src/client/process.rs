//! A process in a sandbox: start it, follow its output, feed and signal it.

use anyhow::{Context, anyhow, bail};
use protocol::connect::{self, EnvelopeDecoder};
use protocol::envd::{
    self, CloseStdinRequest, Empty, EventMessage, ProcessEvent, ProcessInput, ProcessSelector, Pty, PtySize,
    SendInputRequest, SendSignalRequest, Signal, StartRequest, UpdateRequest,
};
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;

use super::SILENCE_TIMEOUT;
use super::guest::{Failure, Guest};

/// The daemon sends at most 32 KiB of output at a time, which is 44 KiB as base64.
const MAX_MESSAGE_BYTES: u32 = 1 << 20;

/// The events of a process that was started.
#[derive(Debug)]
pub(crate) struct Events {
    response: Response,
    decoder: EnvelopeDecoder,
}

impl Events {
    /// The next event; nothing after the last one.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<ProcessEvent>> {
        loop {
            if let Some(envelope) = self.decoder.next_envelope().context("the sandbox's stream is damaged")? {
                if !envelope.is_end() {
                    let message: EventMessage = serde_json::from_slice(&envelope.message)
                        .context("the sandbox's stream is damaged")?;
                    return Ok(Some(message.event.unwrap_or_default()));
                }
                let error = envelope.end_error().context("the sandbox's stream is damaged")?;
                return error.map_or(Ok(None), |error| Err(Failure(error).into()));
            }
            let chunk = tokio::time::timeout(SILENCE_TIMEOUT, self.response.chunk()).await.map_err(|_| {
                anyhow!("the sandbox has been silent for {} s; is it gone?", SILENCE_TIMEOUT.as_secs())
            })?;
            let lost = "the connection to the sandbox broke; was it killed, or did its time end?";
            match chunk.map_err(|error| anyhow::Error::new(error.without_url()).context(lost))? {
                Some(chunk) => self.decoder.push(&chunk),
                None => bail!(lost),
            }
        }
    }
}

impl Guest {
    /// Starts a process and waits until it runs. Answers its number and its further events.
    pub(crate) async fn start(&self, start: &StartRequest) -> anyhow::Result<(u32, Events)> {
        let body = serde_json::to_vec(start).context("write the request")?;
        let body = connect::encode(0, body.len(), |frame| frame.extend_from_slice(&body));
        let request = self
            .procedure(envd::PROCESS_SERVICE, "Start")
            .header(CONTENT_TYPE, connect::CONTENT_TYPE_STREAM)
            .header("connect-protocol-version", "1")
            .header(connect::HEADER_KEEPALIVE_S, "50")
            .body(body);
        let response = self.send(request).await?;
        let mut events = Events { response, decoder: EnvelopeDecoder::new(MAX_MESSAGE_BYTES) };
        loop {
            match events.next().await? {
                Some(ProcessEvent { start: Some(started), .. }) => return Ok((started.pid, events)),
                Some(_) => {}
                None => bail!("sandbox {} ended the stream before the process ran", self.id()),
            }
        }
    }

    /// Writes to the standard input, or the terminal, of a process.
    pub(crate) async fn send_input(&self, pid: u32, bytes: Vec<u8>, terminal: bool) -> anyhow::Result<()> {
        let input = if terminal {
            ProcessInput { pty: Some(bytes), ..ProcessInput::default() }
        } else {
            ProcessInput { stdin: Some(bytes), ..ProcessInput::default() }
        };
        let request = SendInputRequest { process: ProcessSelector::Pid(pid), input: Some(input) };
        self.call::<Empty>(envd::PROCESS_SERVICE, "SendInput", &request).await.map(drop)
    }

    /// Ends the standard input of a process.
    pub(crate) async fn close_input(&self, pid: u32) -> anyhow::Result<()> {
        let request = CloseStdinRequest { process: ProcessSelector::Pid(pid) };
        self.call::<Empty>(envd::PROCESS_SERVICE, "CloseStdin", &request).await.map(drop)
    }

    pub(crate) async fn signal(&self, pid: u32, signal: Signal) -> anyhow::Result<()> {
        let request = SendSignalRequest { process: ProcessSelector::Pid(pid), signal };
        self.call::<Empty>(envd::PROCESS_SERVICE, "SendSignal", &request).await.map(drop)
    }

    pub(crate) async fn resize(&self, pid: u32, size: PtySize) -> anyhow::Result<()> {
        let request =
            UpdateRequest { process: ProcessSelector::Pid(pid), pty: Some(Pty { size: Some(size) }) };
        self.call::<Empty>(envd::PROCESS_SERVICE, "Update", &request).await.map(drop)
    }
}
