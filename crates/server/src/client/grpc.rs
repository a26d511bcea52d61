//! gRPC on a connection of its own: one question at a time, on the calling thread.
//!
//! A question is a message behind five bytes, and an answer ends with headers that say how it went; HTTP/2 carries both. The
//! usual client hands HTTP/2 the headers, the message and its end one after the other, from tasks that take turns, and they
//! leave in three packets. Here all of it is there before the connection is asked to write, so a question is one packet.

use std::{io, net::SocketAddr, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{RecvStream, client::SendRequest};
use http::{HeaderValue, Method, Request, Uri, header};
use prost::Message;
use tokio::{net::TcpStream, runtime::Runtime};
use tonic::{Code, Status};

use super::ClientError;
use crate::proto::{ModelInferRequest, ModelInferResponse};

/// What is called.
const PATH: &str = "/inference.GRPCInferenceService/ModelInfer";
/// Bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A question: bytes that only need to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcRequest(Bytes);

impl GrpcRequest {
    /// The bytes of a message.
    pub fn new(message: &ModelInferRequest) -> GrpcRequest {
        let length = message.encoded_len();
        let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
        bytes.put_u8(0);
        // The server takes no message of 4 GiB; one that long is refused by its wrong length.
        bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        bytes.put_slice(&message.encode_to_vec());
        GrpcRequest(bytes.freeze())
    }
}

/// A gRPC connection, with a runtime of its own.
#[derive(Debug)]
pub struct GrpcClient {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
    uri: Uri,
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
            let stream = TcpStream::connect(address).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            let handshake = h2::client::handshake(stream).await;
            let (sender, connection) = handshake.map_err(|error| failed(io::Error::other(error)))?;
            tokio::spawn(connection);
            Ok(sender)
        })?;
        let uri = Uri::builder().scheme("http").authority(address.to_string()).path_and_query(PATH).build();
        let uri = uri.map_err(|error| failed(io::Error::other(error)))?;
        Ok(GrpcClient { runtime, sender, uri })
    }

    /// Asks for scores; `timeout` is told to the server.
    ///
    /// # Errors
    /// With the server's code and words.
    pub fn infer(
        &mut self,
        message: &ModelInferRequest,
        timeout: Option<Duration>,
    ) -> Result<ModelInferResponse, (Code, String)> {
        self.send(&GrpcRequest::new(message), timeout)
    }

    /// Asks for scores with a message that is ready.
    ///
    /// # Errors
    /// With the server's code and words.
    pub fn send(
        &mut self,
        request: &GrpcRequest,
        timeout: Option<Duration>,
    ) -> Result<ModelInferResponse, (Code, String)> {
        let head = self.head(timeout);
        let (sender, bytes) = (&mut self.sender, request.0.clone());
        let answered = self.runtime.block_on(async {
            // Only one question is under way, so there is always room for it.
            may_ask(sender).await?;
            let (answer, mut body) = sender.send_request(head, false)?;
            body.send_data(bytes, true)?;
            let answer = answer.await?;
            let headers = answer.headers().clone();
            let mut body = answer.into_body();
            let message = whole(&mut body).await?;
            // What fails at once says so in its first headers.
            let trailers = body.trailers().await?;
            Ok::<_, h2::Error>((message, trailers.unwrap_or(headers)))
        });
        let lost = |problem: String| (Code::Unavailable, problem);
        let (message, ending) = answered.map_err(|error| lost(error.to_string()))?;
        match Status::from_header_map(&ending) {
            None => Err((Code::Internal, "the answer ends without a status".to_owned())),
            Some(status) if status.code() != Code::Ok => Err((status.code(), status.message().to_owned())),
            Some(_) if message.len() < PREFIX_BYTES => {
                Err((Code::Internal, "the answer is empty".to_owned()))
            }
            Some(_) => ModelInferResponse::decode(message.slice(PREFIX_BYTES..))
                .map_err(|error| (Code::Internal, error.to_string())),
        }
    }

    fn head(&self, timeout: Option<Duration>) -> Request<()> {
        let mut head = Request::new(());
        *head.method_mut() = Method::POST;
        *head.uri_mut() = self.uri.clone();
        *head.version_mut() = http::Version::HTTP_2;
        let headers = head.headers_mut();
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Some(timeout) = timeout {
            let us = timeout.as_micros().min(99_999_999);
            if let Ok(value) = HeaderValue::from_str(&format!("{us}u")) {
                headers.insert("grpc-timeout", value);
            }
        }
        head
    }
}

/// Waits until another question may be asked.
async fn may_ask(sender: &mut SendRequest<Bytes>) -> Result<(), h2::Error> {
    std::future::poll_fn(|context| sender.poll_ready(context)).await
}

/// The whole body. One that comes in one piece, as almost all do, is not copied.
async fn whole(body: &mut RecvStream) -> Result<Bytes, h2::Error> {
    let mut pieces = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        pieces.push(piece);
    }
    Ok(match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    })
}
