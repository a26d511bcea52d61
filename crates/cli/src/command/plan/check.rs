//! `campanile plan --check`: the job trains some steps by the plan, and predictions stand beside what was measured.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use campanile_data::Prepared;
use campanile_planner::{Prediction, Request, predict_ways};
use campanile_spec::{Bytes, Plan, config::Job};
use campanile_train::{
    clock::{PARTS, Part},
    trial::{Measured, Trial, trial},
};
use serde_json::{Value, json};

use crate::{
    args::planning::PlanArguments,
    measure::{self, median},
    place::Place,
};

/// Other programs that use less of the machine than this are not worth a word.
const OTHERS: f64 = 0.05;

/// Runs the job and prints the comparison.
pub fn run(
    arguments: &PlanArguments,
    place: &Place,
    (job, prepared): (&Job, &Prepared),
    request: &Request<'_>,
    plan: &Plan,
) -> Result<Value> {
    if arguments.steps == 0 || arguments.rounds == 0 {
        bail!("--steps and --rounds must be at least 1");
    }
    if request.topology.hosts > 1 && place.processes().is_none() {
        bail!(
            "--check needs the {} hosts of the topology: start it there with `campanile launch -n {} --hostfile FILE \
             plan ...`",
            request.topology.hosts,
            plan.rank_count
        );
    }
    let readings = Mutex::new(Vec::new());
    let settings = super::settings(job);
    let trial_of = Trial { job, prepared, plan, rounds: arguments.rounds, steps: arguments.steps };
    let measured = trial(trial_of, place.ranks_or_threads(plan.rank_count), &|comm| {
        if arguments.measure {
            let reading = measure::reading(comm, settings)?;
            if comm.rank() == 0 {
                readings.lock().unwrap_or_else(PoisonError::into_inner).push(reading);
            }
        }
        Ok(())
    })?;
    if !place.is_first() {
        return Ok(Value::Null);
    }
    let readings = readings.into_inner().unwrap_or_else(PoisonError::into_inner);
    let prediction = if readings.is_empty() {
        predict_ways(request, plan)
    } else {
        let shape = measure::Shape {
            hosts: request.topology.hosts,
            ranks_per_host: request.topology.ranks_per_host,
            memory_mib_per_rank: request.topology.memory_mib_per_rank,
        };
        let topology = measure::topology(shape, &readings);
        predict_ways(&Request { topology: &topology, ..request.clone() }, plan)
    };
    let comparison = Comparison { prediction, measured, processes: place.processes().is_some() };
    print!("{}", comparison.text(arguments));
    Ok(comparison.json())
}

struct Comparison {
    prediction: Prediction,
    measured: Measured,
    processes: bool,
}

/// A line of the comparison of seconds.
struct Line {
    name: &'static str,
    predicted: f64,
    measured: f64,
}

impl Comparison {
    fn predicted_step(&self) -> f64 {
        if self.measured.pipelined {
            self.prediction.overlapped_seconds
        } else {
            self.prediction.step_seconds
        }
    }

    fn measured_step(&self) -> f64 {
        median(self.measured.step_seconds.clone())
    }

    /// Where the time goes: predicted on the slowest rank of every stage, measured as the mean over ranks.
    fn lines(&self) -> Vec<Line> {
        let stage =
            |stage: usize| self.prediction.ranks.iter().map(|rank| rank.seconds[stage]).fold(0.0, f64::max);
        let parts = |parts: &[Part]| {
            let of_rank = |rank: &Vec<f64>| parts.iter().map(|part| rank[*part as usize]).sum::<f64>();
            let ranks = self.measured.parts.len().max(1) as f64;
            self.measured.parts.iter().map(of_rank).sum::<f64>() / ranks
        };
        let lookup = (0..4).map(stage).sum::<f64>() + self.prediction.latency_seconds;
        vec![
            Line {
                name: "lookup and exchange",
                predicted: lookup,
                measured: parts(&[Part::Lookup, Part::Exchange, Part::Members]),
            },
            Line {
                name: "network",
                predicted: self.prediction.network_seconds,
                measured: parts(&[Part::Network, Part::Module]),
            },
            Line { name: "update of rows", predicted: stage(4), measured: parts(&[Part::Update]) },
            Line {
                name: "dense weights",
                predicted: self.prediction.weights_seconds,
                measured: parts(&[Part::Pack, Part::Dense]),
            },
            Line {
                name: "input and metrics",
                predicted: self.prediction.rest_seconds + self.prediction.read_seconds,
                measured: parts(&[Part::Input, Part::Rest]),
            },
        ]
    }

    /// Predicted and measured bytes: of every rank, or of all together where one process holds them all.
    fn memory(&self) -> Vec<(String, u64, u64)> {
        let ranks = self.prediction.ranks.len();
        if self.processes {
            let of = |rank| {
                (format!("rank {rank}"), self.prediction.memory_of(rank), self.measured.memory_bytes[rank])
            };
            return (0..ranks).map(of).collect();
        }
        let predicted = (0..ranks).map(|rank| self.prediction.memory_of(rank)).sum();
        let measured = self.measured.memory_bytes.iter().copied().max().unwrap_or(0);
        vec![("all ranks".to_owned(), predicted, measured)]
    }

    fn text(&self, arguments: &PlanArguments) -> String {
        let off = |predicted: f64, measured: f64| format!("{:+.0} %", 100.0 * (predicted / measured - 1.0));
        let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
        let mut out = format!(
            "\nchecked with {} rounds of {} steps{}{}\n",
            arguments.rounds,
            arguments.steps,
            if self.measured.pipelined { ", computing while vectors travel" } else { "" },
            if arguments.measure { ", rates measured in between" } else { "" },
        );
        out += &format!("{:<22}{:>14}{:>14}{:>10}\n", "", "predicted", "measured", "off by");
        let mut line = |name: &str, predicted: f64, measured: f64| {
            let off =
                if predicted > 0.0 && measured > 0.0 { off(predicted, measured) } else { String::new() };
            let line = format!("{name:<22}{:>14}{:>14}{off:>10}", ms(predicted), ms(measured));
            out += line.trim_end();
            out.push('\n');
        };
        line("step", self.predicted_step(), self.measured_step());
        for Line { name, predicted, measured } in self.lines() {
            line(&format!("  {name}"), predicted, measured);
        }
        for (name, predicted, measured) in self.memory() {
            let off = off(predicted as f64, measured.max(1) as f64);
            let (predicted, measured) = (Bytes(predicted).to_string(), Bytes(measured).to_string());
            out += &format!("{:<22}{predicted:>14}{measured:>14}{off:>10}\n", format!("memory of {name}"));
        }
        let rounds = &self.measured.step_seconds;
        let (least, most) = (
            rounds.iter().copied().fold(f64::INFINITY, f64::min),
            rounds.iter().copied().fold(0.0, f64::max),
        );
        out += &format!("a step took between {} and {} in the rounds\n", ms(least), ms(most));
        let others = self.measured.others_share;
        if others > OTHERS {
            out += &format!(
                "other programs used {:.0} % of this machine meanwhile, which no price knows of\n",
                100.0 * others
            );
        }
        out
    }

    fn json(&self) -> Value {
        let lines = self.lines();
        let line = |line: &Line| json!({ "part": line.name, "predicted": line.predicted, "measured": line.measured });
        let memory = self.memory();
        let bytes = |(name, predicted, measured): &(String, u64, u64)| json!({ "of": name, "predicted": predicted, "measured": measured });
        json!({
            "predicted_step_seconds": self.predicted_step(),
            "measured_step_seconds": self.measured_step(),
            "parts": lines.iter().map(line).collect::<Vec<_>>(),
            "memory_bytes": memory.iter().map(bytes).collect::<Vec<_>>(),
            "part_names": PARTS.map(|(_, name)| name),
            "measured": self.measured,
        })
    }
}
