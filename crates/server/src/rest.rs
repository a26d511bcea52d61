//! KServe v2 over HTTP: health, metadata, inference, repository; the metrics and the page beside them.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    body::is_crowded,
    budget::Lease,
    clock, dashboard,
    engine::{Engine, Scored},
    error::ServeError,
    metadata,
    metrics::{self, Stage, Transport},
    models::Models,
    passage::Passage,
    places::Patience,
    protocol::json::{self, Answer},
    traces::TRACEPARENT,
};

/// Bytes of a question about the repository.
const INDEX_BYTES_MAX: usize = 4 << 10;

/// The length of the JSON part, when binary tensors follow it.
const HEADER_LENGTH: &str = "inference-header-content-length";
/// A client's own name for a request.
const REQUEST_ID: &str = "x-request-id";

type Shared = State<Arc<Engine>>;

/// All routes. Paths from the network name models, never files.
pub fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v2/health/live", get(|| async { StatusCode::OK }))
        .route("/v2/health/ready", get(ready))
        .route("/v2", get(|| async { json_answer(StatusCode::OK, &metadata::server()) }))
        .route("/v2/models/{model}", get(model_metadata))
        .route("/v2/models/{model}/versions/{version}", get(model_metadata))
        .route("/v2/models/{model}/ready", get(model_ready))
        .route("/v2/models/{model}/versions/{version}/ready", get(model_ready))
        .route("/v2/models/{model}/infer", post(infer))
        .route("/v2/models/{model}/versions/{version}/infer", post(infer))
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload))
        .route("/metrics", get(prometheus))
        .route("/", get(|| async { dashboard::page() }))
        .route("/dashboard.json", get(dashboard_data))
        .method_not_allowed_fallback(|| async {
            error_answer(
                StatusCode::METHOD_NOT_ALLOWED,
                "this path is asked in another way; see docs/serving-api.md",
            )
        })
        .fallback(|| async {
            error_answer(StatusCode::NOT_FOUND, "there is nothing here; see docs/serving-api.md")
        })
        .with_state(engine)
}

/// Whether a path is open without a token: what a load balancer asks, and the page, which holds no data.
pub fn is_public(path: &str) -> bool {
    matches!(path, "/" | "/v2/health/live" | "/v2/health/ready")
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        let mut response = error_answer(self.status(), &self.told());
        match self {
            ServeError::Busy { .. } | ServeError::Crowded => {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // What would be read: nothing but the thing itself.
            ServeError::Encoding { .. } => {
                response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            ServeError::Unauthorized => {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

fn error_answer(status: StatusCode, error: &str) -> Response {
    json_answer(status, &json!({ "error": error }))
}

fn json_answer(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn ready(State(engine): Shared) -> StatusCode {
    if engine.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Model and version of a path; the version is empty when there is none.
fn target(parts: &[(String, String)]) -> (&str, &str) {
    let part = |name| parts.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str());
    (part("model"), part("version"))
}

async fn model_ready(State(engine): Shared, Path(parts): Path<Vec<(String, String)>>) -> Response {
    let (model, version) = target(&parts);
    match engine.models.served(model, version) {
        Ok(_) => StatusCode::OK.into_response(),
        Err(error) => error.into_response(),
    }
}

async fn model_metadata(State(engine): Shared, Path(parts): Path<Vec<(String, String)>>) -> Response {
    let (model, version) = target(&parts);
    match engine.models.served(model, version) {
        Ok(loaded) => json_answer(StatusCode::OK, &metadata::model(&loaded)),
        Err(error) => error.into_response(),
    }
}

async fn infer(
    State(engine): Shared,
    Path(parts): Path<Vec<(String, String)>>,
    request: Request<Body>,
) -> Response {
    let limit = engine.limits.body_bytes_max;
    let (head, body) = request.into_parts();
    let body = read_body(limit, &head, body).await;
    let (model, version) = target(&parts);
    let mut passage = Passage::begin(Transport::Rest, model, None);
    let body = match body {
        Ok(read) => read,
        Err(error) => {
            let failed = Err::<(), _>(error);
            engine.ended(passage, &failed);
            return failed.map_or_else(IntoResponse::into_response, IntoResponse::into_response);
        }
    };
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    passage.lease = head.extensions.get::<Arc<Lease>>().cloned();
    passage.traceparent = header(TRACEPARENT).map(str::to_owned);
    let own_id = header(REQUEST_ID).filter(|id| id.len() <= engine.limits.id_bytes_max);
    passage.id = own_id.unwrap_or_default().to_owned();
    let answered = async {
        passage.grow(json::EXPANSION * json::part_length(&body, header(HEADER_LENGTH)) as u64)?;
        let read = || json::parse(&body, header(HEADER_LENGTH), &engine.limits);
        let mut request = engine.aside(body.len(), read)?;
        // Where nothing of it is used any more, its memory is free.
        drop(body);
        request.id = request.id.or_else(|| own_id.map(str::to_owned));
        let scored = engine.infer((model, version), request, &mut passage).await?;
        let write = clock::now();
        let response = answer(&scored)?;
        passage.took(Stage::Write, clock::us_between(write, clock::now()));
        Ok(response)
    };
    let answered = answered.await;
    engine.ended(passage, &answered);
    answered.unwrap_or_else(IntoResponse::into_response)
}

/// How long a client may take for a body.
#[derive(Debug, Clone, Copy)]
pub struct BodyTime(pub Duration);

/// The whole body, unless it is too large, too slow, or packed.
async fn read_body(limit: usize, head: &http::request::Parts, body: Body) -> Result<Bytes, ServeError> {
    let text = |name| head.headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?").trim());
    if let Some(encoding) = text(header::CONTENT_ENCODING)
        && !encoding.is_empty()
        && !encoding.eq_ignore_ascii_case("identity")
    {
        return Err(ServeError::Encoding { encoding: encoding.chars().take(32).collect() });
    }
    let claimed = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if claimed.is_some_and(|length| length > limit as u64) {
        return Err(ServeError::BodyTooLarge { limit });
    }
    let time = head.extensions.get::<BodyTime>().map_or(Patience::default().body, |time| time.0);
    match tokio::time::timeout(time, Limited::new(body, limit).collect()).await {
        Err(_) => Err(ServeError::SlowClient),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ServeError::BodyTooLarge { limit }),
        Ok(Err(error)) if is_crowded(&*error) => Err(ServeError::Crowded),
        Ok(Err(error)) => Err(ServeError::Body { problem: error.to_string() }),
    }
}

fn answer(scored: &Scored) -> Result<Response, ServeError> {
    let output = |output: &crate::engine::Output| (output.place, output.binary);
    let outputs = scored.outputs.iter().map(|one| {
        let ((task, kind), binary) = output(one);
        (scored.loaded.outputs[task][kind].as_str(), &one.values[..], binary)
    });
    let answer = Answer {
        model: &scored.loaded.snapshot.version().model,
        version: &scored.loaded.version,
        id: &scored.id,
        outputs: outputs.collect(),
    };
    let (body, split) =
        answer.write().map_err(|error| ServeError::Internal { problem: error.to_string() })?;
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    let kind = if split.is_some() { "application/octet-stream" } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(split) = split {
        headers.insert(HEADER_LENGTH, HeaderValue::from(split));
    }
    if let Ok(id) = HeaderValue::from_str(&scored.id) {
        headers.insert(REQUEST_ID, id);
    }
    Ok(response)
}

/// What is asked about the repository; other keys are left alone.
#[derive(Deserialize, Default)]
struct IndexPart {
    ready: Option<bool>,
}

async fn index(State(engine): Shared, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let body = match read_body(INDEX_BYTES_MAX, &head, body).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    let asked = match body.is_empty() {
        true => IndexPart::default(),
        false => match serde_json::from_slice(&body) {
            Ok(value) => value,
            Err(error) => return error_answer(StatusCode::BAD_REQUEST, &format!("not valid: {error}")),
        },
    };
    json_answer(StatusCode::OK, &metadata::index(&engine, asked.ready.unwrap_or(false)))
}

async fn load(State(engine): Shared, Path(model): Path<String>) -> Response {
    control(engine, move |models| models.load(&model).map(drop)).await
}

async fn unload(State(engine): Shared, Path(model): Path<String>) -> Response {
    control(engine, move |models| models.unload(&model)).await
}

async fn control(
    engine: Arc<Engine>,
    change: impl FnOnce(&Models) -> Result<(), ServeError> + Send + 'static,
) -> Response {
    match engine.change(change).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => error.into_response(),
    }
}

async fn prometheus(State(engine): Shared) -> Response {
    let page = metrics::prometheus(&engine);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

async fn dashboard_data(State(engine): Shared) -> Response {
    json_answer(StatusCode::OK, &dashboard::data(&engine))
}
