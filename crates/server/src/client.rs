//! Two small clients, for measuring and for tests: REST over a plain connection, and gRPC.
//!
//! Both wait for each answer on the calling thread. A client that measures must cost little and hide nothing, so
//! both write bytes that were made beforehand, in one piece, and read no more than they must.

mod grpc;

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use bytes::Bytes;
use thiserror::Error;

pub use grpc::{GrpcClient, GrpcRequest};

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
        RestRequest::for_host("localhost", method, path, headers, body)
    }

    /// The same for a server of another name.
    pub fn for_host(host: &str, method: &str, path: &str, headers: &[&str], body: &[u8]) -> RestRequest {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {length}\r\n\r\n");
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

/// The floats of raw contents.
pub fn floats(bytes: &Bytes) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
