//! A raw HTTP/1.1 client that shows exactly what is on the wire.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use protocol::connect::{EnvelopeDecoder, encode};
use protocol::envd::{EventMessage, ProcessEvent};
use serde_json::Value;

use crate::server::Finished;

/// Longer than anything a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request under construction.
#[derive(Debug)]
pub(crate) struct Request {
    address: SocketAddr,
    head: String,
    body: Vec<u8>,
    is_chunked: bool,
}

impl Request {
    pub(crate) fn new(address: SocketAddr, method: &str, target: &str) -> Self {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: sandbox\r\n");
        Self { address, head, body: Vec::new(), is_chunked: false }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("Content-Type", content_type)
    }

    pub(crate) fn json(self, message: &Value) -> Self {
        self.body("application/json", message.to_string())
    }

    pub(crate) fn envelope(self, message: &Value) -> Self {
        let envelope = encode(0, 0, |frame| frame.extend_from_slice(message.to_string().as_bytes()));
        self.body("application/connect+json", envelope)
    }

    /// Sends the body in chunks of no announced length, as JavaScript clients do.
    pub(crate) fn chunked(mut self) -> Self {
        self.is_chunked = true;
        self
    }

    /// Sends everything and leaves the answer to be read.
    pub(crate) fn connect(self) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = self.head.into_bytes();
        if self.is_chunked {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in self.body.chunks(10_000) {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", self.body.len()).as_bytes());
            bytes.extend_from_slice(&self.body);
        }
        stream.write_all(&bytes).unwrap();
        BufReader::new(stream)
    }

    /// Sends everything and reads the whole answer.
    pub(crate) fn send(self) -> Answer {
        let is_head = self.head.starts_with("HEAD ");
        let mut reader = self.connect();
        let mut answer = read_head(&mut reader);
        if is_head {
            return answer;
        }
        match answer.header("content-length") {
            Some(length) => {
                answer.body = vec![0; length.parse().unwrap()];
                reader.read_exact(&mut answer.body).unwrap();
            }
            None if answer.status != 204 && answer.status != 304 => {
                while let Some(chunk) = read_chunk(&mut reader) {
                    answer.body.extend_from_slice(&chunk);
                }
            }
            None => {}
        }
        answer
    }

    /// Sends everything and reads the answer's head; events follow.
    pub(crate) fn open(self) -> Stream {
        let mut reader = self.connect();
        let head = read_head(&mut reader);
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.header("content-type"), Some("application/connect+json"));
        let mut decoder = EnvelopeDecoder::new(1 << 20);
        // A stream whose whole content is known from the start may come with a length.
        let has_length = head.header("content-length").map(|length| {
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            decoder.push(&body);
        });
        Stream { reader, decoder, error: None, is_chunked: has_length.is_none() }
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    pub(crate) fn to_json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn read_line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn read_head(reader: &mut BufReader<TcpStream>) -> Answer {
    let line = read_line(reader);
    let status =
        line.split(' ').nth(1).unwrap_or_else(|| panic!("no status line: {line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader);
        if line.is_empty() {
            return Answer { status, headers, body: Vec::new() };
        }
        let (name, value) = line.split_once(':').unwrap();
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// The next chunk; none at the last one. A broken connection is a panic.
fn read_chunk(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let line = read_line(reader);
    let length = usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("not a chunk: {line:?}"));
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk).unwrap();
    chunk.truncate(length);
    (length > 0).then_some(chunk)
}

/// A stream of process events.
#[derive(Debug)]
pub(crate) struct Stream {
    reader: BufReader<TcpStream>,
    decoder: EnvelopeDecoder,
    error: Option<Value>,
    is_chunked: bool,
}

impl Stream {
    /// The next event; none at the stream's end, which must be announced.
    pub(crate) fn next(&mut self) -> Option<ProcessEvent> {
        loop {
            if let Some(envelope) = self.decoder.next_envelope().unwrap() {
                if envelope.is_end() {
                    let message: Value = serde_json::from_slice(&envelope.message).unwrap();
                    self.error = message.get("error").cloned();
                    let rest = if self.is_chunked { read_chunk(&mut self.reader) } else { None };
                    assert!(
                        rest.is_none() && !self.decoder.has_partial(),
                        "something follows the end of the stream"
                    );
                    return None;
                }
                let message: EventMessage = serde_json::from_slice(&envelope.message).unwrap();
                return Some(message.event.unwrap());
            }
            let chunk = if self.is_chunked { read_chunk(&mut self.reader) } else { None };
            let chunk = chunk.expect("the stream ends without an end message");
            self.decoder.push(&chunk);
        }
    }

    /// The process id in the first event.
    pub(crate) fn started(&mut self) -> u32 {
        self.next().unwrap_or_else(|| panic!("{self:?}")).start.unwrap().pid
    }

    /// Reads until standard output so far contains the text.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        let mut output = Vec::new();
        while !String::from_utf8_lossy(&output).contains(text) {
            let event = self.next().unwrap_or_else(|| panic!("ended before {text:?}: {output:?}"));
            let data = event.data.unwrap_or_default();
            output.extend(data.stdout.or(data.pty).unwrap_or_default());
        }
        String::from_utf8_lossy(&output).into_owned()
    }

    /// The code of the error that ended the stream.
    pub(crate) fn finish_error(self) -> Option<String> {
        self.error.and_then(|error| error["code"].as_str().map(str::to_owned))
    }

    /// Reads to the end.
    pub(crate) fn finish(mut self) -> Finished {
        let mut finished = Finished::default();
        while let Some(event) = self.next() {
            if let Some(start) = event.start {
                finished.pid = start.pid;
            }
            if let Some(data) = event.data {
                finished.stdout.extend(data.stdout.or(data.pty).unwrap_or_default());
                finished.stderr.extend(data.stderr.unwrap_or_default());
            }
            if let Some(end) = event.end {
                finished.end = Some(serde_json::to_value(end).unwrap());
            }
        }
        finished.error = self.error;
        finished
    }
}
