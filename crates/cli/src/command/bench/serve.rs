//! `campanile bench serve`: a server under open-loop load, beside the bare scorer on the same requests.
//!
//! Requests are sent when they are due, whether or not earlier ones were answered, and a latency counts from the
//! moment at which its request was due. So a server that stalls cannot hide it by slowing its clients down. Every
//! answer is compared, bit by bit, with what the version that it names says offline.

mod bare;
mod latencies;
mod load;
mod target;
mod traffic;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use campanile_server::client::RestRequest;
use campanile_tables::checkpoint;
use campanile_train::resume;
use serde_json::{Value, json};

use self::{
    bare::Bare,
    latencies::Latencies,
    load::{Load, Measured},
    target::Target,
    traffic::Traffic,
};
use crate::{
    args::{ServeBenchArguments, TransportName},
    command::{prep, write_report},
    format, job_file,
};

/// How long one connection asks without a pause.
const WITHOUT_PAUSE_SECONDS: f64 = 3.0;

/// Runs the command.
pub fn run(arguments: &ServeBenchArguments) -> Result<()> {
    if arguments.batch == 0 || arguments.connections == 0 || arguments.requests == 0 {
        bail!("--batch, --connections and --requests must be at least 1");
    }
    let job = job_file::read(&arguments.job)?;
    let directory = arguments.checkpoints.clone().unwrap_or_else(|| resume::directory(&job));
    let checkpoints: Vec<PathBuf> = checkpoint::list(&directory)?.into_iter().map(|(_, path)| path).collect();
    let Some(newest) = checkpoints.last() else {
        bail!("there is no checkpoint in {}: train the job first", directory.display());
    };
    let prepared = prep::prepared(&job, true)?;
    let traffic = Traffic::of(&prepared, arguments)?;
    let mut bare = Bare::new(newest, &traffic)?;
    let hot = bare.without_pause()?;
    let bare_candidates_per_second = 1e6 * arguments.batch as f64 / hot.percentile(0.5).max(1) as f64;
    println!(
        "bare scorer, batch {}, one after the other: p50 {} us, p99 {} us, {} candidates/s on one thread",
        arguments.batch,
        hot.percentile(0.5),
        hot.percentile(0.99),
        format::rate(bare_candidates_per_second)
    );
    let versions: &[PathBuf] =
        if arguments.publish_every > 0.0 { &checkpoints } else { std::slice::from_ref(newest) };
    let traffic = traffic.with_expected(versions)?;
    let bytes = traffic.rest.first().map_or(0, RestRequest::byte_count);
    let hot_socket = bare.behind_a_socket(f64::INFINITY, bytes)?;
    println!(
        "the same behind a bare socket: p50 {} us, p99 {} us",
        hot_socket.percentile(0.5),
        hot_socket.percentile(0.99)
    );
    let target = Target::start(&directory, versions, arguments)?;
    let mut runs = Vec::new();
    for transport in transports(arguments.transport) {
        let load = Load::new(&target, &traffic, transport, arguments);
        load.warm_up()?;
        runs.push(without_pause(&load, (&hot, &hot_socket))?);
        if arguments.saturate {
            runs.push(saturate(&load, arguments)?);
        }
        if arguments.rate > 0.0 {
            let publishing = Duration::from_secs_f64(arguments.publish_every.max(0.0));
            let measured =
                target.publish_while(publishing, || load.run(arguments.rate, arguments.seconds))?;
            print_run(transport, arguments.batch, &measured);
            let until_served = print_until_served(&measured.until_served(&target.publications()));
            let overhead = print_overhead(&mut bare, &traffic, arguments.rate, &measured)?;
            runs.push(measured_json(transport, &measured, &overhead, &until_served));
        }
    }
    let memory = target.memory_growth();
    if let Some((before, after)) = memory {
        println!("memory of the server: {} MiB at first, {} MiB at the end", before >> 20, after >> 20);
    }
    target.stop()?;
    let report = json!({
        "command": "bench serve",
        "batch": arguments.batch,
        "connections": arguments.connections,
        "bare_p50_us": hot.percentile(0.5),
        "bare_p99_us": hot.percentile(0.99),
        "bare_candidates_per_second": bare_candidates_per_second,
        "server_memory_bytes": memory.map(|(before, after)| json!([before, after])),
        "runs": runs,
    });
    write_report(arguments.report.as_deref(), &report)
}

fn transports(name: TransportName) -> Vec<TransportName> {
    match name {
        TransportName::Both => vec![TransportName::Rest, TransportName::Grpc],
        one => vec![one],
    }
}

/// One connection that asks as soon as it is answered, beside the scorer that is called in the same way: what the protocol
/// and the way through the system cost when nobody sleeps.
fn without_pause(load: &Load<'_>, (bare, socket): (&Latencies, &Latencies)) -> Result<Value> {
    let measured = load.on_connections(1).run(f64::INFINITY, WITHOUT_PAUSE_SECONDS)?;
    let (all, problem) = (measured.all(), measured.problems.first());
    if let Some(problem) = problem {
        bail!("the server does not answer as it should: {problem}");
    }
    let p50 = |latencies: &Latencies| latencies.percentile(0.5) as i64;
    println!(
        "{:?}, one request after the other: p50 {} us, {} us over the bare scorer and {} us over the bare socket; p99 {} us",
        load.transport(),
        p50(&all),
        p50(&all) - p50(bare),
        p50(&all) - p50(socket),
        all.percentile(0.99)
    );
    // The server compares its counters once a second.
    std::thread::sleep(Duration::from_millis(1100));
    let stages: Vec<String> = load.stages()?.iter().map(|(stage, us)| format!("{stage} {us} us")).collect();
    println!("  medians inside the server, to 3 %: {}", stages.join(", "));
    Ok(json!({
        "transport": format!("{:?}", load.transport()).to_lowercase(),
        "without_pause_p50_us": all.percentile(0.5),
        "without_pause_p99_us": all.percentile(0.99),
        "without_pause_overhead_p50_us": p50(&all) - p50(bare),
        "without_pause_over_socket_p50_us": p50(&all) - p50(socket),
    }))
}

/// The highest rate at which the 99th percentile stays within the limit, to about 5 %.
fn saturate(load: &Load<'_>, arguments: &ServeBenchArguments) -> Result<Value> {
    let limit_us = (arguments.p99_ms * 1000.0) as u64;
    let seconds = (arguments.seconds / 4.0).max(1.0);
    // As fast as all connections together can: what the server can do at best.
    let closed = load.run(f64::INFINITY, seconds)?;
    let (mut fits, mut fails) = (0.0, closed.answered_per_second());
    println!(
        "{:?}: {} requests/s, {} candidates/s when every connection asks without a pause",
        load.transport(),
        format::rate(fails),
        format::rate(fails * arguments.batch as f64)
    );
    let mut best: Option<Measured> = None;
    while fails - fits > 0.05 * fails {
        let rate = if best.is_none() { 0.7 * fails } else { 0.5 * (fits + fails) };
        let measured = load.run(rate, seconds)?;
        let p99 = measured.all().percentile(0.99);
        let holds = p99 <= limit_us && measured.refused == 0 && measured.answered_per_second() > 0.97 * rate;
        println!(
            "  {} requests/s: p99 {p99} us{}",
            format::rate(rate),
            if holds { "" } else { ", too much" }
        );
        if holds {
            (fits, best) = (rate, Some(measured));
        } else {
            fails = rate;
        }
        if fails < 1.0 {
            break;
        }
    }
    println!(
        "  saturation: {} requests/s, {} candidates/s with p99 within {} ms",
        format::rate(fits),
        format::rate(fits * arguments.batch as f64),
        arguments.p99_ms
    );
    Ok(json!({
        "transport": format!("{:?}", load.transport()).to_lowercase(),
        "closed_loop_requests_per_second": closed.answered_per_second(),
        "saturation_requests_per_second": fits,
        "saturation_candidates_per_second": fits * arguments.batch as f64,
        "p99_limit_ms": arguments.p99_ms,
    }))
}

fn print_run(transport: TransportName, batch: usize, measured: &Measured) {
    let all = measured.all();
    let us = |share| all.percentile(share);
    println!(
        "{transport:?}: {} requests in {:.1} s, {} candidates/s; {} refused, {} failed, {} not the version's own",
        measured.answered,
        measured.seconds,
        format::rate(measured.answered_per_second() * batch as f64),
        measured.refused,
        measured.failed,
        measured.mixed
    );
    println!(
        "  latency from the moment due: p50 {} us, p90 {} us, p99 {} us, p99.9 {} us",
        us(0.5),
        us(0.9),
        us(0.99),
        us(0.999)
    );
    if measured.versions.len() > 1 {
        println!(
            "  {} versions answered; p99 {} us steady, {} us within a second of a new version: {:.2} times as long",
            measured.versions.len(),
            measured.steady.percentile(0.99),
            measured.swapping.percentile(0.99),
            measured.swap_ratio()
        );
    }
    for problem in &measured.problems {
        println!("  {problem}");
    }
}

/// Prints how the median compares with the bare scorer's, asked at the same moments, in this process and behind a socket.
fn print_overhead(bare: &mut Bare, traffic: &Traffic, rate: f64, measured: &Measured) -> Result<Value> {
    let p50 = measured.all().percentile(0.5);
    let due = bare.when_due(rate)?.percentile(0.5);
    let bytes = traffic.rest.first().map_or(0, RestRequest::byte_count);
    let socket = bare.behind_a_socket(rate, bytes)?.percentile(0.5);
    println!(
        "  p50 is {} us over the bare scorer asked at the same moments ({due} us), {} us over the same behind a bare \
         socket ({socket} us)",
        p50 as i64 - due as i64,
        p50 as i64 - socket as i64
    );
    Ok(json!({
        "bare_when_due_p50_us": due,
        "bare_behind_a_socket_p50_us": socket,
        "overhead_p50_us": p50 as i64 - due as i64,
    }))
}

/// Prints how long after its publication a version first answered: a swap that is put off would not show in latencies.
fn print_until_served(seconds: &[f64]) -> Value {
    let Some(longest) = seconds.last() else { return Value::Null };
    let middle = seconds[seconds.len() / 2];
    println!("  new versions answered {middle:.2} s after they were published, at most {longest:.2} s");
    json!({ "median": middle, "longest": longest })
}

fn measured_json(transport: TransportName, measured: &Measured, more: &Value, until_served: &Value) -> Value {
    let all = measured.all();
    json!({
        "transport": format!("{transport:?}").to_lowercase(),
        "requests": measured.answered,
        "requests_per_second": measured.answered_per_second(),
        "refused": measured.refused,
        "failed": measured.failed,
        "mixed": measured.mixed,
        "versions": measured.versions.keys().collect::<Vec<_>>(),
        "seconds_until_served": until_served,
        "p50_us": all.percentile(0.5),
        "p90_us": all.percentile(0.9),
        "p99_us": all.percentile(0.99),
        "p999_us": all.percentile(0.999),
        "steady_p99_us": measured.steady.percentile(0.99),
        "swapping_p99_us": measured.swapping.percentile(0.99),
        "swapping_over_steady_p99": (measured.versions.len() > 1).then(|| measured.swap_ratio()),
        "more": more,
    })
}

/// Waits for a moment: sleeps most of the time, then watches the clock, because a sleep ends late.
fn wait_until(due: Instant) {
    const WATCHED: Duration = Duration::from_micros(120);
    let left = due.saturating_duration_since(Instant::now());
    if left > WATCHED {
        std::thread::sleep(left - WATCHED);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}
