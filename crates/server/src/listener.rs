//! Connections: accepted up to a limit, with TLS or without, and let go in order when the server ends.
//!
//! A client that is slow with its headers, its handshake or its body loses its connection, so half a request holds
//! a place for a short while only. When the server drains, it accepts nobody, tells open connections that the
//! present request is the last, and waits for them up to a time.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse};
use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;
use tonic::body::Body as GrpcBody;
use tower_service::Service;

use crate::{
    clock,
    engine::Engine,
    error::ServeError,
    grpc,
    proto::grpc_inference_service_server::GrpcInferenceServiceServer,
    rest,
    security::{self, Access},
    together::Together,
};

/// How long a client may take for the handshake, and for the headers of a request.
const HEADERS_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a connection stays open on which nothing is asked.
const IDLE_TIME_MAX: Duration = Duration::from_secs(75);
/// How long a gRPC call may take from its first byte on, its message included.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);
/// Streams that one HTTP/2 connection may have open.
const STREAMS_MAX: u32 = 256;
/// Headers of one HTTP/1 request.
const HEADERS_MAX: usize = 64;

/// What speaks on a connection.
#[derive(Clone)]
pub enum Speaker {
    /// REST, metrics and the page.
    Rest(Router),
    /// gRPC.
    Grpc(GrpcInferenceServiceServer<grpc::Service>),
}

/// What every connection of a server shares.
#[derive(Debug, Clone)]
pub struct Door {
    /// The engine behind it.
    pub engine: Arc<Engine>,
    /// Who may ask.
    pub access: Arc<Access>,
    /// TLS, if any.
    pub tls: Option<Arc<ServerConfig>>,
    /// Places for connections that are free.
    pub connections: Arc<Semaphore>,
    /// Connections that may be open.
    pub connections_max: u32,
    /// Turns true when the server drains.
    pub draining: watch::Receiver<bool>,
    /// Whether only this machine can connect.
    pub local: bool,
}

/// What a connection is doing: its requests under way, and when the last one came or ended.
#[derive(Debug)]
struct Activity {
    under_way: AtomicUsize,
    asked: AtomicBool,
    last: Mutex<Instant>,
}

/// A request under way; whatever happens to it, it ends.
struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = clock::timer_now();
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Activity {
    fn new() -> Arc<Activity> {
        let last = Mutex::new(clock::timer_now());
        Arc::new(Activity { under_way: AtomicUsize::new(0), asked: AtomicBool::new(false), last })
    }

    fn begin(self: &Arc<Activity>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.asked.store(true, Ordering::Relaxed);
        UnderWay(Arc::clone(self))
    }

    /// Ends when nothing was asked for too long: soon for who never asked, later for who may ask again. A client that
    /// does not read its answer has no request under way either.
    async fn idle(&self) {
        loop {
            let limit = if self.asked.load(Ordering::Relaxed) { IDLE_TIME_MAX } else { HEADERS_TIME_MAX };
            let end = *self.last.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if self.under_way.load(Ordering::Relaxed) == 0 && clock::timer_now() >= end {
                return;
            }
            tokio::time::sleep_until(end.max(clock::timer_now() + Duration::from_secs(1))).await;
        }
    }
}

impl Door {
    /// Accepts connections until the server drains, then waits until all of them are done.
    pub async fn serve(mut self, listener: TcpListener, speaker: Speaker) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = self.draining.wait_for(|draining| *draining) => break,
            };
            // A failed accept concerns one client, or passes when file handles are free again.
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
                self.engine.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let (door, speaker) = (self.clone(), speaker.clone());
            tokio::spawn(async move {
                door.engine.metrics.connections.fetch_add(1, Ordering::Relaxed);
                door.connection(stream, speaker, permit).await;
                door.engine.metrics.connections.fetch_sub(1, Ordering::Relaxed);
            });
        }
        // Every place is free when every connection has ended.
        let _ = self.connections.acquire_many(self.connections_max).await;
    }

    async fn connection(&self, stream: TcpStream, speaker: Speaker, _permit: OwnedSemaphorePermit) {
        // Answers are small: waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => self.converse(stream, speaker).await,
            Some(config) => {
                let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream);
                if let Ok(Ok(stream)) = tokio::time::timeout(HEADERS_TIME_MAX, handshake).await {
                    self.converse(stream, speaker).await;
                }
            }
        }
    }

    /// Speaks what the client came for.
    async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        speaker: Speaker,
    ) {
        match speaker {
            Speaker::Rest(_) => self.speak(stream, speaker).await,
            Speaker::Grpc(_) => self.speak(Together::new(stream), speaker).await,
        }
    }

    async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S, speaker: Speaker) {
        let limits = self.engine.limits;
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_TIME_MAX)
            .max_headers(HEADERS_MAX)
            .max_buf_size(limits.header_bytes_max.max(8192) + (64 << 10));
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(limits.header_bytes_max as u32)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20);
        let access = Arc::clone(&self.access);
        let activity = Activity::new();
        let (local, own) = (self.local, Arc::clone(&activity));
        let service = service_fn(move |request: Request<Incoming>| {
            let under_way = own.begin();
            let answered = answer(speaker.clone(), (&access, local), request);
            async move {
                let _under_way = under_way;
                answered.await
            }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let mut draining = self.draining.clone();
        tokio::select! {
            // What goes wrong on a connection concerns its client, who sees it.
            _ = connection.as_mut() => return,
            () = activity.idle() => return,
            _ = draining.wait_for(|draining| *draining) => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection => {}
            () = activity.idle() => {}
        }
    }
}

type Answered = Pin<Box<dyn Future<Output = Result<Response<GrpcBody>, Infallible>> + Send>>;

/// One request to one answer; who has no right gets no further than this.
fn answer(speaker: Speaker, (access, local): (&Access, bool), request: Request<Incoming>) -> Answered {
    let allowed = access.allows(request.headers());
    match speaker {
        Speaker::Rest(mut router) => {
            let is_health = request.uri().path().starts_with("/v2/health/");
            let (parts, body) = request.into_parts();
            if let Err(error) = security::check_page(local, &parts)
                && !is_health
            {
                return Box::pin(async move { Ok(error.into_response().map(GrpcBody::new)) });
            }
            let request = Request::from_parts(parts, body);
            let allowed = allowed || rest::is_public(request.uri().path());
            let called = allowed.then(|| router.call(request.map(Body::new)));
            Box::pin(async move {
                let response = match called {
                    Some(called) => called.await.unwrap_or_else(|never| match never {}),
                    None => ServeError::Unauthorized.into_response(),
                };
                Ok(response.map(GrpcBody::new))
            })
        }
        Speaker::Grpc(mut service) => {
            let called = allowed.then(|| service.call(request));
            Box::pin(async move {
                match called {
                    Some(called) => match tokio::time::timeout(CALL_TIME_MAX, called).await {
                        Ok(answered) => answered,
                        Err(_) => Ok(tonic::Status::from(ServeError::SlowClient).into_http()),
                    },
                    None => Ok(tonic::Status::from(ServeError::Unauthorized).into_http()),
                }
            })
        }
    }
}
