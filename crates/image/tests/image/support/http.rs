//! A small HTTP server whose every answer a test decides, for what a real registry does not do on demand.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Start of the range asked for.
    pub(crate) fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Close the connection after this many bytes of the body.
    pub(crate) cut_after: Option<usize>,
    /// Send nothing more after this many bytes, but keep the connection.
    pub(crate) stall_after: Option<usize>,
}

pub(crate) fn answer(status: u16, body: impl Into<Vec<u8>>) -> Response {
    Response { status, headers: Vec::new(), body: body.into(), cut_after: None, stall_after: None }
}

impl Response {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

type Handler = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start(handler: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (handler, seen): (Handler, _) = (Arc::new(handler), requests.clone());
        // Lives as long as the test process: nothing joins it, and it holds nothing but the port.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, seen) = (handler.clone(), seen.clone());
                std::thread::spawn(move || serve(stream, &handler, &seen));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, handler: &Handler, seen: &Mutex<Vec<Request>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let request = read_request(&mut reader)?;
        seen.lock().unwrap().push(request.clone());
        let response = handler(&request);
        let mut head =
            format!("HTTP/1.1 {} Status\r\ncontent-length: {}\r\n", response.status, response.body.len());
        for (name, value) in &response.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
        let sent = response
            .cut_after
            .or(response.stall_after)
            .unwrap_or(response.body.len())
            .min(response.body.len());
        stream.write_all(&response.body[..sent]).ok()?;
        if response.stall_after.is_some() {
            std::thread::sleep(Duration::from_secs(30));
        }
        if sent < response.body.len() {
            return None;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let mut first = lines.first()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut request = Request { method, path, headers, body: String::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).ok()?;
    Some(request)
}

/// Serves the one image of a layout as any repository and tag.
pub(crate) struct LayoutRegistry {
    /// By hexadecimal digest.
    blobs: HashMap<String, Vec<u8>>,
    manifest: String,
}

impl LayoutRegistry {
    pub(crate) fn new(layout: &Path) -> Self {
        let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
        let manifest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
        let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
        });
        Self { blobs: blobs.collect(), manifest }
    }

    /// As a well-behaved registry answers, ranges included.
    pub(crate) fn answer(&self, request: &Request) -> Response {
        let (kind, name) = match request.path.rsplit('/').collect::<Vec<_>>()[..] {
            [name, kind, ..] => (kind, name),
            _ => return answer(404, ""),
        };
        let digest = if kind == "manifests" && !name.starts_with("sha256:") { &self.manifest } else { name };
        let Some(body) = self.blobs.get(digest.trim_start_matches("sha256:")).cloned() else {
            return answer(404, r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#);
        };
        if kind == "manifests" {
            return answer(200, body).header("content-type", "application/vnd.oci.image.manifest.v1+json");
        }
        match request.range_start() {
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", body.len() - 1, body.len());
                answer(206, &body[start..]).header("content-range", &range)
            }
            None => answer(200, body),
        }
    }
}
