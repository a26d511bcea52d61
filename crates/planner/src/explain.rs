//! A plan in words: where every table goes and why, what each rank holds and spends, and what no plan could beat.

use std::fmt::Write;

use campanile_spec::{Placement, Returns};

use crate::{
    choices::{Choice, Kind, Spread},
    estimate::{Cost, STAGES},
    plan::Planned,
    request::Request,
};

/// Widest bar of the picture of ranks.
const BAR: usize = 24;

/// Ranks that are listed one by one; of more, the busiest and the idlest are shown.
const RANKS_SHOWN: usize = 32;

/// Tables that are listed one by one; of more, the costliest are shown.
const TABLES_SHOWN: usize = 64;

/// The plan, explained.
pub fn explain(request: &Request<'_>, planned: &Planned) -> String {
    let mut out = String::new();
    head(&mut out, request, planned);
    out.push('\n');
    tables(&mut out, request, planned);
    out.push('\n');
    ranks(&mut out, request, planned);
    out.push('\n');
    verdict(&mut out, request, planned);
    out
}

fn head(out: &mut String, request: &Request<'_>, planned: &Planned) {
    let (topology, prediction) = (request.topology, &planned.prediction);
    let _ = writeln!(
        out,
        "{} tables on {} ranks ({} {} of {}), {} a rank, batches of {}",
        planned.plan.placements.len(),
        planned.plan.rank_count,
        topology.hosts,
        if topology.hosts == 1 { "host" } else { "hosts" },
        topology.ranks_per_host,
        bytes(topology.memory_bytes_per_rank()),
        thousands(request.batch_size as u64),
    );
    let slowest = |stage: usize| prediction.ranks.iter().map(|rank| rank.seconds[stage]).fold(0.0, f64::max);
    let mut parts: Vec<String> =
        STAGES.iter().enumerate().map(|(stage, name)| format!("{name} {}", time(slowest(stage)))).collect();
    parts.push(format!("network {}", time(prediction.network_seconds)));
    parts.push(format!("dense weights {}", time(prediction.weights_seconds)));
    parts.push(format!("latency {}", time(prediction.latency_seconds)));
    let _ = writeln!(out, "a step takes {}: {}", time(prediction.step_seconds), parts.join(", "));
    let _ = writeln!(
        out,
        "with exchanges hidden behind computing, {} at best",
        time(prediction.overlapped_seconds)
    );
    let sum = |of: fn(&Cost) -> f64| prediction.ranks.iter().map(of).sum::<f64>() as u64;
    let _ = writeln!(
        out,
        "a step sends {} inside hosts and {} between them, for tables",
        bytes(sum(|cost| cost.in_host_bytes)),
        bytes(sum(|cost| cost.cross_host_bytes))
    );
}

fn tables(out: &mut String, request: &Request<'_>, planned: &Planned) {
    let ranks = planned.plan.rank_count;
    let cost = |table: usize| planned.choices[table][planned.chosen[table]].total_time(ranks);
    let mut order: Vec<usize> = (0..planned.chosen.len()).collect();
    order.sort_by_key(|&table| (std::cmp::Reverse(cost(table)), table));
    let width = order.iter().map(|&t| request.model.tables[t].name.chars().count()).max().unwrap_or(0).max(5);
    let _ = writeln!(
        out,
        "{:<width$}  {:>13}  {:>4}  {:>9}  {:<20}  {:>9}  why",
        "table", "rows", "dim", "memory", "placement", "time"
    );
    for &table in order.iter().take(TABLES_SHOWN) {
        let spec = &request.model.tables[table];
        let choice = &planned.choices[table][planned.chosen[table]];
        let memory = choice.parts.iter().map(|part| part.memory).sum::<u64>()
            + choice.everywhere.memory * ranks as u64;
        let _ = writeln!(
            out,
            "{:<width$}  {:>13}  {:>4}  {:>9}  {:<20}  {:>9}  {}",
            spec.name,
            thousands(spec.row_count),
            spec.dim,
            bytes(memory),
            where_it_is(&planned.plan.placements[table]),
            time(cost(table) as f64 * 1e-12),
            why(request, planned, table),
        );
    }
    if order.len() > TABLES_SHOWN {
        let rest = &order[TABLES_SHOWN..];
        let time_of_rest: u64 = rest.iter().map(|&table| cost(table)).sum();
        let _ = writeln!(
            out,
            "and {} cheaper tables, {} together",
            rest.len(),
            time(time_of_rest as f64 * 1e-12)
        );
    }
}

fn where_it_is(placement: &Placement) -> String {
    let text = placement.to_string();
    if text.chars().count() <= 20 {
        return text;
    }
    let mut ranks: Vec<usize> = placement.shards.iter().map(|shard| shard.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let kind = text.split(" on ").next().unwrap_or_default();
    format!("{kind} on {} ranks", ranks.len())
}

/// Why this choice, and what the others would have cost.
fn why(request: &Request<'_>, planned: &Planned, table: usize) -> String {
    let ranks = planned.plan.rank_count;
    let (choices, taken) = (&planned.choices[table], planned.chosen[table]);
    let choice = &choices[taken];
    let milliseconds = |choice: &Choice| choice.total_time(ranks) as f64 * 1e-12;
    let cheapest = choices.iter().min_by_key(|choice| choice.total_time(ranks)).unwrap_or(choice);
    let same_kind = |a: Kind, b: Kind| std::mem::discriminant(&a) == std::mem::discriminant(&b);
    let other = choices
        .iter()
        .filter(|other| !same_kind(other.kind, choice.kind))
        .min_by_key(|other| (other.total_time(ranks), other.parts.len()));
    let compared = other.map_or_else(String::new, |other| {
        format!("; {} would take {}", other.kind.words(), time(milliseconds(other)))
    });
    let rows_travel = match (choice.kind, planned.plan.placements[table].returns) {
        (Kind::Whole(_) | Kind::Columns { .. }, Returns::Rows) => ", each row sent once as that is less",
        _ => "",
    };
    if !request.may_split(&request.model.tables[table].name) {
        return format!("may not be split{rows_travel}");
    }
    if choices.len() == 1 {
        return "there is one rank".to_owned();
    }
    if choice.total_time(ranks) == cheapest.total_time(ranks) {
        return format!("the cheapest over all ranks{rows_travel}{compared}");
    }
    let whole = &choices[0];
    let capacity = crate::plan::shape(request).capacity;
    if choice.spread != Spread::Everywhere && whole.largest_memory() > capacity {
        return format!("whole it needs {} on one rank{rows_travel}", bytes(whole.largest_memory()));
    }
    format!(
        "{} would take {} in all, but {} of it on one rank{rows_travel}",
        cheapest.kind.words(),
        time(milliseconds(cheapest)),
        time(cheapest.largest_time() as f64 * 1e-12)
    )
}

fn ranks(out: &mut String, request: &Request<'_>, planned: &Planned) {
    let prediction = &planned.prediction;
    let (busiest, memory_of_rank) = (prediction.load_max(), request.topology.memory_bytes_per_rank());
    let count = prediction.ranks.len();
    let mut shown: Vec<usize> = (0..count).collect();
    if count > RANKS_SHOWN {
        shown.sort_by(|&a, &b| {
            prediction.ranks[b]
                .total_seconds()
                .total_cmp(&prediction.ranks[a].total_seconds())
                .then(a.cmp(&b))
        });
        let idlest = shown.split_off(count - RANKS_SHOWN / 2);
        shown.truncate(RANKS_SHOWN / 2);
        shown.extend(idlest);
        let _ = writeln!(
            out,
            "the {} busiest and the {} idlest of {count} ranks",
            RANKS_SHOWN / 2,
            RANKS_SHOWN / 2
        );
    }
    let _ = writeln!(out, "rank  {:>9}  {:<BAR$}  {:>9}  {:<BAR$}", "memory", "", "tables", "");
    for rank in shown {
        let (memory, seconds) = (prediction.memory_of(rank), prediction.ranks[rank].total_seconds());
        let line = format!(
            "{rank:>4}  {:>9}  {:<BAR$}  {:>9}  {}",
            bytes(memory),
            bar(memory as f64 / memory_of_rank as f64),
            time(seconds),
            bar(if busiest > 0.0 { seconds / busiest } else { 0.0 })
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let mean = prediction.load_mean();
    let _ = writeln!(
        out,
        "the busiest rank has {:.3} times the mean (placed by {})",
        if mean > 0.0 { busiest / mean } else { 1.0 },
        planned.method.name()
    );
}

/// How near the plan is to what no plan can beat.
fn verdict(out: &mut String, request: &Request<'_>, planned: &Planned) {
    let found = planned.prediction.load_max();
    let bound = planned.bound.time() as f64 * 1e-12;
    match planned.bound.largest {
        Some((table, largest)) if largest > planned.bound.mean => {
            let name = &request.model.tables[table].name;
            let reason = if request.may_split(name) { "however it is cut" } else { "as it may not be split" };
            let _ = writeln!(
                out,
                "no plan is faster than {}: table `{name}` takes that long on one rank, {reason}; all tables spread \
                 evenly would take {}",
                time(bound),
                time(planned.bound.mean as f64 * 1e-12)
            );
        }
        _ => {
            let _ = writeln!(
                out,
                "no plan is faster than {}: all tables at their cheapest, spread evenly",
                time(bound)
            );
        }
    }
    let above = if bound > 0.0 { 100.0 * (found / bound - 1.0) } else { 0.0 };
    if above < 0.05 {
        let _ = writeln!(out, "this plan takes {}: it is the best there is", time(found));
    } else {
        let _ = writeln!(out, "this plan takes {}, {above:.1} % more", time(found));
    }
}

fn bar(share: f64) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(['▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % 8 - 1]);
    }
    bar
}

/// `1.23 ms`.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s if s > 0.0 => format!("{:.1} us", s * 1e6),
        _ => "0".to_owned(),
    }
}

/// `3.4 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..0x10_0000 => format!("{:.1} KiB", count as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", count as f64 / (1u64 << 20) as f64),
        _ => format!("{:.2} GiB", count as f64 / (1u64 << 30) as f64),
    }
}

/// `1,234,567`.
pub(crate) fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
