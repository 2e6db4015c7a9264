//! `POST /files`.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{StatusCode, header};
use protocol::envd::WrittenFile;
use tokio::sync::mpsc;

use super::download::check_kind;
use super::multipart::{MalformedError, Parser, Part, Sink};
use super::{Failure, Place};
use crate::daemon::Daemon;
use crate::filesystem::make_parents;
use crate::reply::{self, Reply};
use crate::request::{self, Request};

/// Pieces of the body that wait for the disk.
const PIECES_AHEAD: usize = 4;
/// How much of a refused body is still taken, so that the client reads the answer instead of a broken connection.
const DRAIN_BYTES_MAX: usize = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);
const FILE_MODE: u32 = 0o644;
/// The only form field that holds files.
const FIELD: &str = "file";

/// Writes the files of the request's body.
pub(crate) async fn upload(daemon: Arc<Daemon>, request: Request) -> Reply {
    let prepared = prepare(&daemon, &request);
    let mut body = request.into_body();
    let result = match prepared {
        Ok(receiver) => receive(receiver, &mut body).await,
        Err(failure) => Err(failure),
    };
    match result {
        Ok(written) => reply::json(StatusCode::OK, &written),
        Err(failure) => {
            drain(&mut body).await;
            failure.into()
        }
    }
}

async fn drain(body: &mut Incoming) {
    let drained = tokio::time::timeout(DRAIN_TIME, async {
        let mut bytes = 0;
        while let Ok(Some(chunk)) = request::next_chunk(body).await {
            bytes += chunk.len();
            if bytes > DRAIN_BYTES_MAX {
                return;
            }
        }
    });
    // Either way the answer is sent now.
    let _ = drained.await;
}

fn prepare(daemon: &Daemon, request: &Request) -> Result<Receiver, Failure> {
    let query = request.uri().query().unwrap_or_default();
    let place = Place::of(daemon, request::query_value(query, "username").as_deref())?;
    let path = request::query_value(query, "path").filter(|path| !path.is_empty());
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let encoding = text(header::CONTENT_ENCODING);
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
        let message = format!("content encoding {encoding:?} is not supported; send the file as it is");
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let content_type = text(header::CONTENT_TYPE);
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let writer = Writer { place, path, current: None, seen: HashSet::new(), written: Vec::new() };
    let format = match media_type.as_str() {
        "multipart/form-data" => {
            let message = "the content type multipart/form-data has no usable boundary";
            let parser =
                Parser::for_content_type(content_type).ok_or_else(|| Failure::bad_request(message))?;
            Format::Multipart(Box::new(parser))
        }
        "application/octet-stream" if writer.path.is_none() => {
            return Err(Failure::bad_request(
                "an upload as application/octet-stream needs the parameter path",
            ));
        }
        "application/octet-stream" => Format::Raw,
        _ => {
            let message = format!(
                "content type {media_type:?} is not supported; use multipart/form-data or application/octet-stream"
            );
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    };
    Ok(Receiver { writer, format })
}

/// A piece of the body. Without the last one the client has gone in the middle.
enum Piece {
    Content(Bytes),
    End,
}

/// Hands the body to a helper thread that writes it.
async fn receive(receiver: Receiver, body: &mut Incoming) -> Result<Vec<WrittenFile>, Failure> {
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    let writing = tokio::task::spawn_blocking(move || receiver.run(pieces));
    let mut broken = None;
    loop {
        let piece = match request::next_chunk(body).await {
            Ok(Some(bytes)) => Piece::Content(bytes),
            Ok(None) => Piece::End,
            Err(error) => {
                broken = Some(Failure::bad_request(error.to_string()));
                break;
            }
        };
        let is_last = matches!(piece, Piece::End);
        // The writer only stops taking pieces when it has failed; it says why below.
        if sender.send(piece).await.is_err() || is_last {
            break;
        }
    }
    drop(sender);
    let result = writing.await;
    match (result, broken) {
        (_, Some(failure)) => Err(failure),
        (Ok(result), None) => result,
        (Err(_), None) => {
            Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the daemon failed on this upload"))
        }
    }
}

enum Format {
    Raw,
    Multipart(Box<Parser>),
}

struct Receiver {
    writer: Writer,
    format: Format,
}

impl Receiver {
    fn run(mut self, mut pieces: mpsc::Receiver<Piece>) -> Result<Vec<WrittenFile>, Failure> {
        if matches!(self.format, Format::Raw) {
            self.writer.begin(Part { name: FIELD.into(), filename: None })?;
        }
        loop {
            match (pieces.blocking_recv(), &mut self.format) {
                (Some(Piece::Content(bytes)), Format::Raw) => self.writer.content(&bytes)?,
                (Some(Piece::Content(bytes)), Format::Multipart(parser)) => {
                    parser.push(&bytes, &mut self.writer)?;
                }
                (Some(Piece::End), Format::Raw) => {
                    self.writer.end()?;
                    return Ok(self.writer.written);
                }
                (Some(Piece::End), Format::Multipart(parser)) => {
                    parser.finish()?;
                    return Ok(self.writer.written);
                }
                (None, _) => return Err(Failure::bad_request("the upload broke off")),
            }
        }
    }
}

impl From<MalformedError> for Failure {
    fn from(error: MalformedError) -> Self {
        Self::bad_request(format!("the form is damaged: {}", error.0))
    }
}

/// Writes parts into files, in place: an existing file keeps its mode and its hard links.
struct Writer {
    place: Place,
    /// The path of the query, which wins over the parts' file names.
    path: Option<String>,
    /// The file being written; none in parts that are not files.
    current: Option<(File, PathBuf)>,
    seen: HashSet<PathBuf>,
    written: Vec<WrittenFile>,
}

impl Sink for Writer {
    type Error = Failure;

    fn begin(&mut self, part: Part) -> Result<(), Failure> {
        if part.name != FIELD {
            return Ok(());
        }
        let asked = match (&self.path, &part.filename) {
            (Some(path), _) => path,
            (None, Some(name)) if !name.is_empty() => name,
            _ => return Err(Failure::bad_request("a file has neither a file name nor the parameter path")),
        };
        let path = self.place.path(asked)?;
        if !self.seen.insert(path.clone()) {
            return Err(Failure::bad_request(format!(
                "path '{}' is written twice in one request",
                path.display()
            )));
        }
        let file = self.create(&path)?;
        self.written.push(WrittenFile {
            path: path.to_string_lossy().into_owned(),
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            kind: "file".into(),
        });
        self.current = Some((file, path));
        Ok(())
    }

    fn content(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.current {
            Some((file, path)) => file.write_all(bytes).map_err(|error| Failure::io(&error, path)),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.current = None;
        Ok(())
    }
}

impl Writer {
    fn create(&self, path: &Path) -> Result<File, Failure> {
        let failed = |error: std::io::Error| Failure::io(&error, path);
        let user = &self.place.user;
        make_parents(path, user).map_err(failed)?;
        match path.metadata() {
            Ok(meta) => check_kind(&meta, path)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let mut options = File::options();
        // Not truncated while opening: what is there may have become something else since it was looked at. Without
        // O_NONBLOCK, opening a pipe would wait for a reader.
        options.write(true).create(true).truncate(false).mode(FILE_MODE);
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        check_kind(&meta, path)?;
        fchown(&file, Some(user.uid), Some(user.gid)).map_err(failed)?;
        if meta.len() > 0 {
            file.set_len(0).map_err(failed)?;
        }
        Ok(file)
    }
}
