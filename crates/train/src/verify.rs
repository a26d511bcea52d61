//! The proof of the contract on a user's own job: the same steps in many ways, and everything that must be equal.
//!
//! A *way* is a number of ranks, a placement of the tables, a pipeline or none, whole or interrupted and resumed.
//! Ways of one group must agree in every bit; groups differ in what changes results by design (a codec on the wire).
//! Each way trains into a directory of its own and leaves a checkpoint; its files' checksums do not depend on the
//! plan, so two ways are compared by comparing those, and only where they differ are the bytes looked at.

mod difference;

use std::path::{Path, PathBuf};

use campanile_data::Prepared;
use campanile_spec::{
    ModelSpec, Placement, Plan, Returns, Seating,
    config::{ExchangeFormat, Job, Pipeline, WireFormat},
};
use campanile_tables::checkpoint::{self, Checkpoint};
use serde_json::Value;

use crate::{
    TrainError,
    observe::{Event, Observer},
    ranks::Ranks,
    run::{plan_for, train_by},
};

pub use difference::first_difference;

/// Where tables live in a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// Whole, balanced over the ranks.
    Whole,
    /// Whole, but rows travel instead of pooled vectors.
    WholeLent,
    /// Every table by rows over all ranks.
    Rows,
    /// Every table by columns over all ranks, as far as it is wide enough.
    Columns,
    /// Columns over two groups of ranks, rows inside each.
    Grid,
    /// A copy on every rank.
    Replicated,
    /// Whole, with the ways of the job's towers, if it has any.
    Towers,
}

impl Tables {
    /// All, in the order in which they are tried.
    pub const ALL: [Tables; 7] = [
        Tables::Whole,
        Tables::Towers,
        Tables::WholeLent,
        Tables::Rows,
        Tables::Columns,
        Tables::Grid,
        Tables::Replicated,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Tables::Whole => "whole tables",
            Tables::WholeLent => "whole tables, rows lent",
            Tables::Rows => "by rows",
            Tables::Columns => "by columns",
            Tables::Grid => "grid",
            Tables::Replicated => "replicated",
            Tables::Towers => "towers",
        }
    }

    /// The plan for a model.
    pub fn plan(self, model: &ModelSpec, ranks: usize) -> Plan {
        let all: Vec<usize> = (0..ranks).collect();
        let half = ranks.div_ceil(2);
        let balanced = Plan::balanced(model, ranks);
        if self == Tables::Towers {
            return plan_for(model, ranks);
        }
        let place = |(table, whole): (&campanile_spec::TableSpec, &Placement)| match self {
            Tables::Whole | Tables::Towers => whole.clone(),
            Tables::WholeLent => whole.clone().returning(Returns::Rows),
            Tables::Rows => Placement::by_rows(table, &all),
            Tables::Columns => Placement::by_columns(table, &all),
            Tables::Grid => Placement::grid(table, &[all[..half].to_vec(), all[ranks - half..].to_vec()]),
            Tables::Replicated => Placement::replicated(table, ranks),
        };
        Plan {
            rank_count: ranks,
            placements: model.tables.iter().zip(&balanced.placements).map(place).collect(),
        }
    }
}

/// One way to train a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// Ranks.
    pub ranks: usize,
    /// Whether ranks are processes, which the caller starts; else threads.
    pub processes: bool,
    /// Where tables live.
    pub tables: Tables,
    /// Whether ranks compute while vectors travel.
    pub pipelined: bool,
    /// Whether the run is begun on other ranks with tables by rows, stops half way, and goes on in this way.
    pub interrupted: bool,
    /// How vectors travel; ways of one group have the same.
    pub exchange: ExchangeFormat,
}

impl Way {
    /// In words, without the number of ranks.
    pub fn words(&self) -> String {
        let mut words = vec![self.tables.name()];
        if self.processes {
            words.push("processes");
        }
        if self.pipelined {
            words.push("pipelined");
        }
        if self.interrupted {
            words.push(if self.ranks == 1 { "begun on 2 by rows" } else { "begun on 1" });
        }
        words.join(", ")
    }
}

/// The ways to try for some numbers of ranks, by group. The first of a group is what the others are held to.
/// `processes`: whether ranks can be processes here.
pub fn ways(job: &Job, rank_counts: &[usize], processes: bool) -> Vec<Vec<Way>> {
    let as_job = job.run.exchange;
    let other = ExchangeFormat { forward: WireFormat::F16, backward: WireFormat::Bf16 };
    let exact = ExchangeFormat::default();
    let codec = if as_job == exact { other } else { exact };
    let sits_by_towers = |ranks| matches!(Seating::of(&job.run.model, ranks), Ok(Some(_)));
    let of = |exchange, all: bool| {
        let mut ways = Vec::new();
        for &ranks in rank_counts {
            let way = |tables| Way {
                ranks,
                processes: false,
                tables,
                pipelined: false,
                interrupted: false,
                exchange,
            };
            let mut plans: Vec<Plan> = Vec::new();
            for tables in Tables::ALL {
                let plan = tables.plan(&job.run.model, ranks);
                // One rank, or tables too narrow to cut, may leave nothing that differs.
                if !plans.contains(&plan)
                    && (ranks > 1 || tables == Tables::Whole)
                    && (all || plans.len() < 3)
                {
                    ways.push(way(tables));
                    plans.push(plan);
                }
            }
            if all {
                ways.push(Way { pipelined: true, ..way(Tables::Whole) });
                if ranks > 1 {
                    ways.push(Way { pipelined: true, ..way(Tables::Rows) });
                }
                if sits_by_towers(ranks) {
                    ways.push(Way { pipelined: true, ..way(Tables::Towers) });
                }
                ways.push(Way { interrupted: true, ..way(Tables::Whole) });
            }
            if processes && ranks > 1 {
                let process = |tables, pipelined| Way { processes: true, pipelined, ..way(tables) };
                ways.push(process(Tables::Whole, false));
                ways.push(process(Tables::Whole, true));
                if sits_by_towers(ranks) {
                    ways.push(process(Tables::Towers, false));
                    ways.push(process(Tables::Towers, true));
                }
                if all {
                    // Their plans reach the processes as a file.
                    ways.push(process(Tables::Rows, true));
                    ways.push(process(Tables::Columns, false));
                    ways.push(Way { interrupted: true, ..process(Tables::Whole, true) });
                }
            }
        }
        ways
    };
    vec![of(as_job, true), of(codec, false)]
}

/// What a way ended with, read from the files that it left.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Proof {
    /// Of every file of the last checkpoint: dense weights, rows, and the state of both.
    pub weights: String,
    /// Of the losses and other metrics of every step.
    pub losses: String,
    /// Of all metrics of the evaluations at the end.
    pub metrics: String,
    /// The lines of metrics, without clock readings, to find the first that differs.
    #[serde(skip)]
    pub lines: Vec<String>,
    /// Where the checkpoint is.
    #[serde(skip)]
    pub checkpoint: PathBuf,
}

/// The job of one way: so many steps, metrics of each, everything in a directory of its own.
pub fn job_of(job: &Job, way: &Way, steps: u64, directory: &Path) -> Job {
    let mut job = job.clone();
    job.run.exchange = way.exchange;
    job.run.steps_max = steps;
    job.run.evaluate.window_steps = 1;
    job.process.output_dir = directory.to_owned();
    job.process.pipeline = if way.pipelined { Pipeline::On } else { Pipeline::Off };
    job.process.checkpoint_every_steps = 0;
    job
}

/// Trains `steps` steps in one way, into `directory`. `start` trains a job by a plan on ranks that are processes.
///
/// # Errors
/// When training fails.
pub fn prove(
    job: &Job,
    prepared: &Prepared,
    way: &Way,
    (steps, directory): (u64, &Path),
    start: &dyn Fn(&Job, &Plan) -> Result<(), TrainError>,
) -> Result<Proof, TrainError> {
    let made = std::fs::create_dir_all(directory);
    made.map_err(|source| TrainError::Output { path: directory.to_owned(), source })?;
    let train = |tables: Tables, ranks: usize, steps: u64| {
        let plan = tables.plan(&job.run.model, ranks);
        let job = job_of(job, way, steps, directory);
        train_by(&plan, &job, prepared, Ranks::Threads(ranks), &mut Nobody)
    };
    if way.interrupted {
        let others = if way.ranks == 1 { 2 } else { 1 };
        train(Tables::Rows, others, (steps / 2).max(1))?;
    }
    if way.processes {
        start(&job_of(job, way, steps, directory), &way.tables.plan(&job.run.model, way.ranks))?;
    } else {
        train(way.tables, way.ranks, steps)?;
    }
    let directory_of_checkpoints = directory.join("checkpoints");
    let newest = checkpoint::latest(&directory_of_checkpoints)?;
    proof(directory, &newest.unwrap_or(directory_of_checkpoints), steps)
}

/// What must be equal, of a run of `steps` steps that has ended.
///
/// # Errors
/// When its checkpoint or its metrics cannot be read.
pub fn proof(directory: &Path, checkpoint: &Path, steps: u64) -> Result<Proof, TrainError> {
    let manifest = Checkpoint::open(checkpoint)?;
    let files = manifest.manifest().files.iter();
    let weights: Vec<String> = files.map(|file| format!("{} {}", file.name, file.crc32c)).collect();
    let path = directory.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|source| TrainError::Output { path, source })?;
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut value: Value = serde_json::from_str(line).unwrap_or_default();
        value.as_object_mut().map(|line| line.remove("samples_per_second"));
        // An interrupted run has also judged itself where it stopped.
        if value["split"] == "train" || value["step"] == steps {
            lines.push(value.to_string());
        }
    }
    let (losses, metrics): (Vec<String>, Vec<String>) =
        lines.iter().cloned().partition(|line| line.contains("\"split\":\"train\""));
    Ok(Proof {
        weights: hash(&weights),
        losses: hash(&losses),
        metrics: hash(&metrics),
        lines,
        checkpoint: checkpoint.to_owned(),
    })
}

/// Sixteen digits that change with any character of any line (FNV-1a).
fn hash(lines: &[String]) -> String {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let bytes = lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, fold))
}

/// Watches nothing.
struct Nobody;

impl Observer for Nobody {
    fn observe(&mut self, _event: &Event<'_>) {}
}
