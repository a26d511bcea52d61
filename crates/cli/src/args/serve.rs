//! What a user can type after `campanile serve`.

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};

/// `campanile serve`.
///
/// Answers the Open Inference Protocol (KServe v2) over REST and gRPC, follows newer snapshots without dropping or
/// mixing an answer, and shows its health at http://127.0.0.1:8080/. See docs/serving-api.md.
///
///   campanile train examples/first.toml
///   campanile publish examples/first.toml --registry registry --model first
///   campanile serve registry
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct ServeArguments {
    /// The registry, whose models are all served in their current versions; see `campanile publish`.
    pub registry: Option<PathBuf>,
    /// Without a registry, a model by name: a checkpoint, or a directory of checkpoints, whose newest one is followed. May be repeated.
    #[arg(long = "model", value_name = "NAME=DIR", conflicts_with = "registry")]
    pub models: Vec<NamedDirectory>,
    /// Where REST, the metrics and the page answer.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub http: SocketAddr,
    /// Where gRPC answers.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub grpc: SocketAddr,
    /// Do not answer gRPC.
    #[arg(long)]
    pub no_grpc: bool,
    /// Threads that score; 0 means one per core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// How rows are held in memory.
    #[arg(long, value_enum, default_value = "as-trained")]
    pub rows: RowStorageName,
    /// The arithmetic of the dense network.
    #[arg(long, value_enum, default_value = "as-trained")]
    pub precision: ServedPrecisionName,
    /// Samples that are scored in one call, at most, when several requests wait.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_batch: usize,
    /// How long an idle thread waits for more requests before it scores, in microseconds. 0 scores at once; batches
    /// form by themselves under load.
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub batch_wait_us: u64,
    /// Requests that may wait; more are answered with 429 or RESOURCE_EXHAUSTED at once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub queue: usize,
    /// How often to look for a newer snapshot, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub poll_ms: u64,
    /// How long requests under way may take when the server is told to end, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub drain_seconds: u64,
    /// After SIGTERM, how long requests are still answered while health already says not ready, so that balancers send
    /// them elsewhere, in seconds. Ctrl-C, or a second signal, does not wait.
    #[arg(long, value_name = "S", default_value_t = 5)]
    pub not_ready_seconds: u64,
    #[command(flatten)]
    pub security: SecurityArguments,
    #[command(flatten)]
    pub log: LogArguments,
    #[command(flatten)]
    pub observation: ObservationArguments,
    #[command(flatten)]
    pub limits: LimitArguments,
    /// Write what was counted as JSON when the server ends.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Who may ask.
#[derive(Debug, Args)]
#[command(next_help_heading = "Security")]
pub struct SecurityArguments {
    /// Bearer tokens, one a line; a request needs one of them. The file is read again when it changes.
    #[arg(long, value_name = "FILE", conflicts_with = "no_auth")]
    pub token_file: Option<PathBuf>,
    /// Everybody who can connect may ask, even on an address that other machines can reach.
    #[arg(long)]
    pub no_auth: bool,
    /// The server's certificate, in PEM form; then both addresses speak TLS only.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Clients must show a certificate that one of these signed (mutual TLS).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,
    /// Let clients load and unload models; on an address that others can reach, only with --token-file or --client-ca.
    #[arg(long)]
    pub allow_repository_control: bool,
}

/// What is noted for training.
#[derive(Debug, Args)]
#[command(next_help_heading = "Feature log")]
pub struct LogArguments {
    /// Note scored requests (id, time, version, features, scores) in this directory. Never delays an answer.
    #[arg(long, value_name = "DIR")]
    pub feature_log: Option<PathBuf>,
    /// The share of requests that is noted, chosen by their id.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub log_sample: f64,
    /// A new file begins after so many megabytes.
    #[arg(long, value_name = "MB", default_value_t = 64)]
    pub log_segment_mb: u64,
    /// Megabytes of a log's directory; what is beyond them is not noted, counted, and said. A broker has limits of its own.
    #[arg(long, value_name = "MB", default_value_t = 65536)]
    pub log_max_mb: u64,
    /// An event log in place of the directory.
    #[cfg(feature = "live")]
    #[command(flatten)]
    pub events: EventLogArguments,
}

/// The feature log as a topic of an event log.
#[cfg(feature = "live")]
#[derive(Debug, Args)]
#[command(next_help_heading = "Feature log")]
pub struct EventLogArguments {
    /// Write every scored sample to the topic `impressions` of this event log (dir:PATH or nats://HOST:PORT/PREFIX), from
    /// where `campanile join` takes it. Never delays an answer. See docs/live.md.
    #[arg(long, value_name = "LOG", conflicts_with = "feature_log")]
    pub log_features: Option<String>,
    /// A column that the model does not read and impressions are to have: what clients send as `log.NAME`. May be
    /// repeated; what clients send beside them is not noted.
    #[arg(long = "log-column", value_name = "NAME", requires = "log_features")]
    pub log_columns: Vec<String>,
    /// How to get into a NATS server.
    #[command(flatten)]
    pub entry: super::live::EntryArguments,
}

/// What is said about requests.
#[derive(Debug, Args)]
#[command(next_help_heading = "Observation")]
pub struct ObservationArguments {
    /// Requests that get a line of JSON on standard error, with their id and how long each stage took.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "failed")]
    pub log_requests: LoggedRequestsName,
    /// Send OpenTelemetry traces to this OTLP collector (gRPC), such as http://127.0.0.1:4317.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub traces: Option<String>,
    /// The share of requests that is traced, whatever a caller's `traceparent` says.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub trace_sample: f64,
}

/// Requests that get a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoggedRequestsName {
    /// None.
    None,
    /// Those that got no scores, at most a hundred a second.
    Failed,
    /// All.
    All,
}

/// What a client may send.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArguments {
    /// Megabytes of a request.
    #[arg(long, value_name = "MB", default_value_t = 16)]
    pub max_body_mb: usize,
    /// Samples of a request.
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub max_samples: usize,
    /// Connections that may be open on each address. When all are, a newcomer gets the place of one that asks nothing.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_connections: u32,
    /// Megabytes that all requests together may take: their bodies, what they expand to, and their answers. One connection
    /// may have no more than what is left for all others.
    #[arg(long, value_name = "MB", default_value_t = 512)]
    pub request_memory_mb: u64,
}

/// How rows are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RowStorageName {
    /// In the format they were trained in.
    AsTrained,
    /// In 32-bit floats.
    F32,
    /// In IEEE half precision.
    F16,
    /// In one byte an element, with a step and a least value for each row.
    Int8,
}

/// The arithmetic of the dense network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServedPrecisionName {
    /// That of the training: scores have the bits of the evaluation.
    AsTrained,
    /// 32-bit floats.
    F32,
    /// Operands of matrix products in bfloat16.
    Bf16,
}

/// A name and a directory, `NAME=DIR`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedDirectory {
    /// The model's name.
    pub name: String,
    /// Where it is.
    pub directory: PathBuf,
}

impl FromStr for NamedDirectory {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedDirectory, String> {
        match text.split_once('=') {
            Some((name, directory)) if is_name(name) && !directory.is_empty() => {
                Ok(NamedDirectory { name: name.to_owned(), directory: directory.into() })
            }
            _ => Err("write NAME=DIR; a name has letters, digits, `_`, `-` and `.`".to_owned()),
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// `campanile bench serve`.
///
/// Starts a server for the job's newest checkpoint and loads it with requests made of the job's own data, at a given
/// rate whether or not earlier ones were answered; latencies count from the moment at which a request was due. Every
/// answer is compared with the offline scores of the version that it names.
#[derive(Debug, Args)]
pub struct ServeBenchArguments {
    /// The job file; it must have been trained.
    pub job: PathBuf,
    /// A directory of checkpoints, instead of the job's own.
    #[arg(long, value_name = "DIR")]
    pub checkpoints: Option<PathBuf>,
    /// How to ask.
    #[arg(long, value_enum, default_value = "both")]
    pub transport: TransportName,
    /// Candidates of a request.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub batch: usize,
    /// Requests a second; `inf` asks without a pause, 0 leaves this measurement out.
    #[arg(long, value_name = "RATE", default_value_t = 200.0)]
    pub rate: f64,
    /// How long, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Connections that are open at the same time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub connections: usize,
    /// Different requests, sent in turn.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub requests: usize,
    /// Scoring threads of the server; 0 means one per core.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Samples that the server scores in one call, at most.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_batch: usize,
    /// Find the highest rate at which the 99th percentile stays within --p99-ms.
    #[arg(long)]
    pub saturate: bool,
    /// The limit for --saturate.
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    pub p99_ms: f64,
    /// Publish the job's next checkpoint every so many seconds meanwhile, beginning with the oldest.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub publish_every: f64,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// How to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportName {
    /// HTTP with binary tensors.
    Rest,
    /// gRPC.
    Grpc,
    /// One after the other.
    Both,
}
