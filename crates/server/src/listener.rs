//! Connections: accepted up to a limit, with TLS or without, and let go in order when the server ends.
//!
//! A client that is slow with its headers, its handshake or its body loses its connection, so half a request holds
//! a place for a short while only. When the server drains, it accepts nobody, tells open connections that the
//! present request is the last, and waits for them up to a time.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
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
};
use tokio_rustls::TlsAcceptor;
use tonic::body::Body as GrpcBody;
use tower_service::Service;

use crate::{
    engine::Engine, error::ServeError, grpc,
    proto::grpc_inference_service_server::GrpcInferenceServiceServer, rest, security::Access,
    together::Together,
};

/// How long a client may take for the handshake, and for the headers of a request.
const HEADERS_TIME_MAX: Duration = Duration::from_secs(10);
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
        let service = service_fn(move |request: Request<Incoming>| answer(speaker.clone(), &access, request));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let mut draining = self.draining.clone();
        tokio::select! {
            // What goes wrong on a connection concerns its client, who sees it.
            _ = connection.as_mut() => return,
            _ = draining.wait_for(|draining| *draining) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

type Answered = Pin<Box<dyn Future<Output = Result<Response<GrpcBody>, Infallible>> + Send>>;

/// One request to one answer; who has no right gets no further than this.
fn answer(speaker: Speaker, access: &Access, request: Request<Incoming>) -> Answered {
    let allowed = access.allows(request.headers());
    match speaker {
        Speaker::Rest(mut router) => {
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
                    Some(called) => called.await,
                    None => Ok(tonic::Status::from(ServeError::Unauthorized).into_http()),
                }
            })
        }
    }
}
