//! `GET /files`.

use std::fs::{File, Metadata};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Response, StatusCode};

use super::range::{self, Wanted};
use super::{Failure, FileBody, Place};
use crate::daemon::Daemon;
use crate::reply::{self, Reply, ReplyBody};
use crate::request::{self, Request};

/// A file up to this size is read at once, which spares a helper thread for the time of sending.
const SMALL_BYTES_MAX: u64 = 64 << 10;
/// Files of `/proc` and `/sys` say they are empty; up to this much of them is sent.
const UNSIZED_BYTES_MAX: u64 = 1 << 20;

/// Sends a file.
pub(crate) async fn download(daemon: &Daemon, request: &Request) -> Reply {
    match try_download(daemon, request).await {
        Ok(reply) => reply,
        Err(failure) => failure.into(),
    }
}

async fn try_download(daemon: &Daemon, request: &Request) -> Result<Reply, Failure> {
    let query = request.uri().query().unwrap_or_default();
    let place = Place::of(daemon, request::query_value(query, "username").as_deref())?;
    let path = place.path(&request::query_value(query, "path").unwrap_or_default())?;
    if refuses_identity(request.headers()) {
        let message = "files are only sent as they are; allow the encoding identity";
        return Err(Failure::new(StatusCode::NOT_ACCEPTABLE, message));
    }
    let wishes = Wishes::read(request);
    let opened = tokio::task::spawn_blocking(move || open(path, &wishes)).await;
    match opened
        .map_err(|_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the daemon failed on this file"))??
    {
        Opened::Reply(reply) => Ok(reply),
        Opened::Stream { mut reply, file, bytes } => {
            *reply.body_mut() = ReplyBody::File(FileBody::read(file, bytes));
            Ok(reply)
        }
    }
}

/// What a request wants beside the path.
#[derive(Debug)]
struct Wishes {
    range: Option<String>,
    modified_since: Option<String>,
    head_only: bool,
}

impl Wishes {
    fn read(request: &Request) -> Self {
        let text = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        Self {
            range: text(header::RANGE).map(str::to_owned),
            modified_since: text(header::IF_MODIFIED_SINCE).map(str::to_owned),
            head_only: request.method() == Method::HEAD,
        }
    }
}

enum Opened {
    Reply(Reply),
    /// The head of an answer whose body is still to be read.
    Stream {
        reply: Reply,
        file: File,
        bytes: u64,
    },
}

fn open(path: PathBuf, wishes: &Wishes) -> Result<Opened, Failure> {
    let failed = |error: std::io::Error| Failure::io(&error, &path);
    // Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let mut file = options.open(&path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    check_kind(&meta, &path)?;
    let mut size = meta.len();
    let mut content = None;
    if size <= SMALL_BYTES_MAX {
        let bytes_max = if size == 0 { UNSIZED_BYTES_MAX } else { SMALL_BYTES_MAX };
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        (&mut file).take(bytes_max).read_to_end(&mut bytes).map_err(failed)?;
        size = bytes.len() as u64;
        content = Some(Bytes::from(bytes));
    }
    let mut reply = Response::new(ReplyBody::Whole(Bytes::new()));
    set_headers(reply.headers_mut(), &meta);
    if wishes.modified_since.as_deref() == Some(http_date(modified(&meta)).as_str()) {
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(Opened::Reply(reply));
    }
    let (offset, bytes) = match range::parse(wishes.range.as_deref(), size) {
        Wanted::All => (0, size),
        Wanted::Part { offset, bytes } => {
            *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
            let text = format!("bytes {offset}-{}/{size}", offset + bytes - 1);
            set_text(reply.headers_mut(), header::CONTENT_RANGE, &text);
            (offset, bytes)
        }
        Wanted::Unsatisfiable => {
            let message = format!("the range lies outside the file of {size} bytes");
            let mut reply = reply::error(StatusCode::RANGE_NOT_SATISFIABLE, message);
            set_text(reply.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(Opened::Reply(reply));
        }
    };
    // Also for an empty file, whose length clients want to see.
    reply.headers_mut().insert(header::CONTENT_LENGTH, bytes.into());
    if wishes.head_only {
        return Ok(Opened::Reply(reply));
    }
    match content {
        Some(content) => {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            let end = usize::try_from(offset + bytes).unwrap_or(usize::MAX).min(content.len());
            *reply.body_mut() = ReplyBody::Whole(content.slice(start..end));
            Ok(Opened::Reply(reply))
        }
        None => {
            file.seek(SeekFrom::Start(offset)).map_err(failed)?;
            Ok(Opened::Stream { reply, file, bytes })
        }
    }
}

/// Only regular files have a content that ends.
pub(super) fn check_kind(meta: &Metadata, path: &Path) -> Result<(), Failure> {
    let path = path.display();
    if meta.is_dir() {
        return Err(Failure::bad_request(format!("path '{path}' is a directory")));
    }
    if !meta.is_file() {
        return Err(Failure::bad_request(format!("path '{path}' is not a regular file")));
    }
    Ok(())
}

fn set_headers(headers: &mut HeaderMap, meta: &Metadata) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    set_text(headers, header::LAST_MODIFIED, &http_date(modified(meta)));
}

fn set_text(headers: &mut HeaderMap, name: header::HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

fn modified(meta: &Metadata) -> SystemTime {
    meta.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`. Equality is all that is asked of it, so only whole seconds matter.
fn http_date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = protocol::timestamp::format(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    // 1970-01-01 was a Thursday.
    let day_name = usize::try_from(seconds / 86_400 % 7).ok().and_then(|day| DAYS.get(day)).unwrap_or(&"Thu");
    let month: usize = text.get(5..7).and_then(|month| month.parse().ok()).unwrap_or(1);
    let month_name = MONTHS.get(month.saturating_sub(1)).unwrap_or(&"Jan");
    let part = |range| text.get(range).unwrap_or_default();
    format!("{day_name}, {} {month_name} {} {} GMT", part(8..10), part(0..4), part(11..19))
}

/// Whether `Accept-Encoding` forbids sending the file as it is.
fn refuses_identity(headers: &HeaderMap) -> bool {
    let entries = headers
        .get_all(header::ACCEPT_ENCODING)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let mut any_refused = false;
    for entry in entries {
        let mut parts = entry.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let is_zero = parts.any(|part| {
            part.strip_prefix("q=").is_some_and(|q| q.trim().parse::<f32>().is_ok_and(|q| q <= 0.0))
        });
        match (name, is_zero) {
            ("identity", refused) => return refused,
            ("*", true) => any_refused = true,
            _ => {}
        }
    }
    any_refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_http() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_999);
        assert_eq!(http_date(time), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn identity_is_refused_only_when_it_is_said() {
        for (value, refused) in [
            ("gzip, deflate", false),
            ("identity;q=0", true),
            ("gzip, identity; q=0.0", true),
            ("*;q=0", true),
            ("*;q=0, identity", false),
            ("identity;q=0.5", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(refuses_identity(&headers), refused, "{value}");
        }
    }
}
