//! The service `filesystem.Filesystem`.
//!
//! Calls act with the daemon's rights and give what they make to the user of the request.

mod entry;
mod operations;
mod ownership;
mod remove;

use std::path::PathBuf;
use std::sync::Arc;

use protocol::connect::{Code, RpcError};
use protocol::envd::{
    FILESYSTEM_SERVICE, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest,
    MoveResponse, RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::accounts::User;
use crate::daemon::Daemon;
use crate::paths;
use crate::reply::Reply;
use crate::request::{self, Request};
use crate::rpc;

pub(crate) use ownership::make_parents;

/// Methods of the service that are not served yet.
const LATER: [&str; 4] = ["WatchDir", "CreateWatcher", "GetWatcherEvents", "RemoveWatcher"];

/// Answers a call of the service.
pub(crate) async fn call(daemon: Arc<Daemon>, request: Request) -> Reply {
    let method = request.uri().path().strip_prefix(FILESYSTEM_SERVICE).unwrap_or_default().to_owned();
    match method.as_str() {
        "Stat" => {
            answer(daemon, request, |place, message: StatRequest| {
                let entry = place.entry(&place.path(&message.path)?)?;
                Ok(StatResponse { entry: Some(entry) })
            })
            .await
        }
        "ListDir" => {
            answer(daemon, request, |place, message: ListDirRequest| {
                let path = place.path(&message.path)?;
                Ok(ListDirResponse {
                    entries: operations::list(&path, message.depth.max(1), &place.names())?,
                })
            })
            .await
        }
        "MakeDir" => {
            answer(daemon, request, |place, message: MakeDirRequest| {
                let path = place.path(&message.path)?;
                operations::make_directory(&path, &place.user)?;
                Ok(MakeDirResponse { entry: Some(place.entry(&path)?) })
            })
            .await
        }
        "Move" => {
            answer(daemon, request, |place, message: MoveRequest| {
                let (source, destination) = (place.path(&message.source)?, place.path(&message.destination)?);
                operations::rename(&source, &destination, &place.user)?;
                Ok(MoveResponse { entry: Some(place.entry(&destination)?) })
            })
            .await
        }
        "Remove" => {
            answer(daemon, request, |place, message: RemoveRequest| {
                operations::remove(&place.path(&message.path)?)?;
                Ok(RemoveResponse::default())
            })
            .await
        }
        other => rpc::unimplemented(other, LATER.contains(&other), request.headers()),
    }
}

/// Whom a call acts for.
struct Place {
    daemon: Arc<Daemon>,
    user: User,
    base: PathBuf,
}

impl Place {
    fn path(&self, path: &str) -> Result<PathBuf, RpcError> {
        paths::resolve(path, &self.user.home, &self.base)
    }

    fn names(&self) -> crate::accounts::Names {
        crate::accounts::Names::read(&self.daemon.options.etc)
    }

    fn entry(&self, path: &std::path::Path) -> Result<protocol::envd::EntryInfo, RpcError> {
        entry::describe(path, &self.names()).map_err(|error| operations::explain(&error, path))
    }
}

/// Reads the message, does the work on a helper thread, and answers.
async fn answer<M, A, W>(daemon: Arc<Daemon>, request: Request, work: W) -> Reply
where
    M: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
    W: FnOnce(&Place, M) -> Result<A, RpcError> + Send + 'static,
{
    let user = request::basic_user(request.headers());
    let result = async {
        let message = rpc::unary_message(request).await?;
        let user = daemon.user(user.as_deref())?;
        let base = daemon.base_directory(&user);
        let place = Place { daemon, user, base };
        let done = tokio::task::spawn_blocking(move || work(&place, message)).await;
        done.unwrap_or_else(|_| Err(RpcError::new(Code::Internal, "the daemon failed on this call")))
    };
    rpc::unary_reply(result.await)
}
