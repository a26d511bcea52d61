//! Bytes that are written one after the other and leave together.
//!
//! An answer over gRPC is three frames: headers, a message, and headers at the end. `h2` puts frames side by side in a buffer of
//! its own, but a message of more than 256 bytes it hands to the socket where it lies, with what came before, and begins
//! anew: the 10 bytes at the end become a packet, and the client wakes twice for one answer. Where a connection cannot
//! take several pieces at once, as this one says of itself, that limit is 1,024 bytes, which is 200 scores. Longer
//! messages still leave in two parts, and not in three: what is written before a flush is gathered here.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf};

/// A connection that gathers what is written until it is flushed.
#[derive(Debug)]
pub struct Together<S>(BufWriter<S>);

impl<S: AsyncWrite> Together<S> {
    /// A connection with nothing gathered.
    pub fn new(stream: S) -> Together<S> {
        Together(BufWriter::new(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Together<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, room)
    }
}

// `is_write_vectored` is left as it is for everybody: false.
impl<S: AsyncWrite + Unpin> AsyncWrite for Together<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use bytes::Bytes;
    use http::{HeaderMap, Request, Response};
    use http_body_util::{BodyExt, Full};
    use hyper::{
        body::{Body, Frame, Incoming},
        service::service_fn,
    };
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::DuplexStream;

    use super::*;

    /// Notes how many bytes every write had.
    struct Noted(DuplexStream, Arc<Mutex<Vec<usize>>>);

    impl AsyncRead for Noted {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            room: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(context, room)
        }
    }

    impl AsyncWrite for Noted {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let written = Pin::new(&mut self.0).poll_write(context, bytes);
            if let Poll::Ready(Ok(count)) = written {
                self.1.lock().unwrap().push(count);
            }
            written
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    /// Frames that are there at once.
    struct Message(VecDeque<Frame<Bytes>>);

    impl Body for Message {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    /// The writes of a second answer with a message of so many bytes and headers at its end, as gRPC has them.
    async fn writes(message: usize) -> Vec<usize> {
        let (near, far) = tokio::io::duplex(1 << 20);
        let noted = Arc::new(Mutex::new(Vec::new()));
        let stream = TokioIo::new(Together::new(Noted(far, Arc::clone(&noted))));
        let answer = service_fn(move |_: Request<Incoming>| async move {
            let frames = [Frame::data(Bytes::from(vec![7; message])), Frame::trailers(HeaderMap::new())];
            Ok::<_, Infallible>(Response::new(Message(frames.into())))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(async move { server.serve_connection(stream, answer).await });
        let (mut client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..2 {
            noted.lock().unwrap().clear();
            let asked = Request::new(Full::new(Bytes::new()));
            let body = client.send_request(asked).await.unwrap().into_body();
            assert_eq!(body.collect().await.unwrap().to_bytes().len(), message);
        }
        noted.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn an_answer_of_a_few_scores_leaves_in_one_write() {
        assert_eq!(writes(312).await.len(), 1);
        assert_eq!(writes(1000).await.len(), 1);
        assert_eq!(writes(5000).await.len(), 2);
    }
}
