//! Sandboxes.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use protocol::api::{
    ConnectSandbox, DEFAULT_TIMEOUT_V1_S, DEFAULT_TIMEOUT_V2_S, Lifecycle, ListedSandbox, NEXT_TOKEN_HEADER,
    NewSandbox, OnTimeout, RefreshSandbox, Sandbox, SandboxDetail, SandboxMetric, SandboxState, SetTimeout,
    Timestamp,
};
use sandbox::{CreateSandbox, SandboxInfo};

use super::{PathParameter, list, unsupported};
use crate::body::{JsonBody, OptionalJsonBody};
use crate::{Api, ApiError};

const MIB: u64 = 1024 * 1024;

pub(crate) async fn create_v1(
    State(api): State<Arc<Api>>,
    JsonBody(request): JsonBody<NewSandbox>,
) -> Result<Response, ApiError> {
    create(&api, request, DEFAULT_TIMEOUT_V1_S).await
}

pub(crate) async fn create_v2(
    State(api): State<Arc<Api>>,
    JsonBody(request): JsonBody<NewSandbox>,
) -> Result<Response, ApiError> {
    create(&api, request, DEFAULT_TIMEOUT_V2_S).await
}

async fn create(api: &Api, request: NewSandbox, default_timeout_s: i64) -> Result<Response, ApiError> {
    unsupported::refuse(&request)?;
    let timeout_s = request.timeout.unwrap_or(default_timeout_s);
    if timeout_s <= 0 {
        return Err(ApiError::bad_request("timeout must be at least 1 second"));
    }
    let request = CreateSandbox {
        template: request.template_id,
        timeout: seconds(timeout_s),
        metadata: request.metadata.unwrap_or_default(),
        env: request.env_vars.unwrap_or_default(),
    };
    let info = api.node.create(request).await?;
    Ok((StatusCode::CREATED, Json(sandbox(api, info))).into_response())
}

pub(crate) async fn connect_v1(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
    JsonBody(request): JsonBody<ConnectSandbox>,
) -> Result<Json<Sandbox>, ApiError> {
    let timeout = request.timeout.ok_or_else(|| ApiError::bad_request("timeout is missing"))?;
    connect(&api, &id, timeout).await
}

pub(crate) async fn connect_v2(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
    OptionalJsonBody(request): OptionalJsonBody<ConnectSandbox>,
) -> Result<Json<Sandbox>, ApiError> {
    connect(&api, &id, request.timeout.unwrap_or(DEFAULT_TIMEOUT_V2_S)).await
}

/// A sandbox that runs is extended; 201, for one that had to be resumed, cannot happen while there are none.
async fn connect(api: &Api, id: &str, timeout_s: i64) -> Result<Json<Sandbox>, ApiError> {
    let info = api.node.extend(id, seconds(timeout_s)).await?;
    Ok(Json(sandbox(api, info)))
}

pub(crate) async fn set_timeout(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
    JsonBody(request): JsonBody<SetTimeout>,
) -> Result<StatusCode, ApiError> {
    api.node.set_timeout(&id, seconds(request.timeout)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn refresh(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
    OptionalJsonBody(request): OptionalJsonBody<RefreshSandbox>,
) -> Result<StatusCode, ApiError> {
    api.node.extend(&id, seconds(request.duration.unwrap_or(DEFAULT_TIMEOUT_V1_S))).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
) -> Result<Json<SandboxDetail>, ApiError> {
    let info = api.node.get(&id).ok_or_else(|| not_found(&id))?;
    let access_token = info.access_token.clone();
    Ok(Json(SandboxDetail {
        listed: listed(&api, info),
        envd_access_token: Some(access_token),
        allow_internet_access: Some(true),
        domain: api.config.domain.clone(),
        lifecycle: Some(Lifecycle { auto_resume: false, on_timeout: OnTimeout::Kill }),
    }))
}

pub(crate) async fn kill(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
) -> Result<StatusCode, ApiError> {
    api.node.kill(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn list_v1(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<ListedSandbox>>, ApiError> {
    let filter = list::Filter::parse_v1(query.as_deref().unwrap_or_default())?;
    let page = filter.apply(api.node.list());
    Ok(Json(page.items.into_iter().map(|info| listed(&api, info)).collect()))
}

pub(crate) async fn list_v2(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let filter = list::Filter::parse_v2(query.as_deref().unwrap_or_default())?;
    let page = filter.apply(api.node.list());
    let items: Vec<ListedSandbox> = page.items.into_iter().map(|info| listed(&api, info)).collect();
    let mut response = Json(items).into_response();
    if let Some(token) = page.next_token.and_then(|token| HeaderValue::try_from(token).ok()) {
        response.headers_mut().insert(HeaderName::from_static(NEXT_TOKEN_HEADER), token);
    }
    Ok(response)
}

/// The state of now, as a list of one: this node keeps no history. A period that now is not in gives an empty list.
pub(crate) async fn metrics(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<SandboxMetric>>, ApiError> {
    let (start_s, end_s) = list::period(query.as_deref().unwrap_or_default())?;
    let metrics = api.node.metrics(&id).await?;
    if start_s.is_some_and(|start| metrics.ts < start) || end_s.is_some_and(|end| metrics.ts > end) {
        return Ok(Json(Vec::new()));
    }
    let timestamp = Timestamp::from_unix_us(metrics.ts.saturating_mul(1_000_000))
        .map_err(|error| ApiError::new(StatusCode::BAD_GATEWAY, format!("the guest's clock: {error}")))?;
    Ok(Json(vec![SandboxMetric {
        timestamp,
        timestamp_unix: metrics.ts,
        cpu_count: metrics.cpu_count,
        cpu_used_pct: f64::from(metrics.cpu_used_pct),
        mem_used: metrics.mem_used,
        mem_total: metrics.mem_total,
        mem_cache: metrics.mem_cache,
        disk_used: metrics.disk_used,
        disk_total: metrics.disk_total,
    }]))
}

pub(crate) fn not_found(id: &str) -> ApiError {
    ApiError::not_found(format!("sandbox {id} was not found"))
}

/// A negative time from now is now.
fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn sandbox(api: &Api, info: SandboxInfo) -> Sandbox {
    Sandbox {
        template_id: info.template_id,
        sandbox_id: info.id.to_string(),
        client_id: api.node.tag().as_str().to_owned(),
        envd_version: info.envd_version,
        alias: Some(info.template_name),
        envd_access_token: Some(info.access_token),
        traffic_access_token: None,
        domain: api.config.domain.clone(),
    }
}

fn listed(api: &Api, info: SandboxInfo) -> ListedSandbox {
    ListedSandbox {
        template_id: info.template_id,
        alias: Some(info.template_name),
        sandbox_id: info.id.to_string(),
        client_id: api.node.tag().as_str().to_owned(),
        started_at: info.started_at,
        end_at: info.end_at,
        cpu_count: info.vcpus,
        memory_mb: info.memory_mib,
        disk_size_mb: info.virtual_size_bytes / MIB,
        metadata: info.metadata,
        state: SandboxState::Running,
        envd_version: info.envd_version,
    }
}
