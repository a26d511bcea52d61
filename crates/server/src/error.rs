//! Why a client gets no scores, in words and in the codes of both transports.

use http::StatusCode;
use thiserror::Error;
use tonic::Code;

use crate::{features::FeatureError, protocol::ProtocolError, source::SourceError};

/// Why a client gets no scores.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The request cannot be read.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The request does not fit the model.
    #[error(transparent)]
    Features(#[from] FeatureError),
    /// No such model, or version of it.
    #[error("there is no model `{model}` here; /v2/repository/index lists what there is")]
    NoModel {
        /// What was asked for.
        model: String,
    },
    /// Another version is served.
    #[error(
        "model `{model}` is served in version {served}, not in version `{version}`; leave the version out"
    )]
    NoVersion {
        /// The model.
        model: String,
        /// What was asked for.
        version: String,
        /// What there is.
        served: String,
    },
    /// The model is known but cannot answer yet, or no more.
    #[error("model `{model}` is not ready: {reason}")]
    NotReady {
        /// The model.
        model: String,
        /// Why.
        reason: String,
    },
    /// An output that the model does not have.
    #[error("model `{model}` has no output `{output}`; it has {known}")]
    NoOutput {
        /// The model.
        model: String,
        /// What was asked for.
        output: String,
        /// What there is.
        known: String,
    },
    /// As much waits as may.
    #[error("the server is busy: {waiting} requests wait, which is the limit; try again later or elsewhere")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// All requests together have as much memory as they may.
    #[error(
        "the requests under way take as much memory as they may (--request-memory-mb); try again later, or send less at \
         once"
    )]
    Crowded,
    /// The answer would come, or came, too late.
    #[error("the request's time of {timeout_us} microseconds is over")]
    Late {
        /// What the client gave.
        timeout_us: u64,
    },
    /// The server is going away.
    #[error("the server is shutting down; send the request elsewhere")]
    ShuttingDown,
    /// Changing the repository from the network was not allowed.
    #[error(
        "loading and unloading from the network is off; start the server with --allow-repository-control"
    )]
    NoControl,
    /// A snapshot could not be loaded.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A client took too long to send its request.
    #[error("the body did not arrive in time")]
    SlowClient,
    /// A body that could not be read.
    #[error("the body cannot be read: {problem}")]
    Body {
        /// Why.
        problem: String,
    },
    /// A larger body than allowed.
    #[error("the body is larger than the limit of {limit} bytes")]
    BodyTooLarge {
        /// The limit.
        limit: usize,
    },
    /// More headers than allowed.
    #[error("the headers are more than the limit of {bytes_max} bytes or {count_max} headers")]
    HeadersTooLarge {
        /// Bytes that they may have.
        bytes_max: usize,
        /// How many they may be.
        count_max: usize,
    },
    /// A body that must be unpacked first.
    #[error(
        "a body in the encoding `{encoding}` is not read here: send it as it is, without Content-Encoding"
    )]
    Encoding {
        /// What came.
        encoding: String,
    },
    /// No token, or a wrong one.
    #[error("the request needs a valid bearer token")]
    Unauthorized,
    /// A web page of somebody else, or a name that is not ours.
    #[error("the request is refused: {problem}")]
    Foreign {
        /// What it came with.
        problem: String,
    },
    /// A body of a kind that is not read here.
    #[error(
        "a body of type `{found}` is not read here: send `Content-Type: application/json`, or \
         `application/octet-stream` for binary tensors"
    )]
    ContentType {
        /// What came.
        found: String,
    },
    /// A mistake of ours.
    #[error("the request could not be scored: {problem}")]
    Internal {
        /// What happened.
        problem: String,
    },
}

/// Bytes of a message: it holds names that a client chose, of any length.
const TOLD_BYTES_MAX: usize = 1024;

/// Text that takes so many bytes and no more.
struct Bounded(String);

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = TOLD_BYTES_MAX - self.0.len();
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        // The writer of a long text stops here, whatever is left of it.
        Err(std::fmt::Error)
    }
}

impl ServeError {
    /// The message as clients, logs and traces get it: cut where it is too long.
    pub fn told(&self) -> String {
        let mut text = Bounded(String::new());
        if std::fmt::write(&mut text, format_args!("{self}")).is_err() {
            text.0.push('…');
        }
        text.0
    }

    /// The status of a REST answer.
    pub fn status(&self) -> StatusCode {
        match self {
            ServeError::Protocol(_) | ServeError::Features(_) | ServeError::NoOutput { .. } => {
                StatusCode::BAD_REQUEST
            }
            ServeError::Body { .. } => StatusCode::BAD_REQUEST,
            ServeError::NoModel { .. } | ServeError::NoVersion { .. } => StatusCode::NOT_FOUND,
            ServeError::Busy { .. } | ServeError::Crowded => StatusCode::TOO_MANY_REQUESTS,
            ServeError::Late { .. } => StatusCode::GATEWAY_TIMEOUT,
            ServeError::NotReady { .. } | ServeError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            ServeError::NoControl | ServeError::Foreign { .. } => StatusCode::FORBIDDEN,
            ServeError::ContentType { .. } | ServeError::Encoding { .. } => {
                StatusCode::UNSUPPORTED_MEDIA_TYPE
            }
            ServeError::SlowClient => StatusCode::REQUEST_TIMEOUT,
            ServeError::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ServeError::HeadersTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ServeError::Unauthorized => StatusCode::UNAUTHORIZED,
            ServeError::Source(_) | ServeError::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The code of a gRPC answer.
    pub fn code(&self) -> Code {
        match self {
            ServeError::Protocol(_)
            | ServeError::Features(_)
            | ServeError::NoOutput { .. }
            | ServeError::ContentType { .. }
            | ServeError::Encoding { .. }
            | ServeError::Body { .. } => Code::InvalidArgument,
            ServeError::NoModel { .. } | ServeError::NoVersion { .. } => Code::NotFound,
            ServeError::Busy { .. }
            | ServeError::Crowded
            | ServeError::BodyTooLarge { .. }
            | ServeError::HeadersTooLarge { .. } => Code::ResourceExhausted,
            ServeError::Late { .. } | ServeError::SlowClient => Code::DeadlineExceeded,
            ServeError::NotReady { .. } | ServeError::ShuttingDown => Code::Unavailable,
            ServeError::NoControl | ServeError::Foreign { .. } => Code::PermissionDenied,
            ServeError::Unauthorized => Code::Unauthenticated,
            ServeError::Source(_) | ServeError::Internal { .. } => Code::Internal,
        }
    }
}
