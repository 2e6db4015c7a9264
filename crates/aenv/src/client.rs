//! The node's HTTP interface, from the outside: the control plane here, the daemon in a sandbox in [`guest`].

pub(crate) mod guest;
pub(crate) mod process;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use protocol::api;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;

use crate::config::Config;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the whole answer of a call that is not a stream.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// A sandbox may wait for its turn before it boots.
const CREATE_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest silence on a stream: servers send something at least every 50 seconds.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(150);
/// Longest text of an error that is read.
const MAX_ERROR_BYTES: usize = 16 * 1024;
/// Most pages of a list; the server decides their size.
const MAX_PAGES: usize = 10_000;

/// A node, as a client sees it.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    http: reqwest::Client,
    url: Url,
    sandbox_url: Url,
    key: String,
}

impl Node {
    /// The node of `config`, unless the environment names another: `AENV_API_URL` or `E2B_API_URL`, and `AENV_API_KEY` or
    /// `E2B_API_KEY`.
    pub(crate) fn from_environment(
        config: &Config,
        environment: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Self> {
        let either =
            |one, other| environment(one).or_else(|| environment(other)).filter(|value| !value.is_empty());
        let named = either("AENV_API_URL", "E2B_API_URL");
        let url = parse_url(&named.unwrap_or_else(|| config.url()))?;
        let sandbox_url = match either("AENV_SANDBOX_URL", "E2B_SANDBOX_URL") {
            Some(text) => parse_url(&text)?,
            None => url.clone(),
        };
        let key = match either("AENV_API_KEY", "E2B_API_KEY") {
            Some(key) => key,
            None => read_key(&config.api_key_path())?,
        };
        let http = http_client(&[&url, &sandbox_url])?;
        Ok(Self { http, url, sandbox_url, key })
    }

    /// A control plane request to a path made of `segments`, which are escaped.
    fn request(&self, method: Method, segments: &[&str]) -> RequestBuilder {
        self.request_to(method, join(&self.url, segments))
    }

    fn request_to(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url).header(api::API_KEY_HEADER, &self.key)
    }

    /// Sends a request and turns every answer but a success into an error.
    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await.into())
    }

    async fn refusal(&self, response: Response) -> Refusal {
        let status = response.status();
        let body = read_bounded(response, MAX_ERROR_BYTES).await;
        let parsed = serde_json::from_slice::<api::Error>(&body);
        let mut message = match parsed {
            Ok(error) => error.message,
            Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
        };
        if status == StatusCode::UNAUTHORIZED {
            message =
                format!("{message} (the API key is wrong: `aenv auth` on the node's machine prints it)");
        }
        Refusal { status, message }
    }

    fn unreachable(&self, error: reqwest::Error) -> anyhow::Error {
        if !error.is_connect() {
            return anyhow::Error::new(error.without_url()).context(format!("request to {}", self.url));
        }
        let hint = if is_local(&self.url) {
            "start it with `aenv serve` (as root), or set AENV_API_URL when it is elsewhere"
        } else {
            "check AENV_API_URL or E2B_API_URL"
        };
        anyhow!("no node answers at {}: {}; {hint}", self.url, root_cause(&error))
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> anyhow::Result<T> {
        let response = self.send(request.timeout(CALL_TIMEOUT)).await?;
        response.json().await.map_err(|error| {
            anyhow::Error::new(error.without_url())
                .context(format!("the answer of {} cannot be read", self.url))
        })
    }

    pub(crate) async fn create_sandbox(&self, sandbox: &api::NewSandbox) -> anyhow::Result<api::Sandbox> {
        let request = self.request(Method::POST, &["v2", "sandboxes"]).json(sandbox).timeout(CREATE_TIMEOUT);
        let response = self.send(request).await?;
        response.json().await.context("the node's answer to a create cannot be read")
    }

    pub(crate) async fn sandbox(&self, id: &str) -> anyhow::Result<api::SandboxDetail> {
        self.json(self.request(Method::GET, &["sandboxes", id])).await
    }

    /// Every sandbox, newest first.
    pub(crate) async fn sandboxes(&self) -> anyhow::Result<Vec<api::ListedSandbox>> {
        let mut all = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut url = join(&self.url, &["v2", "sandboxes"]);
            if let Some(token) = &token {
                url.query_pairs_mut().append_pair("nextToken", token);
            }
            let response = self.send(self.request_to(Method::GET, url).timeout(CALL_TIMEOUT)).await?;
            let next = response.headers().get(api::NEXT_TOKEN_HEADER).and_then(|value| value.to_str().ok());
            token = next.filter(|token| !token.is_empty()).map(str::to_owned);
            let page: Vec<api::ListedSandbox> =
                response.json().await.context("the node's list of sandboxes cannot be read")?;
            all.extend(page);
            if token.is_none() {
                return Ok(all);
            }
        }
        bail!("the node's list of sandboxes does not end")
    }

    pub(crate) async fn kill_sandbox(&self, id: &str) -> anyhow::Result<()> {
        self.send(self.request(Method::DELETE, &["sandboxes", id]).timeout(CALL_TIMEOUT)).await.map(drop)
    }

    pub(crate) async fn set_timeout(&self, id: &str, seconds: u32) -> anyhow::Result<()> {
        let body = api::SetTimeout { timeout: seconds.into() };
        let request = self.request(Method::POST, &["sandboxes", id, "timeout"]).json(&body);
        self.send(request.timeout(CALL_TIMEOUT)).await.map(drop)
    }

    pub(crate) async fn console(&self, id: &str) -> anyhow::Result<Vec<u8>> {
        let request = self.request(Method::GET, &["aenv", "v1", "sandboxes", id, "console"]);
        let response = self.send(request.timeout(CALL_TIMEOUT)).await?;
        Ok(response.bytes().await.context("read the console")?.into())
    }

    pub(crate) async fn templates(&self) -> anyhow::Result<Vec<api::Template>> {
        self.json(self.request(Method::GET, &["aenv", "v1", "templates"])).await
    }

    pub(crate) async fn remove_template(&self, name: &str) -> anyhow::Result<()> {
        self.send(self.request(Method::DELETE, &["templates", name]).timeout(CALL_TIMEOUT)).await.map(drop)
    }

    /// Starts a pull; the answer is a stream of lines.
    pub(crate) async fn pull(&self, pull: &api::PullTemplate) -> anyhow::Result<Response> {
        self.send(self.request(Method::POST, &["aenv", "v1", "templates", "pull"]).json(pull)).await
    }
}

/// An answer that is not a success.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl std::error::Error for Refusal {}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.message.is_empty() {
            return write!(formatter, "the node answered {}", self.status);
        }
        formatter.write_str(&self.message)
    }
}

/// Whether an error says that what was named does not exist.
pub(crate) fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.status == StatusCode::NOT_FOUND)
}

/// Reads at most `limit` bytes of an answer; what cannot be read is left out.
async fn read_bounded(mut response: Response, limit: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Ok(Some(chunk))) = tokio::time::timeout(CALL_TIMEOUT, response.chunk()).await {
        body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]);
        if body.len() == limit {
            break;
        }
    }
    body
}

pub(crate) fn read_key(path: &Path) -> anyhow::Result<String> {
    let hint = match std::fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => "the file is empty; remove it and start the node again".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "the node makes it at its first start (`aenv serve`, as root)".to_owned()
        }
        Err(error) => format!("{error}; run as root"),
    };
    bail!("no API key in {}: {hint}, or set E2B_API_KEY to the key that `aenv auth` prints", path.display())
}

/// A client for requests to `urls`.
pub(crate) fn http_client(urls: &[&Url]) -> anyhow::Result<reqwest::Client> {
    crate::use_tls_provider();
    let mut builder = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
    if urls.iter().all(|url| is_local(url)) {
        // A proxy for the internet cannot reach this machine's loopback interface.
        builder = builder.no_proxy();
    }
    if urls.iter().all(|url| url.scheme() == "http") {
        // Certificates are not needed, and are not there on every machine.
        builder = builder.tls_certs_only([]);
    }
    builder.build().context("prepare the HTTP client")
}

pub(crate) fn parse_url(text: &str) -> anyhow::Result<Url> {
    let url = Url::parse(text).with_context(|| format!("{text:?} is no address of a node"))?;
    if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
        bail!("{text:?} is no address of a node: it must begin with http:// or https://");
    }
    Ok(url)
}

fn join(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    // `parse_url` refused addresses that have no path.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(variables: &[(&str, &str)]) -> anyhow::Result<Node> {
        Node::from_environment(&Config::default(), |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn our_own_variables_win_over_e2bs_and_both_over_the_configuration() {
        let key = ("E2B_API_KEY", "k");
        assert_eq!(node(&[key]).unwrap().url.as_str(), "http://127.0.0.1:3000/");
        assert_eq!(node(&[key, ("E2B_API_URL", "http://a")]).unwrap().url.as_str(), "http://a/");
        let both = node(&[key, ("E2B_API_URL", "http://a"), ("AENV_API_URL", "http://b")]).unwrap();
        assert_eq!((both.url.as_str(), both.sandbox_url.as_str()), ("http://b/", "http://b/"));
        let apart = node(&[key, ("E2B_SANDBOX_URL", "http://s:1/x")]).unwrap();
        assert_eq!(apart.sandbox_url.as_str(), "http://s:1/x");
    }

    #[test]
    fn a_missing_key_says_where_it_would_be_and_what_to_do() {
        let config = Config { data_dir: "/nonexistent".into(), ..Config::default() };
        let message = Node::from_environment(&config, |_| None).unwrap_err().to_string();
        assert!(message.contains("/nonexistent/api-key") && message.contains("aenv serve"), "{message}");
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        for wrong in ["127.0.0.1:3000", "ftp://x", "mailto:x", ""] {
            assert!(
                node(&[("E2B_API_KEY", "k"), ("AENV_API_URL", wrong)]).is_err() || wrong.is_empty(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn path_segments_are_escaped() {
        let url = join(&Url::parse("http://h/base/").unwrap(), &["sandboxes", "a/../b c"]);
        assert_eq!(url.as_str(), "http://h/base/sandboxes/a%2F..%2Fb%20c");
    }
}
