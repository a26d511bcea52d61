//! `campanile bench topology`: measures what a plan is priced with, and writes it as a file that people can edit.

use anyhow::{Context, Result, bail};
use campanile_kernels::Isa;
use campanile_spec::{Bytes, topology::Topology};
use campanile_train::TrainError;
use serde_json::json;

use crate::{
    args::planning::TopologyBenchArguments,
    command::write_report,
    format,
    measure::{self, Settings},
    place::Place,
};

/// Runs the command.
pub fn run(arguments: &TopologyBenchArguments, place: &Place) -> Result<()> {
    if arguments.ranks.is_some() && place.processes().is_some() {
        bail!("--ranks is for ranks as threads, and here each process is one; leave it out");
    }
    if arguments.rounds == 0 || arguments.ranks == Some(0) {
        bail!("--rounds and --ranks must be at least 1");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let ranks = place.ranks_or_threads(arguments.ranks.unwrap_or(cores));
    let topology = ranks.run(|comm, _| -> Result<_, TrainError> {
        let shape = measure::shape(comm)?;
        let mut readings = Vec::new();
        for round in 1..=arguments.rounds {
            readings.push(measure::reading(comm, Settings::default())?);
            if comm.rank() == 0 && !arguments.quiet {
                eprintln!("round {round} of {}", arguments.rounds);
            }
        }
        Ok(Some(measure::topology(shape, &readings)))
    })?;
    let Some(topology) = topology.filter(|_| place.is_first()) else { return Ok(()) };
    let noun = place.rank_noun(topology.rank_count());
    let text = file_text(&topology, noun, arguments.rounds);
    match &arguments.out {
        Some(path) => {
            std::fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
            if !arguments.quiet {
                print!("{}", summary(&topology, noun));
                println!("written to {}", path.display());
                println!("next: campanile plan JOB --topology {}", path.display());
            }
        }
        None => print!("{text}"),
    }
    write_report(
        arguments.report.as_deref(),
        &json!({ "command": "bench topology", "level": format!("{:?}", Isa::detect().level()), "topology": text }),
    )
}

/// The file, with a line on where the numbers come from.
fn file_text(topology: &Topology, noun: &str, rounds: usize) -> String {
    format!(
        "# Measured by `campanile bench topology` on {} ({} as {noun}, {:?}, median of {rounds}).\n# Change what you \
         like: twice the hosts, less memory, a faster link. docs/planning.md explains the keys.\n{}",
        campanile_comm::host_name(),
        match topology.rank_count() {
            1 => "one rank".to_owned(),
            count => format!("{count} ranks"),
        },
        Isa::detect().level(),
        topology.to_toml()
    )
}

/// The figures that tell most, for the terminal.
fn summary(topology: &Topology, noun: &str) -> String {
    let compute = &topology.compute;
    let mut out = format!(
        "{} {} of {} {noun}, {} a rank\n",
        topology.hosts,
        if topology.hosts == 1 { "host" } else { "hosts" },
        topology.ranks_per_host,
        Bytes(topology.memory_bytes_per_rank()),
    );
    out += &format!(
        "one of them copies {}B/s, and has {:.2} processors when all take what they can\n",
        format::rate(compute.copy_bytes_per_second),
        compute.processors_per_rank
    );
    out += &format!(
        "reading takes {:.1} ns for a column of a sample and {:.1} ns for an id\n",
        compute.read_column_ns, compute.read_id_ns
    );
    out += "\n  floats   pool near       far     merge   update near       far    (ns)\n";
    for row in &compute.row {
        out += &format!(
            "  {:>6}  {:>10.1}{:>10.1}{:>10.1}{:>14.1}{:>10.1}\n",
            row.floats,
            row.pool_near_ns,
            row.pool_far_ns,
            row.merge_ns,
            row.update_near_ns,
            row.update_far_ns
        );
    }
    out += "\n  layers         f32      bf16      dots   to 64    (Gflop/s)\n";
    for product in &compute.product {
        out += &format!(
            "  {:>6}  {:>10.1}{:>10.1}{:>10.1}{:>8.1}\n",
            product.width,
            product.f32_flops_per_second / 1e9,
            product.bf16_flops_per_second / 1e9,
            product.dots_flops_per_second / 1e9,
            product.narrow_flops_per_second / 1e9
        );
    }
    out.push('\n');
    for codec in &compute.codec {
        out += &format!(
            "a float takes {:.2} ns to encode as {:?} and {:.2} ns to decode\n",
            codec.encode_ns, codec.format, codec.decode_ns
        );
    }
    out.push('\n');
    let links = [("inside a host", Some(topology.in_host)), ("between hosts", topology.cross_host)];
    for (name, link) in links.into_iter().filter_map(|(name, link)| Some((name, link?))) {
        out += &format!(
            "an exchange {name} takes {:.1} us and {}B/s a rank; {:.0} % of it hides behind computing, and a message more \
             takes {:.1} us\n",
            link.latency_seconds * 1e6,
            format::rate(link.bytes_per_second),
            100.0 * link.hidden_share,
            link.message_seconds * 1e6
        );
    }
    out
}
