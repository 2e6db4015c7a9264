//! Filters and pages of lists.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use protocol::api::Timestamp;
use sandbox::{SandboxId, SandboxInfo};

use crate::ApiError;

/// Largest page, and the size of a page that does not say.
const LIMIT_MAX: usize = 100;

/// What a client wants to see of the list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filter {
    metadata: BTreeMap<String, String>,
    running: bool,
    template: Option<String>,
    started_after: Option<Timestamp>,
    ascending: bool,
    after: Option<Position>,
    /// No limit in version 1, which has no pages.
    limit: Option<usize>,
}

/// A place in the list: behind this sandbox. It stays meaningful when the sandbox is gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    started_at: Timestamp,
    id: SandboxId,
}

#[derive(Debug)]
pub(super) struct Page {
    pub(super) items: Vec<SandboxInfo>,
    pub(super) next_token: Option<String>,
}

impl Filter {
    fn everything() -> Self {
        Self {
            metadata: BTreeMap::new(),
            running: true,
            template: None,
            started_after: None,
            ascending: false,
            after: None,
            limit: None,
        }
    }

    pub(super) fn parse_v1(query: &str) -> Result<Self, ApiError> {
        let mut filter = Self::everything();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if name == "metadata" {
                filter.metadata = metadata(&value)?;
            }
        }
        Ok(filter)
    }

    pub(super) fn parse_v2(query: &str) -> Result<Self, ApiError> {
        let mut filter = Self { limit: Some(LIMIT_MAX), ..Self::everything() };
        let mut states = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "metadata" => filter.metadata = metadata(&value)?,
                "state" => {
                    states.extend(value.split(',').filter(|state| !state.is_empty()).map(str::to_owned));
                }
                "limit" => filter.limit = Some(limit(&value)?),
                "nextToken" if !value.is_empty() => filter.after = Some(Position::parse(&value)?),
                "order" => filter.ascending = ascending(&value)?,
                "startedAfter" => {
                    filter.started_after =
                        Some(Timestamp::parse(&value).map_err(|error| bad("startedAfter", error))?);
                }
                "template" if value.contains(':') => {
                    return Err(ApiError::bad_request("template: a filter takes a name or id without a tag"));
                }
                "template" if !value.is_empty() => filter.template = Some(value.into_owned()),
                _ => {}
            }
        }
        if let Some(unknown) = states.iter().find(|state| !matches!(state.as_str(), "running" | "paused")) {
            return Err(bad("state", format!("{unknown:?} is neither running nor paused")));
        }
        filter.running = states.is_empty() || states.iter().any(|state| state == "running");
        Ok(filter)
    }

    /// `running` holds every running sandbox; there are no paused ones.
    pub(super) fn apply(&self, running: Vec<SandboxInfo>) -> Page {
        let mut items: Vec<_> = running.into_iter().filter(|info| self.matches(info)).collect();
        items.sort_by_cached_key(Position::of);
        if !self.ascending {
            items.reverse();
        }
        let mut next_token = None;
        if let Some(limit) = self.limit
            && items.len() > limit
        {
            items.truncate(limit);
            next_token = items.last().map(|info| Position::of(info).token());
        }
        Page { items, next_token }
    }

    fn matches(&self, info: &SandboxInfo) -> bool {
        let behind = self.after.as_ref().is_none_or(|after| {
            let position = Position::of(info);
            if self.ascending { position > *after } else { position < *after }
        });
        let template = self.template.as_ref();
        self.running
            && behind
            && self.metadata.iter().all(|(name, value)| info.metadata.get(name) == Some(value))
            && template
                .is_none_or(|template| *template == info.template_id || *template == info.template_name)
            && self.started_after.is_none_or(|started_after| info.started_at >= started_after)
    }
}

impl Position {
    fn of(info: &SandboxInfo) -> Self {
        Self { started_at: info.started_at, id: info.id.clone() }
    }

    fn token(&self) -> String {
        format!("{}-{}", self.started_at.unix_us(), self.id)
    }

    fn parse(token: &str) -> Result<Self, ApiError> {
        let position = token.split_once('-').and_then(|(started_at, id)| {
            let started_at = Timestamp::from_unix_us(started_at.parse().ok()?).ok()?;
            Some(Self { started_at, id: SandboxId::parse(id)? })
        });
        position.ok_or_else(|| bad("nextToken", "it is not one of this list"))
    }
}

/// Unix seconds of the query `start=…&end=…`.
pub(super) fn period(query: &str) -> Result<(Option<i64>, Option<i64>), ApiError> {
    let (mut start, mut end) = (None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let bound = match &*name {
            "start" => &mut start,
            "end" => &mut end,
            _ => continue,
        };
        *bound = Some(value.parse().map_err(|_| bad(&name, "it must be a number of seconds since 1970"))?);
    }
    Ok((start, end))
}

/// The value of `metadata` after the query itself was decoded: pairs in form encoding, whose names and values are
/// percent-encoded once more by E2B's clients.
fn metadata(value: &str) -> Result<BTreeMap<String, String>, ApiError> {
    let decode = |text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded.map(std::borrow::Cow::into_owned).map_err(|_| bad("metadata", "it is not UTF-8"))
    };
    form_urlencoded::parse(value.as_bytes())
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| Ok((decode(&name)?, decode(&value)?)))
        .collect()
}

fn limit(value: &str) -> Result<usize, ApiError> {
    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| bad("limit", format!("it must be a number from 1 to {LIMIT_MAX}")))
}

fn ascending(value: &str) -> Result<bool, ApiError> {
    match value {
        "asc" => Ok(true),
        "desc" => Ok(false),
        _ => Err(bad("order", "it must be asc or desc")),
    }
}

fn bad(parameter: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request(format!("query parameter {parameter}: {reason}"))
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
