//! How a REST connection ends that was refused something: so that its client can read why.
//!
//! A client that is still sending what nobody will read has its answer torn away when the connection is closed: the
//! system resets it, and what was on the way is lost. So after a refusal our side is closed first, and what the client
//! still sends is read and forgotten for a little while. A request that is no HTTP is answered by the library with a bare
//! status; here it gets words like every other refusal.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::StatusCode;
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// How long a client that was refused may go on sending.
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
/// How much it may send.
const LINGER_BYTES_MAX: usize = 64 << 20;

/// How every refusal begins.
const REFUSAL: &[u8] = b"HTTP/1.1 4";
/// What the library's own refusals have and ours never do.
const NO_BODY: &[u8] = b"\r\ncontent-length: 0\r\n";

/// A connection of REST.
#[derive(Debug)]
pub struct Farewell<S> {
    stream: S,
    header_bytes_max: usize,
    /// Whether the last answer was a refusal.
    refused: bool,
    /// An answer that takes the place of the library's, and how much of it has left.
    own: Option<(Vec<u8>, usize)>,
    lingering: Option<Lingering>,
}

/// Reading what is forgotten.
#[derive(Debug)]
struct Lingering {
    end: Pin<Box<Sleep>>,
    bytes: usize,
}

impl<S> Farewell<S> {
    /// A connection on which nothing was said yet.
    pub fn new(stream: S, header_bytes_max: usize) -> Farewell<S> {
        Farewell { stream, header_bytes_max, refused: false, own: None, lingering: None }
    }

    /// Looks at the beginning of what is written.
    fn hear(&mut self, bytes: &[u8]) {
        if !bytes.starts_with(b"HTTP/1.1 ") {
            return;
        }
        self.refused = bytes.starts_with(REFUSAL);
        let is_bare = self.refused && bytes.windows(NO_BODY.len()).any(|window| window == NO_BODY);
        let status = bytes.get(9..12).and_then(|digits| StatusCode::from_bytes(digits).ok());
        if let Some(status) = status.filter(|_| is_bare && bytes.ends_with(b"\r\n\r\n")) {
            self.own = words(status, self.header_bytes_max).map(|answer| (answer, 0));
        }
    }
}

/// The answer to what is no request.
fn words(status: StatusCode, header_bytes_max: usize) -> Option<Vec<u8>> {
    let problem = match status {
        StatusCode::BAD_REQUEST => "this is no HTTP request that can be read".to_owned(),
        StatusCode::URI_TOO_LONG => "the path is too long".to_owned(),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            format!("the headers are more than the limit of {header_bytes_max} bytes, or too many")
        }
        _ => return None,
    };
    let body = json!({ "error": problem }).to_string();
    let head = format!(
        "HTTP/1.1 {} {}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        status.as_str(),
        status.canonical_reason().unwrap_or_default(),
        body.len()
    );
    Some(head.into_bytes())
}

impl<S: AsyncRead + Unpin> AsyncRead for Farewell<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, room)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Farewell<S> {
    /// Writes what takes the place of `length` bytes.
    fn poll_own(&mut self, context: &mut Context<'_>, length: usize) -> Poll<io::Result<usize>> {
        while let Some((bytes, written)) = &mut self.own {
            if *written == bytes.len() {
                self.own = None;
                break;
            }
            *written += ready!(Pin::new(&mut self.stream).poll_write(context, &bytes[*written..]))?;
        }
        Poll::Ready(Ok(length))
    }

    /// Reads and forgets until the client has said everything or its time is over.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let lingering = self.lingering.get_or_insert_with(|| Lingering {
            end: Box::pin(tokio::time::sleep(LINGER_TIME_MAX)),
            bytes: 0,
        });
        let mut memory = [0; 8 << 10];
        while lingering.bytes < LINGER_BYTES_MAX && lingering.end.as_mut().poll(context).is_pending() {
            let mut room = ReadBuf::new(&mut memory);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut room)) {
                Ok(()) if !room.filled().is_empty() => lingering.bytes += room.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Farewell<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.own.is_none() {
            self.hear(bytes);
        }
        if self.own.is_some() {
            return self.poll_own(context, bytes.len());
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = pieces.iter().find(|piece| !piece.is_empty());
        if let Some(first) = first.filter(|_| self.own.is_none()) {
            self.hear(first);
        }
        if self.own.is_some() {
            return self.poll_own(context, first.map_or(0, |first| first.len()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        if self.refused {
            ready!(self.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_bare_refusal_gets_words_and_an_answer_of_ours_is_left_alone() {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let mut connection = Farewell::new(near, 1000);
        let bare =
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(bare).await.unwrap();
        let ours = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
        connection.write_all(ours).await.unwrap();
        let empty = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(empty).await.unwrap();
        drop(connection);
        let mut heard = String::new();
        far.read_to_string(&mut heard).await.unwrap();
        let (first, rest) = heard.split_once("HTTP/1.1 404").unwrap();
        assert!(
            first.ends_with("{\"error\":\"the headers are more than the limit of 1000 bytes, or too many\"}")
        );
        assert_eq!(format!("HTTP/1.1 404{rest}").as_bytes(), [&ours[..], empty].concat());
    }

    #[tokio::test]
    async fn after_a_refusal_the_client_may_finish_what_it_says() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut connection = Farewell::new(near, 1000);
        let client = tokio::spawn(async move {
            // Far more than the pipe holds: without a reader this would not end.
            far.write_all(&vec![7; 100_000]).await.unwrap();
            far.shutdown().await.unwrap();
            let mut heard = Vec::new();
            far.read_to_end(&mut heard).await.unwrap();
            heard
        });
        connection.write_all(b"HTTP/1.1 413 Too Large\r\n\r\n").await.unwrap();
        connection.shutdown().await.unwrap();
        drop(connection);
        assert!(client.await.unwrap().starts_with(b"HTTP/1.1 413"));
    }
}
