//! Bodies as they pass the listener: what arrives is counted against the [budget](crate::budget) before anybody reads it, and
//! a request is under way until the last piece of its answer has left.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::{budget::Lease, error::ServeError, places::UnderWay};

/// Whoever reads or writes a body gets errors of any kind.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of an answer that are handed to a connection at once: the rest waits where it is counted, until the client reads.
const PIECE_BYTES: usize = 16 << 10;

/// Bytes before a gRPC message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A request's body.
#[derive(Debug)]
pub struct Counted<B> {
    inner: B,
    lease: Arc<Lease>,
    under_way: Arc<UnderWay>,
    /// For gRPC, the first bytes of the message that is arriving, and how many bytes of it are still to come. A message is
    /// counted when its length is known: whoever reads it takes memory for all of it then.
    message: Option<Message>,
}

#[derive(Debug, Default)]
struct Message {
    prefix: Vec<u8>,
    left: u64,
    bytes_max: u64,
}

impl<B> Counted<B> {
    /// A body of REST.
    pub fn plain(inner: B, lease: Arc<Lease>, under_way: Arc<UnderWay>) -> Counted<B> {
        Counted { inner, lease, under_way, message: None }
    }

    /// A body of gRPC, whose messages have so many bytes at most; a larger one is refused by who reads it.
    pub fn messages(inner: B, lease: Arc<Lease>, under_way: Arc<UnderWay>, bytes_max: usize) -> Counted<B> {
        let message = Message { bytes_max: bytes_max as u64, ..Message::default() };
        Counted { inner, lease, under_way, message: Some(message) }
    }
}

impl Message {
    /// What the bytes that arrived claim to be the beginning of.
    fn claimed(&mut self, mut bytes: &[u8]) -> u64 {
        let mut claimed = 0;
        while !bytes.is_empty() {
            let own = (self.left.min(bytes.len() as u64)) as usize;
            self.left -= own as u64;
            bytes = &bytes[own..];
            let head = bytes.len().min(PREFIX_BYTES - self.prefix.len());
            self.prefix.extend_from_slice(&bytes[..head]);
            bytes = &bytes[head..];
            if let [_, a, b, c, d] = self.prefix[..] {
                self.left = u64::from(u32::from_be_bytes([a, b, c, d]));
                claimed += if self.left > self.bytes_max { 0 } else { self.left };
                self.prefix.clear();
            }
        }
        claimed
    }
}

impl<B: Body<Data = Bytes, Error: Into<AnyError>> + Unpin> Body for Counted<B> {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
            None => {
                self.under_way.arrived();
                return Poll::Ready(None);
            }
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        let bytes = frame.data_ref().map_or(0, |data| match &mut self.message {
            None => data.len() as u64,
            Some(message) => message.claimed(data),
        });
        if self.lease.grow(bytes).is_err() {
            return Poll::Ready(Some(Err(Box::new(Status::from(ServeError::Crowded)))));
        }
        if self.inner.is_end_stream() {
            self.under_way.arrived();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Whether a body could not be read because the budget is spent.
pub fn is_crowded(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(status) = error.downcast_ref::<Status>() {
            return status.code() == ServeError::Crowded.code();
        }
        cause = error.source();
    }
    false
}

/// An answer's body, in pieces, which keeps its request under way.
#[derive(Debug)]
pub struct Leaving<B> {
    inner: B,
    /// Of a frame, what has not left yet.
    rest: Bytes,
    _under_way: Arc<UnderWay>,
    _lease: Arc<Lease>,
}

impl<B> Leaving<B> {
    /// The answer of a request.
    pub fn new(inner: B, lease: Arc<Lease>, under_way: Arc<UnderWay>) -> Leaving<B> {
        Leaving { inner, rest: Bytes::new(), _under_way: under_way, _lease: lease }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Leaving<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let length = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, own) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut all = SizeHint::new();
        all.set_lower(hint.lower() + own);
        if let Some(upper) = hint.upper() {
            all.set_upper(upper + own);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http_body_util::{BodyExt, Full};

    use super::*;
    use crate::{budget::Budget, places::Activity};

    /// Frames that are there at once.
    struct Frames(VecDeque<Bytes>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop_front().map(|bytes| Ok(Frame::data(bytes))))
        }
    }

    fn frames(parts: &[&[u8]]) -> Frames {
        Frames(parts.iter().map(|part| Bytes::copy_from_slice(part)).collect())
    }

    #[tokio::test]
    async fn what_arrives_is_counted_and_beyond_the_budget_refused() {
        let (budget, activity) = (Budget::new(100), Activity::new());
        let lease = || budget.share().lease();
        let plain = Counted::plain(frames(&[&[1; 30], &[1; 20]]), lease(), activity.begin());
        assert_eq!(plain.collect().await.unwrap().to_bytes().len(), 50);
        let plain = Counted::plain(frames(&[&[1; 30], &[1; 21]]), lease(), activity.begin());
        let error = plain.collect().await.unwrap_err();
        assert!(is_crowded(&*error), "{error}");
        assert_eq!(budget.taken(), 0, "with the body its bytes are given back");
        // A message of gRPC is counted by what it claims to be, however little of it came, and wherever frames end.
        let mut claim =
            Counted::messages(frames(&[&[0, 0, 0], &[0, 51, 7]]), lease(), activity.begin(), 1000);
        assert!(claim.frame().await.unwrap().is_ok());
        assert!(is_crowded(&*claim.frame().await.unwrap().unwrap_err()));
        let two = [&[0, 0, 0, 0, 2, 7, 7, 0, 0][..], &[0, 0, 3, 8], &[8, 8]];
        let lent = lease();
        let whole = Counted::messages(frames(&two), Arc::clone(&lent), activity.begin(), 1000);
        whole.collect().await.unwrap();
        assert_eq!(budget.taken(), 5);
    }

    #[tokio::test]
    async fn an_answer_leaves_in_pieces_and_is_under_way_until_the_last() {
        let (budget, activity) = (Budget::new(100), Activity::new());
        let lease = budget.share().lease();
        lease.grow(7).unwrap();
        let mut answer = Leaving::new(Full::new(Bytes::from(vec![5; 40_000])), lease, activity.begin());
        assert_eq!(answer.size_hint().exact(), Some(40_000));
        let mut sizes = Vec::new();
        while let Some(frame) = answer.frame().await {
            sizes.push(frame.unwrap().into_data().unwrap().len());
        }
        assert_eq!(sizes, [PIECE_BYTES, PIECE_BYTES, 40_000 - 2 * PIECE_BYTES]);
        assert!(answer.is_end_stream() && activity.is_busy() && budget.taken() == 7);
        drop(answer);
        assert!(!activity.is_busy() && budget.taken() == 0);
    }
}
