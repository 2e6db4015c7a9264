//! `/files`: whole files, streamed both ways.

mod body;
mod download;
mod multipart;
mod range;
mod upload;

pub(crate) use body::FileBody;
pub(crate) use download::download;
pub(crate) use upload::upload;

use std::io;
use std::path::{Path, PathBuf};

use hyper::StatusCode;
use protocol::connect::{Code, RpcError};

use crate::accounts::User;
use crate::daemon::Daemon;
use crate::paths;
use crate::reply::{self, Reply};

/// A request that failed, as its answer.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    message: String,
}

impl Failure {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Something the file system refused.
    fn io(error: &io::Error, path: &Path) -> Self {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                Self::new(StatusCode::NOT_FOUND, format!("path '{path}' does not exist"))
            }
            io::ErrorKind::IsADirectory => Self::bad_request(format!("path '{path}' is a directory")),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, format!("no space left to write '{path}'"))
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::new(StatusCode::FORBIDDEN, format!("path '{path}': {error}"))
            }
            io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::ExecutableFileBusy => Self::bad_request(format!("path '{path}': {error}")),
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("path '{path}': {error}")),
        }
    }
}

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Self {
        let status = match error.code {
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.message)
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        reply::error(failure.status, failure.message)
    }
}

/// Whom a request acts for, and where its relative paths start.
#[derive(Debug)]
struct Place {
    user: User,
    base: PathBuf,
}

impl Place {
    fn of(daemon: &Daemon, username: Option<&str>) -> Result<Self, Failure> {
        let user = daemon.user(username)?;
        let base = daemon.base_directory(&user);
        Ok(Self { user, base })
    }

    fn path(&self, path: &str) -> Result<PathBuf, Failure> {
        Ok(paths::resolve(path, &self.user.home, &self.base)?)
    }
}
