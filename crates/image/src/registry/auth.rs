//! What a registry asks for in `WWW-Authenticate`, and answering it (RFC 7235; Docker's "Token Authentication
//! Specification").

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, WWW_AUTHENTICATE};
use reqwest::{StatusCode, Url};
use serde::Deserialize;

use super::RemoteImage;
use super::http::{Failure, host};
use crate::ImageError;
use crate::credentials::{self, Credentials, Login};

/// Bound on a token server's answer; tokens of a few KiB are common.
const TOKEN_BYTES: u64 = 256 * 1024;
/// Bound on challenges looked at.
const CHALLENGES: usize = 8;

/// A value for the `Authorization` header.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Authorization(String);

impl std::fmt::Debug for Authorization {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Authorization")
    }
}

impl Authorization {
    pub(super) fn header(&self) -> &str {
        &self.0
    }

    fn basic(credentials: &Credentials) -> Self {
        let pair = format!("{}:{}", credentials.username, credentials.password);
        Self(format!("Basic {}", BASE64_STANDARD.encode(pair)))
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl RemoteImage {
    /// Answers the challenge of a 401. When another request has done so meanwhile, its result is taken.
    pub(super) async fn authorize(
        &self,
        headers: &HeaderMap,
        refused: Option<&Authorization>,
    ) -> Result<Authorization, Failure> {
        let mut current = self.authorization.lock().await;
        if let Some(newer) = current.as_ref().filter(|current| Some(*current) != refused) {
            return Ok(newer.clone());
        }
        *current = None;
        let challenges: Vec<Challenge> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(parse_challenges)
            .take(CHALLENGES)
            .collect();
        let named =
            |scheme: &str| challenges.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme));
        let login = self.login().await.map_err(Failure::Final)?;
        // A registry that offers both wants Basic for its token server.
        let authorization = if let Some(bearer) = named("bearer") {
            self.token(bearer, login.as_ref()).await?
        } else if named("basic").is_some() {
            match login {
                Some(Login::Password(credentials)) => Authorization::basic(&credentials),
                _ => return Err(Failure::Final(self.unauthorized(false))),
            }
        } else {
            return Err(Failure::Final(ImageError::NotARegistry {
                registry: self.reference.registry().to_owned(),
                reason: "it asks for a login in a way that is neither Basic nor Bearer".to_owned(),
            }));
        };
        *current = Some(authorization.clone());
        Ok(authorization)
    }

    async fn login(&self) -> Result<Option<Login>, ImageError> {
        if let Some(credentials) = &self.credentials {
            return Ok(Some(credentials.clone().into()));
        }
        match &self.settings.docker_config {
            Some(config) => credentials::find(config, &self.reference).await,
            None => Ok(None),
        }
    }

    async fn token(&self, challenge: &Challenge, login: Option<&Login>) -> Result<Authorization, Failure> {
        let registry = self.reference.registry();
        let refuse = |reason: String| {
            Failure::Final(ImageError::NotARegistry { registry: registry.to_owned(), reason })
        };
        let realm = challenge.parameter("realm").unwrap_or_default();
        let mut url = Url::parse(realm)
            .map_err(|_| refuse(format!("the address of its token server `{realm}` is not valid")))?;
        let insecure_server =
            self.insecure || host(&url).is_some_and(|host| self.settings.insecure_registries.contains(&host));
        if url.scheme() != "https" && !(url.scheme() == "http" && insecure_server) {
            return Err(refuse(format!("its token server `{realm}` does not use HTTPS")));
        }
        let default_scope = format!("repository:{}:pull", self.reference.repository());
        let scope = challenge.parameter("scope").unwrap_or(&default_scope);
        let mut parameters = vec![("scope", scope)];
        parameters.extend(challenge.parameter("service").map(|service| ("service", service)));
        let request = match login {
            Some(Login::IdentityToken(token)) => {
                parameters.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "agentenv"),
                    ("refresh_token", token.as_str()),
                ]);
                let mut form = url.clone();
                form.query_pairs_mut().clear().extend_pairs(&parameters);
                let body = form.query().unwrap_or_default().to_owned();
                self.client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
            }
            other => {
                url.query_pairs_mut().extend_pairs(&parameters);
                let request = self.client.get(url);
                match other {
                    Some(Login::Password(credentials)) => {
                        request.header(AUTHORIZATION, Authorization::basic(credentials).header())
                    }
                    _ => request,
                }
            }
        };
        let response = request.send().await.map_err(|error| self.send_failure(&error))?;
        let status = response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST) {
            return Err(Failure::Final(self.unauthorized(login.is_some())));
        }
        if status != StatusCode::OK {
            return Err(Failure::Transient {
                reason: format!("its token server answered {status}"),
                wait: None,
            });
        }
        let body = self.body(response, "a token", TOKEN_BYTES).await.map_err(Failure::Final)?;
        let answer: TokenAnswer = serde_json::from_slice(&body)
            .map_err(|_| refuse("its token server gave no valid answer".to_owned()))?;
        let token = if answer.token.is_empty() { answer.access_token } else { answer.token };
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refuse("its token server gave no valid token".to_owned()));
        }
        Ok(Authorization(format!("Bearer {token}")))
    }
}

/// One challenge: a scheme and its parameters.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// The challenges of one header value, which may hold several, separated like their parameters by commas.
fn parse_challenges(value: &str) -> Vec<Challenge> {
    let mut challenges: Vec<Challenge> = Vec::new();
    let mut rest = value.trim_start_matches([' ', ',', '\t']);
    while !rest.is_empty() {
        let end = rest.find([' ', '=', ',', '\t']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            // Not a challenge any more; keep what was understood.
            break;
        }
        if let Some(text) = after.strip_prefix('=')
            && let Some(challenge) = challenges.last_mut()
        {
            let (value, after) = parse_value(text);
            challenge.parameters.push((word.to_owned(), value));
            rest = after;
        } else {
            challenges.push(Challenge { scheme: word.to_owned(), parameters: Vec::new() });
            rest = after.trim_start_matches('=');
        }
        rest = rest.trim_start_matches([' ', ',', '\t']);
    }
    challenges
}

/// A token or quoted string, and what follows it.
fn parse_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return (value.to_owned(), rest);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((position, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[position + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &str) -> Vec<(String, Vec<(String, String)>)> {
        parse_challenges(value)
            .into_iter()
            .map(|challenge| (challenge.scheme, challenge.parameters))
            .collect()
    }

    fn challenge(scheme: &str, parameters: &[(&str, &str)]) -> (String, Vec<(String, String)>) {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        (scheme.to_owned(), parameters.iter().map(own).collect())
    }

    #[test]
    fn challenges_are_split_at_schemes() {
        assert_eq!(
            parsed(r#"Bearer realm="https://a/t?x=1,2",service="s",scope="repository:a/b:pull,push""#),
            [challenge(
                "Bearer",
                &[("realm", "https://a/t?x=1,2"), ("service", "s"), ("scope", "repository:a/b:pull,push")]
            )]
        );
        assert_eq!(
            parsed(r#"Basic realm="x", Bearer realm="y" , service=z"#),
            [challenge("Basic", &[("realm", "x")]), challenge("Bearer", &[("realm", "y"), ("service", "z")])]
        );
        assert_eq!(
            parsed(r#"Basic realm="a \"quoted\" one""#),
            [challenge("Basic", &[("realm", "a \"quoted\" one")])]
        );
        assert_eq!(parsed("Negotiate, Basic"), [challenge("Negotiate", &[]), challenge("Basic", &[])]);
    }

    proptest::proptest! {
        #[test]
        fn any_header_value_is_parsed_without_panic(value in ".{0,200}") {
            parse_challenges(&value);
        }
    }
}
