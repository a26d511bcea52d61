//! Connections: accepted up to a limit, with TLS or without, and let go in order when the server ends.
//!
//! Who may stay how long is said in [places](crate::places), and how much all requests together may hold in the
//! [budget](crate::budget). When the server drains, it accepts nobody, tells open connections that the present request is the
//! last, and waits for them up to a time.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse};
use http::{Request, Response};
use hyper::{
    body::{Body as _, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::TlsAcceptor;
use tonic::{Code, Status, body::Body as GrpcBody};
use tower_service::Service;

use crate::{
    body::{Counted, Leaving},
    budget::{Budget, Lease},
    engine::Engine,
    error::ServeError,
    farewell::Farewell,
    grpc,
    places::{Patience, Place, Places, UnderWay},
    proto::grpc_inference_service_server::GrpcInferenceServiceServer,
    rest,
    security::{self, Access, Speech},
    together::Together,
};

/// Streams that one HTTP/2 connection may have open.
const STREAMS_MAX: u32 = 256;
/// Bytes of an answer that HTTP/2 may hold back for a client that does not read.
const ANSWER_BUFFER_BYTES: usize = 16 << 10;
/// Headers of one request.
const HEADERS_MAX: usize = 64;
/// Headers that are read at all, so that those who send a few too many are told.
const HEADERS_READ_MAX: usize = 256;
/// What a request takes besides its headers and body.
const REQUEST_BYTES: u64 = 1 << 10;
/// gRPC's status, and its words.
const GRPC_STATUS: &str = "grpc-status";
const GRPC_MESSAGE: &str = "grpc-message";

/// What speaks on a connection.
#[derive(Clone)]
pub enum Speaker {
    /// REST, metrics and the page.
    Rest(Router),
    /// gRPC.
    Grpc(GrpcInferenceServiceServer<grpc::Service>),
}

/// What every connection of an address shares.
#[derive(Debug, Clone)]
pub struct Door {
    /// The engine behind it.
    pub engine: Arc<Engine>,
    /// Who may ask.
    pub access: Access,
    /// TLS, if any.
    pub tls: Option<Arc<ServerConfig>>,
    /// Places for connections.
    pub places: Arc<Places>,
    /// Memory for requests, over all addresses.
    pub budget: Arc<Budget>,
    /// How long clients may take.
    pub patience: Patience,
    /// Turns true when the address is to be closed.
    pub closing: watch::Receiver<bool>,
    /// Whether only this machine can connect.
    pub local: bool,
}

impl Door {
    /// Accepts connections until the address is closed, then waits until all of them are done.
    pub async fn serve(mut self, listener: TcpListener, speaker: Speaker) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = self.closing.wait_for(|closing| *closing) => break,
            };
            // A failed accept concerns one client, or passes when file handles are free again.
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let metrics = &self.engine.metrics;
            let Some(place) = self.places.take() else {
                metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            metrics.connections_displaced.fetch_add(u64::from(place.is_anothers), Ordering::Relaxed);
            let (door, speaker) = (self.clone(), speaker.clone());
            tokio::spawn(async move {
                door.engine.metrics.connections.fetch_add(1, Ordering::Relaxed);
                door.connection(stream, speaker, place).await;
                door.engine.metrics.connections.fetch_sub(1, Ordering::Relaxed);
            });
        }
        drop(listener);
        self.places.emptied().await;
    }

    async fn connection(&self, stream: TcpStream, speaker: Speaker, place: Place) {
        // Answers are small: waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => self.converse(stream, speaker, &place).await,
            Some(config) => {
                let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream);
                let stream = tokio::select! {
                    shaken = handshake => shaken,
                    () = place.activity.over(&self.patience) => return,
                };
                if let Ok(stream) = stream {
                    self.converse(stream, speaker, &place).await;
                }
            }
        }
    }

    /// Speaks what the client came for.
    async fn converse<S>(&self, stream: S, speaker: Speaker, place: &Place)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match speaker {
            Speaker::Rest(_) => {
                let stream = Farewell::new(stream, self.engine.limits.header_bytes_max);
                self.speak(stream, speaker, place).await;
            }
            Speaker::Grpc(_) => self.speak(Together::new(stream), speaker, place).await,
        }
    }

    async fn speak<S>(&self, stream: S, speaker: Speaker, place: &Place)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let builder = self.builder(&speaker);
        let (share, activity) = (self.budget.share(), Arc::clone(&place.activity));
        let door = Arc::new(self.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (lease, under_way) = (share.lease(), activity.begin());
            let answered =
                answer(&door, speaker.clone(), request, Arc::clone(&lease), Arc::clone(&under_way));
            async move {
                let response = answered.await;
                under_way.answered();
                Ok::<_, Infallible>(response.map(|body| Leaving::new(body, lease, under_way)))
            }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let mut closing = self.closing.clone();
        let over = place.activity.over(&self.patience);
        tokio::pin!(over);
        tokio::select! {
            // What goes wrong on a connection concerns its client, who sees it.
            _ = connection.as_mut() => return,
            () = over.as_mut() => return,
            _ = closing.wait_for(|closing| *closing) => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection => {}
            () = over => {}
        }
    }

    /// How HTTP is spoken.
    fn builder(&self, speaker: &Speaker) -> Builder<TokioExecutor> {
        let limits = self.engine.limits;
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.patience.headers)
            .max_headers(HEADERS_READ_MAX)
            .max_buf_size(limits.header_bytes_max.max(8192) + (64 << 10));
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .max_concurrent_streams(STREAMS_MAX)
            // What the protocol buffers has left the budget.
            .max_send_buf_size(ANSWER_BUFFER_BYTES)
            .max_header_list_size(limits.header_bytes_max as u32)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20);
        match speaker {
            Speaker::Rest(_) => builder,
            // A web page can make a browser speak HTTP/1 to any port, and never gRPC.
            Speaker::Grpc(_) => builder.http2_only(),
        }
    }
}

type Answered = Pin<Box<dyn Future<Output = Response<GrpcBody>> + Send>>;

/// One request to one answer; who has no right gets no further than this.
fn answer(
    door: &Arc<Door>,
    speaker: Speaker,
    request: Request<Incoming>,
    lease: Arc<Lease>,
    under_way: Arc<UnderWay>,
) -> Answered {
    let (mut parts, body) = request.into_parts();
    if body.is_end_stream() {
        under_way.arrived();
    }
    parts.extensions.insert(Arc::clone(&lease));
    let allowed = door.access.allows(&parts.headers);
    match speaker {
        Speaker::Rest(mut router) => {
            let path = parts.uri.path();
            let is_health = path.starts_with("/v2/health/");
            let allowed = allowed || rest::is_public(path);
            let refused = check_headers(&parts, &lease, door.engine.limits.header_bytes_max)
                .and_then(|()| {
                    if is_health { Ok(()) } else { security::check_page(door.local, Speech::Rest, &parts) }
                })
                .and(if allowed { Ok(()) } else { Err(ServeError::Unauthorized) });
            if let Err(error) = refused {
                return Box::pin(async move { error.into_response().map(GrpcBody::new) });
            }
            parts.extensions.insert(rest::BodyTime(door.patience.body));
            let body = Body::new(Counted::plain(body, lease, under_way));
            let called = router.call(Request::from_parts(parts, body));
            Box::pin(async move { called.await.unwrap_or_else(|never| match never {}).map(GrpcBody::new) })
        }
        Speaker::Grpc(mut service) => {
            let refused = check_headers(&parts, &lease, door.engine.limits.header_bytes_max)
                .and_then(|()| security::check_page(door.local, Speech::Grpc, &parts))
                .and(if allowed { Ok(()) } else { Err(ServeError::Unauthorized) });
            if let Err(error) = refused {
                return Box::pin(async move { Status::from(error).into_http() });
            }
            let path = parts.uri.path().chars().take(200).collect::<String>();
            let body = Counted::messages(body, lease, under_way, door.engine.limits.body_bytes_max);
            let called = service.call(Request::from_parts(parts, body));
            let time_max = door.patience.call;
            Box::pin(async move {
                match tokio::time::timeout(time_max, called).await {
                    Ok(Ok(response)) => with_words(response, &path),
                    Ok(Err(never)) => match never {},
                    Err(_) => Status::from(ServeError::SlowClient).into_http(),
                }
            })
        }
    }
}

/// Counts a request's headers, and refuses too many of them.
fn check_headers(parts: &http::request::Parts, lease: &Lease, bytes_max: usize) -> Result<(), ServeError> {
    let bytes =
        parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>();
    let bytes = bytes + parts.uri.path().len();
    if bytes > bytes_max || parts.headers.len() > HEADERS_MAX {
        return Err(ServeError::HeadersTooLarge { bytes_max, count_max: HEADERS_MAX });
    }
    lease.grow(REQUEST_BYTES + bytes as u64).map_err(|_| ServeError::Crowded)
}

/// An answer of gRPC that only says UNIMPLEMENTED says what is not.
fn with_words(response: Response<GrpcBody>, path: &str) -> Response<GrpcBody> {
    let is_bare = |headers: &http::HeaderMap| {
        let code = headers.get(GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()));
        code == Some(Code::Unimplemented) && !headers.contains_key(GRPC_MESSAGE)
    };
    if is_bare(response.headers()) {
        let words =
            format!("there is no method `{path}` here; the service is inference.GRPCInferenceService");
        return Status::unimplemented(words).into_http();
    }
    response
}
