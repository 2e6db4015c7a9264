//! Client of the QEMU Machine Protocol: one JSON object a line over a unix socket.
//!
//! Protocol: QEMU `docs/interop/qmp-spec.rst`. QEMU serves one client at a time and queues the others, so a connection is
//! opened for an operation and closed after it: whoever comes next, also a later process, finds QEMU free. That costs
//! about half a millisecond and saves all state between operations.

use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// Answers in use are under 1 KiB. QEMU runs guests and may be taken over by one, so it is not trusted to end a line.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Why a command gave no result. Deadlines are the caller's.
#[derive(Debug, thiserror::Error)]
pub(super) enum QmpError {
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("QEMU closed the connection")]
    Closed,
    #[error("not an answer as QMP defines it: {0}")]
    Protocol(String),
    #[error("{0}")]
    Refused(String),
}

/// An open connection, past the greeting.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
    last_id: u64,
}

/// Any line that QEMU sends.
#[derive(Debug, Deserialize)]
struct Message {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    #[serde(rename = "return")]
    result: Option<Value>,
    error: Option<Refusal>,
    event: Option<String>,
    id: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    desc: String,
}

impl Qmp {
    /// Connects, waits for the greeting and leaves negotiation mode. A QEMU that is still starting, or that serves another
    /// client, greets when it gets to it.
    pub(super) async fn connect(path: &Path) -> Result<Self, QmpError> {
        let mut qmp = Self { stream: BufReader::new(UnixStream::connect(path).await?), last_id: 0 };
        let message = qmp.read_message().await?;
        if message.greeting.is_none() {
            return Err(QmpError::Protocol(format!("{message:?} instead of a greeting")));
        }
        qmp.execute::<Value>("qmp_capabilities", None).await?;
        Ok(qmp)
    }

    /// Sends a command and waits for its result; events in between are passed over.
    pub(super) async fn execute<T: DeserializeOwned>(
        &mut self,
        command: &str,
        arguments: Option<Value>,
    ) -> Result<T, QmpError> {
        self.last_id += 1;
        let id = self.last_id;
        let mut request = json!({ "execute": command, "id": id });
        if let Some(arguments) = arguments {
            request["arguments"] = arguments;
        }
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).await?;
        loop {
            let message = self.read_message().await?;
            if message.event.is_some() {
                continue;
            }
            if message.id.is_some_and(|answered| answered != id) {
                return Err(QmpError::Protocol(format!("an answer to another command: {message:?}")));
            }
            return match (message.result, message.error) {
                (_, Some(refusal)) => Err(QmpError::Refused(refusal.desc)),
                (Some(result), None) => serde_json::from_value(result)
                    .map_err(|error| QmpError::Protocol(format!("{command}: {error}"))),
                (None, None) => Err(QmpError::Protocol(format!("neither result nor error for {command}"))),
            };
        }
    }

    async fn read_message(&mut self) -> Result<Message, QmpError> {
        let mut line = Vec::new();
        loop {
            let available = self.stream.fill_buf().await?;
            if available.is_empty() {
                return Err(QmpError::Closed);
            }
            let newline = available.iter().position(|&byte| byte == b'\n');
            let taken = newline.map_or(available.len(), |position| position + 1);
            line.extend_from_slice(&available[..taken]);
            self.stream.consume(taken);
            if line.len() > MAX_LINE_BYTES {
                return Err(QmpError::Protocol(format!("a line of more than {MAX_LINE_BYTES} bytes")));
            }
            if newline.is_some() {
                return serde_json::from_slice(&line).map_err(|error| QmpError::Protocol(error.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;

    const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";

    /// A peer that says these lines, one more for each request, and then closes.
    async fn answer_of(lines: Vec<String>) -> Result<Value, QmpError> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("qmp.sock");
        let listener = UnixListener::bind(&path).expect("bound");
        let peer = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("connected");
            for line in lines {
                stream.write_all(line.as_bytes()).await.expect("written");
                // The client may have given up, which is what some of these tests are about.
                let _ = stream.read(&mut [0; 4096]).await;
            }
        });
        let result = async { Qmp::connect(&path).await?.execute("query-status", None).await }.await;
        peer.abort();
        result
    }

    fn lines(after_greeting: &[&str]) -> Vec<String> {
        [GREETING, "{\"return\": {}, \"id\": 1}\r\n"]
            .iter()
            .chain(after_greeting)
            .map(|line| (*line).to_owned())
            .collect()
    }

    #[tokio::test]
    async fn events_before_the_answer_are_passed_over() {
        let answer = "{\"event\": \"RESUME\", \"timestamp\": {}}\r\n{\"return\": {\"status\": \"running\"}, \"id\": 2}\r\n";
        assert_eq!(answer_of(lines(&[answer])).await.expect("answered")["status"], "running");
    }

    #[tokio::test]
    async fn a_refusal_carries_qemus_words() {
        let answer = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"not now\"}, \"id\": 2}\n";
        assert!(
            matches!(answer_of(lines(&[answer])).await, Err(QmpError::Refused(words)) if words == "not now")
        );
    }

    #[tokio::test]
    async fn a_late_answer_to_another_command_is_not_taken() {
        let answer = "{\"return\": {}, \"id\": 1}\n";
        assert!(matches!(answer_of(lines(&[answer])).await, Err(QmpError::Protocol(_))));
    }

    #[tokio::test]
    async fn a_closed_connection_is_told_from_an_answer() {
        assert!(matches!(answer_of(lines(&[])).await, Err(QmpError::Closed | QmpError::Connection(_))));
    }

    #[tokio::test]
    async fn endless_lines_and_other_talk_are_refused() {
        assert!(matches!(answer_of(lines(&[&"x".repeat(2 << 20)])).await, Err(QmpError::Protocol(_))));
        assert!(matches!(answer_of(vec!["hello\n".to_owned()]).await, Err(QmpError::Protocol(_))));
        assert!(matches!(answer_of(vec!["{\"return\": {}}\n".to_owned()]).await, Err(QmpError::Protocol(_))));
    }
}
