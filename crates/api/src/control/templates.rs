//! Templates.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use protocol::api::{ListedTemplate, PullTemplate, PullTemplateEvent, Template, TemplateAlias};
use sandbox::{PullEvent, PullRequest, TemplateRecord};

use super::PathParameter;
use crate::body::JsonBody;
use crate::{Api, ApiError};

const MIB: u64 = 1024 * 1024;

pub(crate) async fn list(State(api): State<Arc<Api>>) -> Result<Json<Vec<ListedTemplate>>, ApiError> {
    let templates = api.node.templates().await?;
    Ok(Json(templates.into_iter().map(listed).collect()))
}

pub(crate) async fn list_own(State(api): State<Arc<Api>>) -> Result<Json<Vec<Template>>, ApiError> {
    let templates = api.node.templates().await?;
    Ok(Json(templates.into_iter().map(own).collect()))
}

pub(crate) async fn alias(
    State(api): State<Arc<Api>>,
    PathParameter(alias): PathParameter,
) -> Result<Json<TemplateAlias>, ApiError> {
    let template = api.node.template(&alias).await?.ok_or_else(|| not_found(&alias))?;
    Ok(Json(TemplateAlias { template_id: template.id, public: false }))
}

pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
) -> Result<StatusCode, ApiError> {
    if api.node.remove_template(&id).await? { Ok(StatusCode::NO_CONTENT) } else { Err(not_found(&id)) }
}

/// Answers at once with a stream of lines. A client that goes away cancels the pull.
pub(crate) async fn pull(
    State(api): State<Arc<Api>>,
    JsonBody(request): JsonBody<PullTemplate>,
) -> Result<Response, ApiError> {
    let credentials = match (request.username, request.password) {
        (Some(username), Some(password)) => Some((username, password)),
        (None, None) => None,
        _ => return Err(ApiError::bad_request("username and password are given together or not at all")),
    };
    let events = api.node.pull_template(PullRequest {
        source: request.source,
        name: request.name,
        virtual_size_bytes: request.virtual_size_bytes.unwrap_or(0),
        vcpus: request.cpu_count,
        memory_mib: request.memory_mb,
        credentials,
    })?;
    let lines = futures_util::stream::unfold(events, |mut events| async move {
        let event = events.recv().await?;
        Some((Ok::<_, Infallible>(line(event)), events))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

fn line(event: PullEvent) -> Bytes {
    let event = match event {
        PullEvent::Progress(progress) => PullTemplateEvent::Progress(progress),
        PullEvent::Done(template) => PullTemplateEvent::Template(Box::new(own(*template))),
        PullEvent::Failed(error) => PullTemplateEvent::Error(ApiError::from(error).body()),
    };
    // These types have only text keys and finite numbers, which always can be written.
    let mut line = serde_json::to_vec(&event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

fn not_found(template: &str) -> ApiError {
    ApiError::not_found(format!("template {template} was not found"))
}

fn own(record: TemplateRecord) -> Template {
    let content = record.content;
    Template {
        template_id: record.id,
        build_id: record.build_id,
        name: record.name,
        source: content.source,
        manifest_digest: content.manifest_digest,
        layer_count: u32::try_from(content.layer_paths.len()).unwrap_or(u32::MAX),
        virtual_size_bytes: content.virtual_size_bytes,
        cpu_count: content.vcpus,
        memory_mb: content.memory_mib,
        created_at: record.created_at,
        updated_at: record.updated_at,
        image: content.image,
    }
}

fn listed(record: TemplateRecord) -> ListedTemplate {
    ListedTemplate {
        template_id: record.id,
        build_id: record.build_id,
        cpu_count: record.content.vcpus,
        memory_mb: record.content.memory_mib,
        disk_size_mb: record.content.virtual_size_bytes / MIB,
        public: false,
        aliases: vec![record.name.clone()],
        names: vec![record.name],
        created_at: record.created_at,
        updated_at: record.updated_at,
        created_by: None,
        last_spawned_at: record.last_spawned_at,
        spawn_count: record.spawn_count,
        build_count: record.build_count,
        envd_version: protocol::envd::ENVD_VERSION.to_owned(),
        build_status: "ready".to_owned(),
    }
}
