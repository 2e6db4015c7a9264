//! The daemon in one sandbox, reached through the node's data plane.

use anyhow::{Context, anyhow};
use protocol::connect::{self, Code, RpcError};
use protocol::envd::{self, EntryInfo, FileType};
use reqwest::{Body, Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CALL_TIMEOUT, MAX_ERROR_BYTES, Node, is_not_found, join, read_bounded};

/// One sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    node: Node,
    id: String,
    token: Option<String>,
    user: Option<String>,
}

impl Guest {
    /// Finds a running sandbox; commands in it run as `user`, or as its default user.
    pub(crate) async fn find(node: &Node, id: &str, user: Option<String>) -> anyhow::Result<Self> {
        let detail = node.sandbox(id).await.map_err(|error| {
            if is_not_found(&error) {
                return anyhow!("there is no sandbox {id}; `aenv ls` lists those there are");
            }
            error.context(format!("sandbox {id}"))
        })?;
        Ok(Self::new(node, id, detail.envd_access_token, user))
    }

    pub(crate) fn new(node: &Node, id: &str, token: Option<String>, user: Option<String>) -> Self {
        Self { node: node.clone(), id: id.to_owned(), token, user }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let mut request = self
            .node
            .http
            .request(method, url)
            .header(protocol::api::SANDBOX_ID_HEADER, &self.id)
            .header(protocol::api::SANDBOX_PORT_HEADER, envd::ENVD_PORT.to_string());
        if let Some(token) = &self.token {
            request = request.header(envd::HEADER_ACCESS_TOKEN, token);
        }
        request
    }

    /// A request of one of the daemon's services, `process.Process` or `filesystem.Filesystem`.
    pub(super) fn procedure(&self, service: &str, method: &str) -> RequestBuilder {
        let url = join(&self.node.sandbox_url, &[service.trim_matches('/'), method]);
        let request = self.request(Method::POST, url);
        match &self.user {
            Some(user) => request.basic_auth(user, Some("")),
            None => request,
        }
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let response = request.send().await.map_err(|error| self.node.unreachable(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = read_bounded(response, MAX_ERROR_BYTES).await;
        Err(failure(status.as_u16(), &body).into())
    }

    /// A call with one message each way.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        message: &impl Serialize,
    ) -> anyhow::Result<T> {
        let request = self.procedure(service, method).json(message).timeout(CALL_TIMEOUT);
        let response = self.send(request).await?;
        response
            .json()
            .await
            .with_context(|| format!("the answer of sandbox {} to {method} cannot be read", self.id))
    }

    /// What is at `path`, if there is anything.
    pub(crate) async fn stat(&self, path: &str) -> anyhow::Result<Option<EntryInfo>> {
        let request = envd::StatRequest { path: path.to_owned() };
        match self.call::<envd::StatResponse>(envd::FILESYSTEM_SERVICE, "Stat", &request).await {
            Ok(response) => Ok(response.entry),
            Err(error) if code_of(&error) == Some(Code::NotFound) => Ok(None),
            Err(error) => Err(error.context(format!("look at {path} in sandbox {}", self.id))),
        }
    }

    pub(crate) async fn is_directory(&self, path: &str) -> anyhow::Result<bool> {
        Ok(self.stat(path).await?.is_some_and(|entry| entry.kind == FileType::Directory))
    }

    /// Opens a file for reading.
    pub(crate) async fn read_file(&self, path: &str) -> anyhow::Result<Response> {
        let request = self.file_request(Method::GET, path);
        self.send(request).await.with_context(|| format!("read {path} in sandbox {}", self.id))
    }

    /// Writes a file, and the directories above it.
    pub(crate) async fn write_file(&self, path: &str, bytes: u64, content: Body) -> anyhow::Result<()> {
        let request = self
            .file_request(Method::POST, path)
            .header(reqwest::header::CONTENT_TYPE, "application/octet-stream")
            .header(reqwest::header::CONTENT_LENGTH, bytes)
            .body(content);
        self.send(request).await.map(drop).with_context(|| format!("write {path} in sandbox {}", self.id))
    }

    fn file_request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut url = join(&self.node.sandbox_url, &["files"]);
        url.query_pairs_mut().append_pair("path", path);
        if let Some(user) = &self.user {
            url.query_pairs_mut().append_pair("username", user);
        }
        self.request(method, url)
    }
}

/// What kind of failure the daemon reported.
pub(crate) fn code_of(error: &anyhow::Error) -> Option<Code> {
    error.chain().find_map(|cause| cause.downcast_ref::<Failure>()).map(|failure| failure.0.code)
}

/// What the daemon, or the node in front of it, refused with.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) RpcError);

impl std::error::Error for Failure {}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.message.is_empty() {
            return formatter.write_str(self.0.code.as_str());
        }
        formatter.write_str(&self.0.message)
    }
}

/// The daemon's calls answer `{"code": "not_found", …}`, its `/files` and the node `{"code": 404, …}`.
fn failure(status: u16, body: &[u8]) -> Failure {
    if let Ok(error) = serde_json::from_slice::<RpcError>(body) {
        return Failure(error);
    }
    let message = match serde_json::from_slice::<protocol::api::Error>(body) {
        Ok(error) => error.message,
        Err(_) if body.is_empty() => format!("status {status}"),
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    };
    let code = if status == 404 { Code::NotFound } else { connect::Code::from_http_status(status) };
    Failure(RpcError::new(code, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_error_are_understood() {
        let rpc = failure(404, br#"{"code":"not_found","message":"no such process"}"#);
        assert_eq!((rpc.0.code, rpc.to_string().as_str()), (Code::NotFound, "no such process"));
        let plain = failure(404, br#"{"code":404,"message":"no such file"}"#);
        assert_eq!((plain.0.code, plain.to_string().as_str()), (Code::NotFound, "no such file"));
        assert_eq!(failure(502, b"<html>").to_string(), "<html>");
        assert_eq!(failure(502, b"").to_string(), "status 502");
    }
}
