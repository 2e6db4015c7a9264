//! Answers of the proxy itself. E2B's clients tell cases apart by parts of the texts: "was not found", "port is not open".

use axum::Json;
use axum::response::{Html, IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use serde_json::json;

use crate::cors;

/// Why a request did not get into a sandbox, or no answer out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProxyError {
    /// No such sandbox, or it ended meanwhile.
    NotFound { sandbox_id: String },
    /// Nothing listens there.
    PortClosed { sandbox_id: String, port: u16 },
    /// The guest does not take the connection.
    NoConnection { sandbox_id: String, port: u16, reason: String },
    /// What listens there did not answer with HTTP.
    NoAnswer { sandbox_id: String, port: u16, reason: String },
    /// A route of the guest daemon that is not for clients.
    Internal,
    /// One routing header of two.
    HeaderMissing(&'static str),
    /// No port number.
    Port(String),
    /// A path that cannot be sent.
    Path,
    /// Too many requests are in sandboxes.
    TooMany,
}

impl ProxyError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotFound { .. } | Self::PortClosed { .. } | Self::NoAnswer { .. } => {
                StatusCode::BAD_GATEWAY
            }
            Self::NoConnection { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal => StatusCode::NOT_FOUND,
            Self::HeaderMissing(_) | Self::Port(_) | Self::Path => StatusCode::BAD_REQUEST,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    fn place(&self) -> Option<(&str, Option<u16>)> {
        match self {
            Self::NotFound { sandbox_id } => Some((sandbox_id, None)),
            Self::PortClosed { sandbox_id, port }
            | Self::NoConnection { sandbox_id, port, .. }
            | Self::NoAnswer { sandbox_id, port, .. } => Some((sandbox_id, Some(*port))),
            _ => None,
        }
    }

    pub(super) fn answer(&self, audience: Audience) -> Response {
        let status = self.status();
        let mut response = match audience {
            Audience::Program => {
                let mut body = json!({"code": status.as_u16(), "message": self.to_string()});
                if let Some((sandbox_id, port)) = self.place() {
                    body["sandboxId"] = sandbox_id.into();
                    body["port"] = port.into();
                    if port.is_none() {
                        body.as_object_mut().map(|fields| fields.remove("port"));
                    }
                }
                (status, Json(body)).into_response()
            }
            Audience::Person => (status, Html(self.page(status))).into_response(),
        };
        // A script may be waiting on another origin; without this it would only see that something failed.
        cors::mark_readable(response.headers_mut());
        response
    }

    fn page(&self, status: StatusCode) -> String {
        let place = match self.place() {
            Some((sandbox_id, Some(port))) => format!("Sandbox {}, port {port}", escape(sandbox_id)),
            Some((sandbox_id, None)) => format!("Sandbox {}", escape(sandbox_id)),
            None => String::new(),
        };
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{status}</title>\
             <body style=\"font-family: sans-serif; margin: 4em auto; max-width: 40em\">\
             <h1>{message}</h1><p>{place}</p><p>{status}</p></body></html>\n",
            message = escape(&self.to_string()),
        )
    }
}

impl std::fmt::Display for ProxyError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound { .. } => formatter.write_str("The sandbox was not found"),
            Self::PortClosed { .. } => formatter.write_str("The sandbox is running but port is not open"),
            Self::NoConnection { port, reason, .. } => {
                write!(
                    formatter,
                    "The sandbox is running but does not take connections on port {port}: {reason}"
                )
            }
            Self::NoAnswer { port, reason, .. } => {
                write!(
                    formatter,
                    "The sandbox is running but what listens on port {port} gave no answer: {reason}"
                )
            }
            Self::Internal => formatter.write_str("There is nothing at this path"),
            Self::HeaderMissing(name) => write!(
                formatter,
                "The header {name} is missing; a request into a sandbox needs both E2b-Sandbox-Id and E2b-Sandbox-Port"
            ),
            Self::Port(text) => write!(formatter, "{text:?} is no port; it must be a number from 1 to 65535"),
            Self::Path => formatter.write_str("The path cannot be sent to a sandbox"),
            Self::TooMany => {
                formatter.write_str("Too many requests are in sandboxes of this node; try again later")
            }
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Who reads the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    Program,
    /// Somebody in front of a browser, which navigated here.
    Person,
}

impl Audience {
    /// A browser says that it navigates, or is too old to say but looks like one. Scripts in browsers, and Node's `fetch`,
    /// which says `cors`, are programs.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let wants_html = text(header::ACCEPT.as_str()).contains("text/html");
        let navigates = match text("sec-fetch-mode") {
            "" => text(header::USER_AGENT.as_str()).contains("Mozilla/"),
            mode => mode == "navigate",
        };
        if wants_html && navigates { Self::Person } else { Self::Program }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audience(headers: &[(&'static str, &'static str)]) -> Audience {
        Audience::of(
            &headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect(),
        )
    }

    #[test]
    fn only_a_browser_that_navigates_gets_a_page() {
        let accept = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64)");
        assert_eq!(audience(&[accept, browser, ("sec-fetch-mode", "navigate")]), Audience::Person);
        assert_eq!(audience(&[accept, browser]), Audience::Person);
        assert_eq!(audience(&[accept, browser, ("sec-fetch-mode", "cors")]), Audience::Program);
        assert_eq!(audience(&[("accept", "*/*"), browser]), Audience::Program);
        assert_eq!(audience(&[("sec-fetch-mode", "cors"), ("user-agent", "node")]), Audience::Program);
        assert_eq!(audience(&[]), Audience::Program);
    }

    #[test]
    fn a_page_does_not_run_what_the_url_holds() {
        let error = ProxyError::NotFound { sandbox_id: "<script>alert(1)</script>".to_owned() };
        let page = error.page(error.status());
        assert!(!page.contains("<script>"));
    }
}
