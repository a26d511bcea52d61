//! The page of a loop: one file with no asset from elsewhere, and the data it asks for every second.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    http::{HeaderValue, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use crate::board::Board;

const PAGE: &str = include_str!("page/page.html");

/// Shows a board at an address, on a thread of its own, for as long as the process lives; says where, for port 0 is any.
///
/// # Errors
/// When the address cannot be had.
pub fn show(address: SocketAddr, board: Arc<Board>) -> io::Result<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind(address))?;
    let address = listener.local_addr()?;
    let data = move || {
        let board = Arc::clone(&board);
        async move { ([(header::CONTENT_TYPE, "application/json")], board.to_json().to_string()) }
    };
    let app = Router::new().route("/", get(page)).route("/live.json", get(data));
    std::thread::Builder::new().name("page".to_owned()).spawn(move || {
        // The page is there to look at; the loop goes on without it.
        let _ = runtime.block_on(async { axum::serve(listener, app).await });
    })?;
    Ok(address)
}

/// The page. It may load nothing from elsewhere, and nobody may frame it.
async fn page() -> Response {
    let mut response = Html(PAGE).into_response();
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; frame-ancestors 'none'";
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}
