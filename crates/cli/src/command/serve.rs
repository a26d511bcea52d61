//! `campanile serve`: answers over the network until it is told to end.

#[cfg(feature = "live")]
mod impressions;

use std::{collections::BTreeMap, net::SocketAddr, panic, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use campanile_serve::{Options, RowStorage};
use campanile_server::{
    engine::Engine,
    feature_log::{FeatureLog, Room, Segments, make_own},
    follower::follow_once,
    journal::Journal,
    metrics::{OUTCOMES, STAGES},
    models::Models,
    open_files,
    passage::LoggedRequests,
    places::Patience,
    protocol::Limits,
    queue::QueueLimits,
    security::{Access, Exposed, check_address, check_control, tls, warnings},
    server::{Server, ServerOptions, Told, TraceOptions},
    source::{Checkpoints, Published, Source},
};
use campanile_spec::Precision;
use campanile_tables::Registry;
use serde_json::{Value, json};

use crate::{
    args::{LoggedRequestsName, RowStorageName, ServeArguments, ServedPrecisionName},
    command::write_report,
};

/// Samples that may wait for each request that may.
const QUEUED_SAMPLES_PER_REQUEST: usize = 1024;

/// Runs the command.
pub fn run(arguments: &ServeArguments) -> Result<()> {
    let mut options = server_options(arguments)?;
    let limits = Limits {
        body_bytes_max: arguments.limits.max_body_mb << 20,
        samples_max: arguments.limits.max_samples,
        ..Limits::default()
    };
    let queue = QueueLimits {
        jobs_max: arguments.queue.max(1),
        samples_max: arguments.queue.max(1).saturating_mul(QUEUED_SAMPLES_PER_REQUEST),
        batch_samples_max: arguments.max_batch.max(1),
        wait: Duration::from_micros(arguments.batch_wait_us),
    };
    let mut engine = Engine::new(Models::new(source(arguments)?), feature_log(arguments)?, limits, queue);
    engine.allow_control = arguments.security.allow_repository_control;
    let journal = Journal::new(std::io::stderr());
    let _told = TellPanics::begin(&journal);
    engine.listeners.journal = Some(journal.clone());
    engine.listeners.logged = match arguments.observation.log_requests {
        LoggedRequestsName::None => LoggedRequests::None,
        LoggedRequestsName::Failed => LoggedRequests::Failed,
        LoggedRequestsName::All => LoggedRequests::All,
    };
    let engine = Arc::new(engine);
    leave_open_files(&mut options, &journal);
    warn(arguments, &options, &journal);
    // The first snapshots are there before the first request is.
    follow_once(&engine, &journal);
    let server = Server::start(Arc::clone(&engine), &options, journal.clone())?;
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let grpc = server.grpc.map_or_else(|| "off".to_owned(), |address| address.to_string());
    journal.say("listening", &[("http", &format!("{scheme}://{}/", server.http)), ("grpc", &grpc)]);
    let deaf = "cannot wait for signals";
    if server.wait_for_signal().context(deaf)? == Told::Terminate && arguments.not_ready_seconds > 0 {
        journal.say("not ready", &[("seconds", &arguments.not_ready_seconds.to_string())]);
        server.announce_end(Duration::from_secs(arguments.not_ready_seconds)).context(deaf)?;
    }
    journal.say("draining", &[]);
    let in_order = server.stop();
    journal.say("ended", &[("in_order", if in_order { "true" } else { "false" })]);
    write_report(arguments.report.as_deref(), &report(&engine))
}

/// While it lives, a panic is a line in the log like everything else that happens.
struct TellPanics;

impl TellPanics {
    fn begin(journal: &Journal) -> TellPanics {
        let journal = journal.clone();
        panic::set_hook(Box::new(move |panicked| {
            let place = panicked.location().map(ToString::to_string).unwrap_or_default();
            let problem = panicked.payload_as_str().unwrap_or("it said nothing");
            journal.say("internal error", &[("problem", problem), ("place", &place)]);
        }));
        TellPanics
    }
}

impl Drop for TellPanics {
    fn drop(&mut self) {
        // The hook holds the journal, which writes its last lines when nobody holds it any more.
        if !std::thread::panicking() {
            drop(panic::take_hook());
        }
    }
}

fn server_options(arguments: &ServeArguments) -> Result<ServerOptions> {
    let security = &arguments.security;
    let access = match &security.token_file {
        Some(path) => Access::from_file(path)?,
        None => Access::Everybody,
    };
    let grpc = (!arguments.no_grpc).then_some(arguments.grpc);
    for address in [Some(arguments.http), grpc].into_iter().flatten() {
        check_address(address, &access, security.no_auth)?;
        if security.allow_repository_control {
            check_control(address, &access, security.client_ca.is_some())?;
        }
    }
    let tls = match (&security.tls_cert, &security.tls_key) {
        (Some(certificate), Some(key)) => Some(tls(certificate, key, security.client_ca.as_deref())?),
        _ => None,
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Ok(ServerOptions {
        http: arguments.http,
        grpc,
        tls,
        access,
        scoring_threads: if arguments.threads == 0 { cores } else { arguments.threads },
        network_threads: cores,
        connections_max: arguments.limits.max_connections,
        request_bytes_max: arguments.limits.request_memory_mb.max(1) << 20,
        patience: Patience::default(),
        poll: Duration::from_millis(arguments.poll_ms.max(10)),
        drain_max: Duration::from_secs(arguments.drain_seconds),
        traces: traces(arguments)?,
    })
}

/// Takes no more connections than there are files to open for them.
fn leave_open_files(options: &mut ServerOptions, journal: &Journal) {
    let addresses = 1 + u32::from(options.grpc.is_some());
    let (asked, files) = (options.connections_max, open_files::raise());
    options.connections_max = open_files::connections_max(asked, addresses, files);
    if options.connections_max < asked {
        let (asked, taken) = (asked.to_string(), options.connections_max.to_string());
        let said = [("connections", taken.as_str()), ("asked", &asked), ("open_files", &files.to_string())];
        journal.say("fewer connections, for the system allows few open files (ulimit -n)", &said);
    }
}

/// Says what is allowed and yet worth a word.
fn warn(arguments: &ServeArguments, options: &ServerOptions, journal: &Journal) {
    let security = &arguments.security;
    let addresses: Vec<SocketAddr> = [Some(options.http), options.grpc].into_iter().flatten().collect();
    let secrets: Vec<PathBuf> =
        [&security.token_file, &security.tls_key].into_iter().flatten().cloned().collect();
    let models = arguments.models.iter().map(|model| &model.directory).chain(&arguments.registry);
    let exposed = Exposed {
        addresses: &addresses,
        has_tls: options.tls.is_some(),
        secrets: &secrets,
        logs: &log_directory(arguments).into_iter().collect::<Vec<_>>(),
        models: &models.cloned().collect::<Vec<_>>(),
    };
    for warning in warnings(&options.access, &exposed) {
        journal.say("warning", &[("problem", &warning)]);
    }
}

/// Where requests are noted, if that is a directory.
fn log_directory(arguments: &ServeArguments) -> Option<PathBuf> {
    #[cfg(feature = "live")]
    if let Some(address) = &arguments.log.events.log_features {
        return address.strip_prefix("dir:").map(PathBuf::from);
    }
    arguments.log.feature_log.clone()
}

fn traces(arguments: &ServeArguments) -> Result<Option<TraceOptions>> {
    let share = arguments.observation.trace_sample;
    if !(0.0..=1.0).contains(&share) {
        bail!("--trace-sample {share}: a share is from 0 to 1");
    }
    let collector = arguments.observation.traces.clone().filter(|collector| !collector.is_empty());
    Ok(collector.map(|collector| TraceOptions { collector, share }))
}

fn source(arguments: &ServeArguments) -> Result<Box<dyn Source>> {
    let rows = match arguments.rows {
        RowStorageName::AsTrained => RowStorage::AsTrained,
        RowStorageName::F32 => RowStorage::F32,
        RowStorageName::F16 => RowStorage::F16,
        RowStorageName::Int8 => RowStorage::Int8,
    };
    let precision = match arguments.precision {
        ServedPrecisionName::AsTrained => None,
        ServedPrecisionName::F32 => Some(Precision::F32),
        ServedPrecisionName::Bf16 => Some(Precision::Bf16),
    };
    let options = Options { rows, precision, ..Options::default() };
    if let Some(root) = &arguments.registry {
        if !root.is_dir() {
            bail!("there is no registry {}: `campanile publish` makes one", root.display());
        }
        return Ok(Box::new(Published { registry: Registry::new(root), options }));
    }
    let mut directories = BTreeMap::new();
    for model in &arguments.models {
        if directories.insert(model.name.clone(), model.directory.clone()).is_some() {
            bail!("--model {}: the name is given twice", model.name);
        }
        if !model.directory.is_dir() {
            bail!("--model {}: there is no directory {}", model.name, model.directory.display());
        }
    }
    if directories.is_empty() {
        bail!("nothing to serve: give a registry, or --model NAME=DIR");
    }
    Ok(Box::new(Checkpoints { directories, options }))
}

fn feature_log(arguments: &ServeArguments) -> Result<FeatureLog> {
    let log = &arguments.log;
    if !(0.0..=1.0).contains(&log.log_sample) {
        bail!("--log-sample {}: a share is from 0 to 1", log.log_sample);
    }
    let bytes_max = log.log_max_mb.saturating_mul(1 << 20);
    #[cfg(feature = "live")]
    if let Some(address) = &log.events.log_features {
        let directory = log_directory(arguments);
        if let Some(directory) = &directory {
            make_own(directory)
                .with_context(|| format!("cannot make the directory {}", directory.display()))?;
        }
        let events = crate::stage::open_log(address, &log.events.entry)?;
        let room = directory.map(|directory| Room::new(&directory, bytes_max));
        let impressions = impressions::Impressions::new(events, log.events.log_columns.clone(), room);
        return Ok(FeatureLog::start(Box::new(impressions), log.log_sample)?);
    }
    let Some(directory) = &log.feature_log else { return Ok(FeatureLog::off()) };
    let segments = Segments::new(directory, log.log_segment_mb.max(1) << 20, bytes_max)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    Ok(FeatureLog::start(Box::new(segments), log.log_sample)?)
}

/// What was counted.
fn report(engine: &Engine) -> Value {
    let stage = |stage| {
        let counts = engine.metrics.stage(stage);
        json!({ "p50_us": counts.percentile(0.5), "p99_us": counts.percentile(0.99), "count": counts.count() })
    };
    let log = engine.log.counts();
    json!({
        "command": "serve",
        "requests": OUTCOMES.iter().map(|(outcome, name)| ((*name).to_owned(), engine.metrics.outcome(*outcome).into()))
            .collect::<serde_json::Map<_, _>>(),
        "samples": engine.metrics.samples.load(std::sync::atomic::Ordering::Relaxed),
        "stages": STAGES.iter().map(|(one, name)| ((*name).to_owned(), stage(*one)))
            .collect::<serde_json::Map<_, _>>(),
        "log": { "written": log.written, "dropped": log.dropped },
    })
}
