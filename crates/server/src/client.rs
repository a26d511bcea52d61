//! Two small clients, for measuring and for tests: REST over a plain connection, and gRPC.
//!
//! Both wait for each answer on the calling thread. A client that measures must cost little and hide nothing, so
//! REST writes bytes that were made beforehand and reads no more than it must.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use thiserror::Error;
use tokio::runtime::Runtime;
use tonic::{Code, body::Body};
use tower_service::Service;

use crate::proto::{
    ModelInferRequest, ModelInferResponse, grpc_inference_service_client::GrpcInferenceServiceClient,
};

/// How long a client waits for bytes.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of an answer's headers.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The connection.
    #[error("the connection to {address} failed: {source}")]
    Connection {
        /// Whom we asked.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// What came is no answer.
    #[error("{address} gave no answer that can be read: {problem}")]
    Answer {
        /// Whom we asked.
        address: SocketAddr,
        /// What is wrong.
        problem: String,
    },
}

/// An answer to a REST request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestAnswer {
    /// Its status.
    pub status: u16,
    /// Its headers as they came.
    pub head: String,
    /// Its body.
    pub body: Vec<u8>,
}

impl RestAnswer {
    /// A header's value; names in small letters, as the server writes them.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A REST connection that is used again and again.
#[derive(Debug)]
pub struct RestClient {
    address: SocketAddr,
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A request to post: bytes that only need to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestRequest(Vec<u8>);

impl RestRequest {
    /// A request; headers are whole lines without their ends.
    pub fn new(method: &str, path: &str, headers: &[&str], body: &[u8]) -> RestRequest {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n"
        );
        RestRequest([head.as_bytes(), body].concat())
    }

    /// How many bytes it has on the wire.
    pub fn byte_count(&self) -> usize {
        self.0.len()
    }

    /// The same with more headers.
    pub fn with_headers(self, headers: &[&str]) -> RestRequest {
        let line_end = self.0.windows(2).position(|pair| pair == b"\r\n").map_or(0, |at| at + 2);
        let more: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        RestRequest([&self.0[..line_end], more.as_bytes(), &self.0[line_end..]].concat())
    }
}

impl RestClient {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(address: SocketAddr) -> Result<RestClient, ClientError> {
        let failed = |source| ClientError::Connection { address, source };
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(RestClient { address, stream, buffer: Vec::with_capacity(16 << 10) })
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// When the connection ends or what comes is no answer; connect anew then.
    pub fn send(&mut self, request: &RestRequest) -> Result<RestAnswer, ClientError> {
        let address = self.address;
        let failed = |source| ClientError::Connection { address, source };
        self.stream.write_all(&request.0).map_err(failed)?;
        self.buffer.clear();
        let head = loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(self.unreadable("its headers do not end"));
            }
            self.more().map_err(failed)?;
        };
        let text = String::from_utf8_lossy(&self.buffer[..head]).into_owned();
        let status = text.get(9..12).and_then(|digits| digits.parse().ok());
        let status = status.ok_or_else(|| self.unreadable("it has no status"))?;
        let mut answer = RestAnswer { status, head: text, body: Vec::new() };
        let length = answer.header("content-length").and_then(|text| text.parse::<usize>().ok());
        let end = head + 4 + length.ok_or_else(|| self.unreadable("it has no length"))?;
        while self.buffer.len() < end {
            self.more().map_err(failed)?;
        }
        answer.body.extend_from_slice(&self.buffer[head + 4..end]);
        Ok(answer)
    }

    fn more(&mut self) -> io::Result<()> {
        let start = self.buffer.len();
        self.buffer.resize(start + (16 << 10), 0);
        let count = self.stream.read(&mut self.buffer[start..])?;
        self.buffer.truncate(start + count);
        if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn unreadable(&self, problem: &str) -> ClientError {
        ClientError::Answer { address: self.address, problem: problem.to_owned() }
    }
}

/// A gRPC connection, with a runtime of its own.
#[derive(Debug)]
pub struct GrpcClient {
    runtime: Runtime,
    client: GrpcInferenceServiceClient<Connection>,
}

impl GrpcClient {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens, or does not speak HTTP/2.
    pub fn connect(address: SocketAddr) -> Result<GrpcClient, ClientError> {
        let failed = |source| ClientError::Connection { address, source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .map_err(|error| failed(io::Error::other(error)))?;
            tokio::spawn(connection);
            Ok(sender)
        })?;
        let origin = Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build();
        let origin = origin.map_err(|error| failed(io::Error::other(error)))?;
        Ok(GrpcClient {
            runtime,
            client: GrpcInferenceServiceClient::with_origin(Connection(sender), origin),
        })
    }

    /// Asks for scores; `timeout` is told to the server.
    ///
    /// # Errors
    /// With the server's code and words.
    pub fn infer(
        &mut self,
        request: ModelInferRequest,
        timeout: Option<Duration>,
    ) -> Result<ModelInferResponse, (Code, String)> {
        let mut request = tonic::Request::new(request);
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        let answered = self.runtime.block_on(self.client.model_infer(request));
        answered
            .map(tonic::Response::into_inner)
            .map_err(|status| (status.code(), status.message().to_owned()))
    }
}

/// An HTTP/2 connection as tonic wants to call it.
#[derive(Debug, Clone)]
struct Connection(http2::SendRequest<Body>);

impl Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// The floats of raw contents.
pub fn floats(bytes: &Bytes) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
