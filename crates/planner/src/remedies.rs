//! When tables do not fit: which, by how much, and what would help.
//!
//! Every way out is tried before it is named: the changed request goes through the same search, so a remedy that
//! is said to be enough is.

use std::{error::Error, fmt};

use campanile_spec::{Bytes, RowFormat, SparseOptimizer};

use crate::{
    choices::{Choice, choices},
    estimate::dense_bytes,
    explain::{thousands, wrapped},
    plan::shape,
    request::{Request, Splits},
    search::is_feasible,
};

/// Ranks beyond which a remedy is no remedy.
const RANKS_MAX: usize = 4096;

/// The tables do not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoesNotFit {
    /// Ranks.
    pub rank_count: usize,
    /// Bytes that a rank has for tables, after the dense network and its buffers.
    pub available_bytes: u64,
    /// Bytes of all tables, their state and buffers, over all ranks.
    pub needed_bytes: u64,
    /// The table that is in the way.
    pub table: String,
    /// Its bytes in the smallest way to cut it, on the rank with the largest part.
    pub table_bytes: u64,
    /// Bytes that are missing: on one rank when a single part is too large, else over all ranks.
    pub missing_bytes: u64,
    /// Whether a single part is too large for any rank.
    pub is_single_part: bool,
    /// Ways out, the ones that suffice first.
    pub ways: Vec<Way>,
}

/// A way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// What to change, and what it gives.
    pub text: String,
    /// Whether the plan then fits.
    pub is_enough: bool,
}

impl Error for DoesNotFit {}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, available) = (&self.table, Bytes(self.available_bytes));
        let (table_bytes, missing) = (Bytes(self.table_bytes), Bytes(self.missing_bytes));
        let words = if self.is_single_part {
            format!(
                "table `{table}` does not fit: its largest part needs {table_bytes} on one rank, and a rank has \
                 {available} for tables; {missing} are missing"
            )
        } else {
            format!(
                "the tables do not fit: they need {} over {} ranks of {available} each; {missing} are missing. The \
                 largest is table `{table}` with {table_bytes}",
                Bytes(self.needed_bytes),
                self.rank_count,
            )
        };
        let mut out = String::new();
        wrapped(&mut out, "", &words);
        out.push_str("ways out:");
        for (number, way) in (1..).zip(&self.ways) {
            let verdict = if way.is_enough { "then it fits" } else { "not enough alone" };
            out.push_str(&format!("\n  {number}. {} ({verdict})", way.text));
        }
        f.write_str(&out)
    }
}

/// What is in the way of a request that no search could place.
pub(crate) fn what_does_not_fit(request: &Request<'_>, tables: &[Vec<Choice>]) -> DoesNotFit {
    let shape = shape(request);
    let capacity = shape.capacity;
    let smallest_part = |choices: &[Choice]| choices.iter().map(Choice::largest_memory).min().unwrap_or(0);
    let least_total = |choices: &[Choice]| {
        let memory = |choice: &Choice| {
            choice.parts.iter().map(|part| part.memory).sum::<u64>()
                + choice.everywhere.memory * shape.rank_count() as u64
        };
        choices.iter().map(memory).min().unwrap_or(0)
    };
    let needed_bytes: u64 = tables.iter().map(|choices| least_total(choices)).sum();
    let worst =
        (0..tables.len()).max_by_key(|&t| (smallest_part(&tables[t]), std::cmp::Reverse(t))).unwrap_or(0);
    let worst_part = tables.get(worst).map_or(0, |choices| smallest_part(choices));
    let largest =
        (0..tables.len()).max_by_key(|&t| (least_total(&tables[t]), std::cmp::Reverse(t))).unwrap_or(0);
    let is_single_part = worst_part > capacity;
    let culprit = if is_single_part { worst } else { largest };
    let all = capacity.saturating_mul(shape.rank_count() as u64);
    DoesNotFit {
        rank_count: shape.rank_count(),
        available_bytes: capacity,
        needed_bytes,
        table: request.model.tables.get(culprit).map(|table| table.name.clone()).unwrap_or_default(),
        table_bytes: if is_single_part {
            worst_part
        } else {
            tables.get(largest).map_or(0, |choices| least_total(choices))
        },
        missing_bytes: if is_single_part { worst_part - capacity } else { needed_bytes.saturating_sub(all) },
        is_single_part,
        ways: ways(request, culprit, needed_bytes),
    }
}

/// At least three ways, those that suffice first.
fn ways(request: &Request<'_>, culprit: usize, needed_bytes: u64) -> Vec<Way> {
    let mut ways = Vec::new();
    ways.extend(split_it(request, culprit));
    ways.extend(half_width(request));
    ways.extend(less_state(request));
    ways.extend(fewer_rows(request, culprit));
    ways.extend(more_hosts(request, needed_bytes));
    ways.push(more_memory(request, needed_bytes));
    ways.sort_by_key(|way| !way.is_enough);
    ways.truncate(3.max(ways.iter().filter(|way| way.is_enough).count().min(4)));
    ways
}

fn fits(request: &Request<'_>) -> bool {
    let tables: Vec<Vec<Choice>> = (0..request.loads.len()).map(|table| choices(request, table)).collect();
    is_feasible(&tables, shape(request))
}

fn split_it(request: &Request<'_>, culprit: usize) -> Option<Way> {
    let table = request.model.tables.get(culprit)?;
    if request.may_split(&table.name) {
        return None;
    }
    let mut allowed = request.clone();
    allowed.splits = Splits::Allowed;
    let capacity = shape(request).capacity.max(1);
    let split = choices(&allowed, culprit);
    let few = split.iter().filter(|choice| choice.parts.len() > 1 && choice.largest_memory() <= capacity);
    let choice = few.min_by_key(|choice| choice.parts.len())?;
    let text = format!(
        "let table `{}` be split: {} it needs {} on a rank",
        table.name,
        choice.kind.words(),
        Bytes(choice.largest_memory())
    );
    Some(Way { text, is_enough: fits(&allowed) })
}

fn half_width(request: &Request<'_>) -> Option<Way> {
    let mut model = request.model.clone();
    let wide = |format| format == RowFormat::F32;
    let saved: u64 = model
        .tables
        .iter()
        .filter(|table| wide(table.format))
        .map(|table| table.row_count.saturating_mul(table.dim as u64 * 2))
        .sum();
    if saved == 0 {
        return None;
    }
    model
        .tables
        .iter_mut()
        .filter(|table| wide(table.format))
        .for_each(|table| table.format = RowFormat::F16);
    let halved = Request { model: &model, ..request.clone() };
    let text = format!("store rows as f16 (`format = \"f16\"` in [run.tables]): {} less", Bytes(saved));
    Some(Way { text, is_enough: fits(&halved) })
}

fn less_state(request: &Request<'_>) -> Option<Way> {
    let row_wise = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };
    let floats = |optimizer: &SparseOptimizer| -> u64 {
        let of = |table: &campanile_spec::TableSpec| {
            table.row_count.saturating_mul(optimizer.state_floats(table.dim) as u64)
        };
        request.model.tables.iter().map(of).sum()
    };
    let saved = floats(request.optimizer).saturating_sub(floats(&row_wise)).saturating_mul(4);
    if saved == 0 {
        return None;
    }
    let lighter = Request { optimizer: &row_wise, ..request.clone() };
    let text = format!("train rows with `rowwise_adagrad`, one float of state a row: {} less", Bytes(saved));
    Some(Way { text, is_enough: fits(&lighter) })
}

/// The most rows of the culprit with which all fits, to two digits.
fn fewer_rows(request: &Request<'_>, culprit: usize) -> Option<Way> {
    let table = request.model.tables.get(culprit)?;
    let mut model = request.model.clone();
    let mut fits_with = |rows: u64| {
        model.tables[culprit].row_count = rows;
        fits(&Request { model: &model, ..request.clone() })
    };
    // The most 64ths that fit, by halving: fewer rows never need more memory.
    let (mut fitting, mut failing) = (0, 64);
    while failing - fitting > 1 {
        let middle = (fitting + failing) / 2;
        if fits_with(round_down(table.row_count / 64 * middle)) { fitting = middle } else { failing = middle }
    }
    let rows = (fitting > 0 && table.row_count >= 64).then(|| round_down(table.row_count / 64 * fitting));
    Some(match rows {
        Some(rows) => {
            let text = format!(
                "give table `{}` {} rows instead of {} (hash to less)",
                table.name,
                thousands(rows),
                thousands(table.row_count)
            );
            Way { text, is_enough: true }
        }
        None => {
            let text = format!("give table `{}` fewer rows, and the other tables too", table.name);
            Way { text, is_enough: false }
        }
    })
}

/// Two leading digits, the rest zeros.
fn round_down(value: u64) -> u64 {
    let unit = 10u64.pow(value.max(1).ilog10().saturating_sub(1));
    value / unit * unit
}

/// The fewest hosts that suffice, sought upwards from what all tables need together.
fn more_hosts(request: &Request<'_>, needed_bytes: u64) -> Option<Way> {
    let mut topology = request.topology.clone();
    topology.cross_host = topology.cross_host.or(Some(topology.in_host));
    let host_bytes =
        shape(request).capacity.checked_mul(topology.ranks_per_host as u64).filter(|&b| b > 0)?;
    let least = (needed_bytes.div_ceil(host_bytes) as usize).max(topology.hosts + 1);
    for eighths in [8, 9, 10, 12, 16, 24] {
        topology.hosts = (least * eighths).div_ceil(8);
        if topology.rank_count() > RANKS_MAX {
            return None;
        }
        if fits(&Request { topology: &topology, ..request.clone() }) {
            let (now, ranks) = (request.topology.hosts, topology.ranks_per_host);
            let ranks = if ranks == 1 { "one rank".to_owned() } else { format!("{ranks} ranks") };
            let text = format!("use {} hosts of {ranks} instead of {now}", topology.hosts);
            return Some(Way { text, is_enough: true });
        }
    }
    None
}

fn more_memory(request: &Request<'_>, needed_bytes: u64) -> Way {
    let ranks = request.topology.rank_count() as u64;
    let mut topology = request.topology.clone();
    let least = needed_bytes / ranks + dense_bytes(request);
    let mut mib = (least >> 20).max(topology.memory_mib_per_rank) + 1;
    for _ in 0..24 {
        topology.memory_mib_per_rank = mib;
        if fits(&Request { topology: &topology, ..request.clone() }) {
            break;
        }
        mib += mib / 8 + 1;
    }
    let text = format!(
        "give a rank {} instead of {}",
        Bytes(mib << 20),
        Bytes(request.topology.memory_bytes_per_rank())
    );
    let is_enough = fits(&Request { topology: &topology, ..request.clone() });
    Way { text, is_enough }
}
