//! From a client's request to its scores: what REST and gRPC share.
//!
//! ```text
//!   tensors ──features──► Request ──queue──► scoring thread ──► scores, and the version that made them
//!      │                                                           │
//!      └────────────────── feature log (a copy, never waited for) ◄┘
//! ```
//!
//! The snapshot is taken once, when a request is read. Jobs of one snapshot may share a call; what is in the call
//! cannot be seen in a score.

mod aside;
mod here;
mod threads;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use campanile_serve::Request;
use tokio::sync::{Notify, oneshot};

use crate::{
    background, clock,
    dashboard::History,
    error::ServeError,
    feature_log::{FeatureLog, Record},
    features,
    follower::Following,
    metrics::{Metrics, Stage},
    models::{Loaded, Models},
    passage::{Listeners, Passage},
    protocol::{InferRequest, Limits, Tensor},
    queue::{Job, Queue, QueueLimits, Refused},
};

pub use threads::ScoringThreads;

/// Requests that are kept for their memory.
const SPARE_REQUESTS_MAX: usize = 64;

/// Bytes of memory of a request that is kept; larger ones are rare, and so many of them would be held for ever.
const SPARE_BYTES_MAX: usize = 256 << 10;

/// Bytes that a value takes while it is read: as a number or text on its way, and as a row with what belongs to it.
const READING_BYTES_PER_ELEMENT: u64 = 48;

/// Bytes of a score in an answer, as text or bytes, and on its way there.
const ANSWER_BYTES_PER_SCORE: u64 = 32;

/// What is the same for all connections.
#[derive(Debug)]
pub struct Engine {
    /// The models in service.
    pub models: Models,
    /// What is counted.
    pub metrics: Metrics,
    /// Where scored requests are noted.
    pub log: FeatureLog,
    /// What a client may send.
    pub limits: Limits,
    /// Whether clients may load and unload models.
    pub allow_control: bool,
    /// Who is told of requests.
    pub listeners: Listeners,
    /// The last minute, for the page.
    pub history: History,
    /// How following the source goes.
    pub following: Following,
    queue: Queue<ScoreJob>,
    desks: here::Desks,
    spare: Mutex<Vec<Request>>,
    leaving: AtomicBool,
    draining: AtomicBool,
    under_way: AtomicUsize,
    answered: Notify,
    /// Threads of the network at long work.
    aside: AtomicUsize,
    started_us: u64,
    numbered: AtomicU64,
}

/// A request on its way to a scoring thread.
#[derive(Debug)]
pub struct ScoreJob {
    loaded: Arc<Loaded>,
    request: Request,
    deadline: Option<Instant>,
    pushed: Instant,
    answer: oneshot::Sender<Option<Part>>,
}

/// The scores of one request out of a batch.
#[derive(Debug)]
struct Part {
    request: Request,
    logits: Vec<f32>,
    probabilities: Vec<f32>,
    queue_us: u64,
    score_us: u64,
}

/// Scores, and who made them.
#[derive(Debug)]
pub struct Scored {
    /// The snapshot that scored, the only one.
    pub loaded: Arc<Loaded>,
    /// The client's name for the request, or ours.
    pub id: String,
    /// For each task its probabilities, then its logits; wanted ones only.
    pub outputs: Vec<Output>,
}

/// One output tensor.
#[derive(Debug)]
pub struct Output {
    /// The task, and 0 for probabilities or 1 for logits: a place in [`Loaded::outputs`].
    pub place: (usize, usize),
    /// One value a sample.
    pub values: Vec<f32>,
    /// Whether it travels as bytes where there is a choice.
    pub binary: bool,
}

/// A request that the server will not end before.
struct UnderWay<'a>(&'a Engine);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.answered.notify_waiters();
        }
    }
}

impl Job for ScoreJob {
    fn samples(&self) -> usize {
        self.request.sample_count()
    }

    fn key(&self) -> usize {
        Arc::as_ptr(&self.loaded).addr()
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn is_abandoned(&self) -> bool {
        self.answer.is_closed()
    }
}

impl Engine {
    /// An engine without scoring threads yet; see [`ScoringThreads::start`].
    pub fn new(models: Models, log: FeatureLog, limits: Limits, queue: QueueLimits) -> Engine {
        Engine {
            models,
            metrics: Metrics::default(),
            log,
            limits,
            allow_control: false,
            listeners: Listeners::default(),
            history: History::default(),
            following: Following::default(),
            queue: Queue::new(queue),
            desks: here::Desks::default(),
            spare: Mutex::default(),
            leaving: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            answered: Notify::new(),
            aside: AtomicUsize::new(0),
            started_us: clock::unix_us(),
            numbered: AtomicU64::new(0),
        }
    }

    /// Scores a request and notes on its way what it passed.
    ///
    /// # Errors
    /// With what to tell the client.
    pub async fn infer(
        &self,
        target: (&str, &str),
        request: InferRequest,
        passage: &mut Passage,
    ) -> Result<Scored, ServeError> {
        let id = request.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(|| self.new_id());
        passage.id.clone_from(&id);
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _under_way = UnderWay(self);
        if self.is_draining() {
            return Err(ServeError::ShuttingDown);
        }
        let loaded = self.models.served(target.0, target.1)?;
        passage.version.clone_from(&loaded.version);
        check_outputs(&loaded, &request)?;
        let prepared = self.prepared(&loaded, &request, passage)?;
        passage.samples = prepared.sample_count();
        self.metrics.unknown_ids.fetch_add(prepared.unknown_ids(), Ordering::Relaxed);
        passage.took(Stage::Read, clock::us_between(passage.started, clock::now()));
        let timeout_us = request.timeout_us;
        let deadline = (timeout_us > 0).then(|| passage.started + Duration::from_micros(timeout_us));
        let part = self.scored(prepared, Arc::clone(&loaded), deadline, timeout_us).await?;
        passage.took(Stage::Queue, part.queue_us);
        passage.took(Stage::Score, part.score_us);
        if deadline.is_some_and(|deadline| deadline <= clock::now()) {
            self.keep(part.request);
            return Err(ServeError::Late { timeout_us });
        }
        let outputs = outputs(&loaded, &request, &part);
        self.note(&loaded, &id, request, &part);
        self.keep(part.request);
        Ok(Scored { loaded, id, outputs })
    }

    /// The request as it is scored, with its memory counted: while it is read, and then as it waits and is answered.
    fn prepared(
        &self,
        loaded: &Loaded,
        request: &InferRequest,
        passage: &Passage,
    ) -> Result<Request, ServeError> {
        let elements = request.inputs.iter().map(Tensor::element_count).max().unwrap_or(0);
        let reading = READING_BYTES_PER_ELEMENT.saturating_mul(elements as u64);
        passage.grow(reading)?;
        let mut prepared = self.spare_request();
        let filled = self.aside(8 * elements, || {
            features::fill(&mut prepared, &loaded.snapshot, &request.inputs, &self.limits)
        });
        if let Err(error) = filled {
            self.keep(prepared);
            return Err(error.into());
        }
        passage.shrink(reading);
        let scores = 2 * prepared.sample_count() * loaded.outputs.len();
        let answer = ANSWER_BYTES_PER_SCORE.saturating_mul(scores as u64);
        match passage.grow(prepared.memory_bytes() as u64 + answer) {
            Ok(()) => Ok(prepared),
            Err(error) => {
                self.keep(prepared);
                Err(error)
            }
        }
    }

    /// Tells of the end of a request.
    pub fn ended<T>(&self, passage: Passage, result: &Result<T, ServeError>) {
        self.listeners.tell(&self.metrics, passage, result.as_ref().err());
    }

    /// Changes what is in service because a client asked, on a thread that may wait and gives way to requests.
    ///
    /// # Errors
    /// When clients may not, or the change fails.
    pub async fn change(
        self: &Arc<Engine>,
        change: impl FnOnce(&Models) -> Result<(), ServeError> + Send + 'static,
    ) -> Result<(), ServeError> {
        if !self.allow_control {
            return Err(ServeError::NoControl);
        }
        let engine = Arc::clone(self);
        let failed = |problem: String| ServeError::Internal { problem };
        // The runtime has as many threads that may wait as it allows; a thread cannot get its priority back, so each of
        // them starts one for the change.
        let changed = tokio::task::spawn_blocking(move || {
            let thread = background::spawn("load", move || change(&engine.models));
            let ended = thread.map_err(|error| failed(error.to_string()))?.join();
            ended.unwrap_or_else(|_| Err(failed("the thread that loads failed".to_owned())))
        });
        changed.await.unwrap_or_else(|error| Err(failed(error.to_string())))
    }

    /// Whether requests are welcome: a model answers, newer versions are looked for, and the server is not going away. A
    /// model that cannot be served says so for itself, and does not keep the others from answering.
    pub fn is_ready(&self) -> bool {
        let goes_away = self.leaving.load(Ordering::Relaxed) || self.is_draining();
        let answers = || self.models.all().iter().any(|model| model.loaded().is_some());
        !goes_away && self.following.goes_on() && answers()
    }

    /// Whether new requests are turned away.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Is no longer ready, and answers on.
    pub fn announce_end(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Turns new requests away; those that wait are still answered.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Ends when no request is under way any more.
    pub async fn all_answered(&self) {
        loop {
            let answered = self.answered.notified();
            if self.under_way.load(Ordering::SeqCst) == 0 {
                return;
            }
            answered.await;
        }
    }

    /// When it was made, in microseconds since 1970.
    pub fn started_us(&self) -> u64 {
        self.started_us
    }

    /// Requests and samples that wait.
    pub fn waiting(&self) -> (usize, usize) {
        self.queue.waiting()
    }

    /// A name for a request that came without.
    fn new_id(&self) -> String {
        format!("{:x}-{:x}", self.started_us, self.numbered.fetch_add(1, Ordering::Relaxed))
    }

    async fn scored(
        &self,
        request: Request,
        loaded: Arc<Loaded>,
        deadline: Option<Instant>,
        timeout_us: u64,
    ) -> Result<Part, ServeError> {
        if deadline.is_some_and(|deadline| deadline <= clock::now()) {
            self.keep(request);
            return Err(ServeError::Late { timeout_us });
        }
        let request = match self.score_here(&loaded, request) {
            Ok(Some(part)) => return Ok(part),
            Ok(None) => return Err(ServeError::Internal { problem: "scoring failed".to_owned() }),
            Err(request) => request,
        };
        let (answer, answered) = oneshot::channel();
        let job = ScoreJob { loaded, request, deadline, pushed: clock::now(), answer };
        if let Err((job, refused)) = self.queue.push(job) {
            self.keep(job.request);
            return Err(match refused {
                Refused::Full => ServeError::Busy { waiting: self.waiting().0 },
                Refused::Closed => ServeError::ShuttingDown,
            });
        }
        let answered = match deadline {
            Some(deadline) => match tokio::time::timeout_at(deadline.into(), answered).await {
                Ok(answered) => answered,
                Err(_) => return Err(ServeError::Late { timeout_us }),
            },
            None => answered.await,
        };
        match answered {
            Ok(Some(part)) => Ok(part),
            Ok(None) => Err(ServeError::Late { timeout_us }),
            Err(_) => Err(ServeError::Internal { problem: "its scoring thread failed".to_owned() }),
        }
    }

    /// Puts a scored request into the feature log, if it is among those to be noted.
    fn note(&self, loaded: &Loaded, id: &str, request: InferRequest, part: &Part) {
        for (task, tally) in loaded.tallies.iter().enumerate() {
            tally.add(part.probabilities.iter().skip(task).step_by(loaded.tallies.len()).copied());
        }
        self.metrics.samples.fetch_add(part.request.sample_count() as u64, Ordering::Relaxed);
        if self.log.wants(id) {
            self.log.offer(Record {
                time_us: clock::unix_us(),
                id: id.to_owned(),
                model: loaded.snapshot.version().model.clone(),
                version: loaded.snapshot.version().number,
                task_count: loaded.tallies.len() as u32,
                probabilities: part.probabilities.clone(),
                inputs: request.inputs.into_iter().map(Tensor::detached).collect(),
                columns: Arc::clone(&loaded.columns),
            });
        }
    }

    fn spare_request(&self) -> Request {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Bytes of memory that are kept for requests to come.
    pub fn spare_bytes(&self) -> usize {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.iter().map(Request::memory_bytes).sum()
    }

    /// Keeps a request for its memory, unless that is too much to hold for ever.
    pub fn keep(&self, request: Request) {
        if request.memory_bytes() > SPARE_BYTES_MAX {
            return;
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_REQUESTS_MAX {
            spare.push(request);
        }
    }
}

/// Refuses outputs that the model does not have, before anything is computed.
fn check_outputs(loaded: &Loaded, request: &InferRequest) -> Result<(), ServeError> {
    let known = || loaded.outputs.iter().flatten();
    match request.outputs.iter().find(|wanted| !known().any(|name| *name == wanted.name)) {
        None => Ok(()),
        Some(wanted) => Err(ServeError::NoOutput {
            model: loaded.snapshot.version().model.clone(),
            output: wanted.name.chars().take(100).collect(),
            known: known().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The wanted outputs, each task's values one after the other.
fn outputs(loaded: &Loaded, request: &InferRequest, part: &Part) -> Vec<Output> {
    let task_count = loaded.outputs.len();
    let mut outputs = Vec::with_capacity(2 * task_count);
    for (task, names) in loaded.outputs.iter().enumerate() {
        for (kind, (name, all)) in names.iter().zip([&part.probabilities, &part.logits]).enumerate() {
            if let Some(binary) = request.wants(name) {
                let values = all.iter().skip(task).step_by(task_count).copied().collect();
                outputs.push(Output { place: (task, kind), values, binary });
            }
        }
    }
    outputs
}
