//! A plan in words: where every table goes and why, what each rank holds and spends, and what no plan could beat.

use std::fmt::Write;

use campanile_spec::{Bytes, Placement, Plan, Returns, Seating};

use crate::{
    by_towers::{seated, table_costs},
    choices::{Choice, Kind, Spread},
    estimate::{CODECS, Cost, Prediction, STAGES},
    plan::Planned,
    request::{Request, Splits},
};

/// Widest bar of the picture of ranks.
const BAR: usize = 24;

/// Ranks that are listed one by one; of more, the busiest and the idlest are shown.
const RANKS_SHOWN: usize = 32;

/// Tables that are listed one by one; of more, the costliest are shown.
const TABLES_SHOWN: usize = 64;

/// Columns of a terminal.
const WIDTH: usize = 100;

/// The plan, explained.
pub fn explain(request: &Request<'_>, planned: &Planned) -> String {
    let mut out = String::new();
    let (plan, prediction) = (&planned.plan, &planned.prediction);
    head(&mut out, request, plan, prediction);
    out.push('\n');
    let says_why = request.splits != Splits::Never;
    let costs = table_costs(request, plan);
    tables(&mut out, request, (plan, &costs), |table| says_why.then(|| why(request, planned, table)));
    if !says_why {
        out.push_str("no table may be split\n");
    }
    out.push('\n');
    ranks(&mut out, request, prediction, &format!(" (placed by {})", planned.method.name()));
    out.push('\n');
    verdict(&mut out, request, planned);
    out
}

/// What a plan costs that was made elsewhere, or for towers: the same without reasons and without a bound.
pub fn explain_prices(request: &Request<'_>, plan: &Plan, prediction: &Prediction) -> String {
    let mut out = String::new();
    head(&mut out, request, plan, prediction);
    out.push('\n');
    if let Some(seating) = seated(request).ok().filter(|seating| seating.fits(request.model, plan)) {
        groups(&mut out, request, &seating);
    }
    tables(&mut out, request, (plan, &table_costs(request, plan)), |_| None);
    out.push('\n');
    ranks(&mut out, request, prediction, "");
    let limit = request.topology.memory_bytes_per_rank();
    for rank in (0..prediction.ranks.len()).filter(|&rank| prediction.memory_of(rank) > limit) {
        let missing = Bytes(prediction.memory_of(rank) - limit);
        let _ = writeln!(out, "rank {rank} holds {missing} more than it has");
    }
    out
}

fn head(out: &mut String, request: &Request<'_>, plan: &Plan, prediction: &Prediction) {
    let topology = request.topology;
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let _ = writeln!(
        out,
        "{} on {} ({} of {}), {} a rank, batches of {}",
        count(plan.placements.len(), "table"),
        count(plan.rank_count, "rank"),
        count(topology.hosts, "host"),
        topology.ranks_per_host,
        Bytes(topology.memory_bytes_per_rank()),
        thousands(request.batch_size as u64),
    );
    let slowest = |stage: usize| prediction.ranks.iter().map(|rank| rank.seconds[stage]).fold(0.0, f64::max);
    let stages: Vec<String> = STAGES
        .iter()
        .enumerate()
        .filter(|(stage, _)| *stage != CODECS || slowest(CODECS) > 0.0)
        .map(|(stage, name)| format!("{name} {}", time(slowest(stage))))
        .collect();
    let _ = writeln!(
        out,
        "a step takes {}; {} at best, when exchanges hide behind computing",
        time(prediction.step_seconds),
        time(prediction.overlapped_seconds)
    );
    let _ = writeln!(out, "  tables   {}", stages.join(", "));
    let _ = writeln!(
        out,
        "  dense    network {}, weights {}",
        time(prediction.network_seconds),
        time(prediction.weights_seconds)
    );
    let reading = match prediction.read_seconds {
        0.0 => String::new(),
        seconds => format!(", reading {}", time(seconds)),
    };
    let chunks = match prediction.chunk_seconds {
        0.0 => String::new(),
        seconds => format!(", chunks of a pipeline {}", time(seconds)),
    };
    let _ = writeln!(
        out,
        "  other    metrics {}, latency {}{reading}{chunks}",
        time(prediction.rest_seconds),
        time(prediction.latency_seconds)
    );
    let sum = |of: fn(&Cost) -> f64| prediction.ranks.iter().map(of).sum::<f64>() as u64;
    let _ = writeln!(
        out,
        "  sent     {} inside hosts and {} between them, for tables",
        Bytes(sum(|cost| cost.in_host_bytes)),
        Bytes(sum(|cost| cost.cross_host_bytes))
    );
}

/// Which ranks have which towers.
fn groups(out: &mut String, request: &Request<'_>, seating: &Seating) {
    for (group, towers) in seating.towers.iter().enumerate() {
        let names: Vec<&str> =
            request.model.towers.list[towers.clone()].iter().map(|tower| tower.name.as_str()).collect();
        let first = group * seating.members;
        let ranks = match seating.members {
            1 => format!("rank {first}"),
            members => format!("ranks {first}-{}", first + members - 1),
        };
        wrapped(out, "", &format!("{ranks}: {}", names.join(", ")));
    }
    out.push('\n');
}

fn tables(
    out: &mut String,
    request: &Request<'_>,
    (plan, costs): (&Plan, &[(u64, u64)]),
    why: impl Fn(usize) -> Option<String>,
) {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|&table| (std::cmp::Reverse(costs[table].0), table));
    let width = order.iter().map(|&t| request.model.tables[t].name.chars().count()).max().unwrap_or(0).max(5);
    let _ = writeln!(
        out,
        "{:<width$}  {:>13}  {:>4}  {:>5}  {:>9}  {:>9}  {:<20}  {:>9}",
        "table", "rows", "dim", "ids", "distinct", "memory", "placement", "time"
    );
    for &table in order.iter().take(TABLES_SHOWN) {
        let (spec, load) = (&request.model.tables[table], &request.loads[table]);
        let distinct = load.distinct_rows(request.batch_size as f64).min(spec.row_count as f64);
        let _ = writeln!(
            out,
            "{:<width$}  {:>13}  {:>4}  {:>5.1}  {:>9}  {:>9}  {:<20}  {:>9}",
            spec.name,
            thousands(spec.row_count),
            spec.dim,
            load.ids_per_sample,
            thousands(distinct as u64),
            Bytes(costs[table].1).to_string(),
            where_it_is(&plan.placements[table]),
            time(costs[table].0 as f64 * 1e-12),
        );
        if let Some(why) = why(table) {
            wrapped(out, "    ", &why);
        }
    }
    if order.len() > TABLES_SHOWN {
        let rest = &order[TABLES_SHOWN..];
        let time_of_rest: u64 = rest.iter().map(|&table| costs[table].0).sum();
        let _ = writeln!(
            out,
            "and {} cheaper tables, {} together",
            rest.len(),
            time(time_of_rest as f64 * 1e-12)
        );
    }
    out.push_str("ids: of a sample; distinct: rows of a batch; memory and time: over all ranks\n");
}

/// Writes words in lines that a terminal can show, each after `indent`.
pub(crate) fn wrapped(out: &mut String, indent: &str, words: &str) {
    let mut line = indent.to_owned();
    for word in words.split(' ') {
        if line.len() > indent.len() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = indent.to_owned();
        }
        if line.len() > indent.len() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
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
    let seconds = |choice: &Choice| choice.total_time(ranks) as f64 * 1e-12;
    let cheapest = choices.iter().min_by_key(|choice| choice.total_time(ranks)).unwrap_or(choice);
    let same_kind = |a: Kind, b: Kind| std::mem::discriminant(&a) == std::mem::discriminant(&b);
    let other = choices
        .iter()
        .filter(|other| !same_kind(other.kind, choice.kind))
        .min_by_key(|other| (other.total_time(ranks), other.parts.len()));
    let compared = other
        .map_or_else(String::new, |other| format!("; {} takes {}", other.kind.words(), time(seconds(other))));
    let rows_travel = match (choice.kind, planned.plan.placements[table].returns) {
        (Kind::Whole(_) | Kind::Columns { .. }, Returns::Rows) => ", every row sent once",
        _ => "",
    };
    if !request.may_split(&request.model.tables[table].name) {
        return format!("may not be split{rows_travel}");
    }
    if choices.len() == 1 {
        return "there is one rank".to_owned();
    }
    if choice.total_time(ranks) == cheapest.total_time(ranks) {
        return format!("the cheapest{rows_travel}{compared}");
    }
    let whole = &choices[0];
    let capacity = crate::plan::shape(request).capacity;
    if choice.spread != Spread::Everywhere && whole.largest_memory() > capacity {
        return format!("whole it needs {} on one rank{rows_travel}", Bytes(whole.largest_memory()));
    }
    let on_one = time(cheapest.largest_time() as f64 * 1e-12);
    if choice.parts.len() == 1 {
        let here = time(choice.largest_time() as f64 * 1e-12);
        return format!("rows are lent, so its rank spends {here} instead of {on_one}");
    }
    if cheapest.parts.len() == 1 {
        return format!("whole it takes {on_one}, all on one rank{rows_travel}");
    }
    let (words, all) = (cheapest.kind.words(), time(seconds(cheapest)));
    format!("{words} it takes {all}, but {on_one} of it on one rank{rows_travel}")
}

fn ranks(out: &mut String, request: &Request<'_>, prediction: &Prediction, placed: &str) {
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
    let _ = writeln!(out, "rank  {:>9}  {:<BAR$}  {:>9}", "memory", "", "tables");
    for rank in shown {
        let (memory, seconds) = (prediction.memory_of(rank), prediction.ranks[rank].total_seconds());
        let line = format!(
            "{rank:>4}  {:>9}  {:<BAR$}  {:>9}  {}",
            Bytes(memory).to_string(),
            bar(memory as f64 / memory_of_rank as f64),
            time(seconds),
            bar(if busiest > 0.0 { seconds / busiest } else { 0.0 })
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let mean = prediction.load_mean();
    let _ = writeln!(
        out,
        "the busiest rank has {:.3} times the mean{placed}",
        if mean > 0.0 { busiest / mean } else { 1.0 },
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
            let words = format!(
                "no plan is faster than {}: table `{name}` takes that long on one rank, {reason}; all tables spread \
                 evenly would take {}",
                time(bound),
                time(planned.bound.mean as f64 * 1e-12)
            );
            wrapped(out, "", &words);
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
