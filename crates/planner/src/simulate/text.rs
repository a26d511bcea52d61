//! The simulator's figures as tables that a person reads.

use std::fmt::Write;

use super::{
    memory::Fit,
    step::{Setting, Step, Variant},
    sweep::Point,
};
use crate::explain::{thousands, wrapped};

/// A row of the table: its name and what it shows of a step.
type Row = (&'static str, fn(&Step) -> f64);

/// Where the time goes; what is taken off has a minus.
const ROWS: [Row; 10] = [
    ("dense network", |step| step.network),
    ("tower modules", |step| step.modules),
    ("rows of tables", |step| step.rows),
    ("local copies", |step| step.copies),
    ("exchange inside hosts", |step| step.in_host),
    ("exchange between hosts", |step| step.cross_host),
    ("ids on their way", |step| step.ids),
    ("sum of dense gradients", |step| step.reduce),
    ("hidden behind computing", |step| -(step.hidden + step.reduce_hidden)),
    ("step", Step::seconds),
];

/// One setting: memory, then all variants side by side.
pub fn table(point: &Point<'_>) -> String {
    let setting = &point.setting;
    let mut out = format!(
        "{} on {}: {}, {} of {}, {} samples each, {}\n",
        setting.workload.name,
        setting.cluster.name,
        nouns(setting.ranks(), &setting.cluster.rank_noun),
        nouns(setting.hosts, "host"),
        setting.cluster.ranks_per_host,
        thousands(setting.workload.local_batch as u64),
        nouns(setting.towers, "tower"),
    );
    out += &memory(setting, &setting.fit());
    let titles = ["flat", "SPTT", "shortened", "towers"];
    let _ = write!(out, "\n{:<26}", "milliseconds of a step");
    titles.iter().for_each(|title| out += &format!("{title:>12}"));
    out.push('\n');
    for (name, of) in ROWS {
        line(&mut out, name, |variant| milliseconds(of(point.step(variant))));
    }
    out.push('\n');
    line(&mut out, "exposed communication", |variant| {
        let step = point.step(variant);
        format!("{:.0} %", 100.0 * step.exposed() / step.seconds())
    });
    line(&mut out, "a rank sends to other hosts", |variant| {
        format!("{:.1} MB", point.step(variant).cross_host_bytes / 1e6)
    });
    line(&mut out, "samples a second", |variant| short(point.samples_per_second(variant)));
    line(&mut out, "speed-up over flat", |variant| format!("{:.2}x", point.speed_up(variant)));
    out.push('\n');
    let ratio = setting.ratio;
    let words = format!(
        "SPTT: the ways of towers alone. shortened: what they hand on is {ratio} times shorter, with the work of the flat \
         network: what links gain. towers: with modules, and the network on what they hand on."
    );
    wrapped(&mut out, "", &words);
    out
}

fn line(out: &mut String, name: &str, of: impl Fn(Variant) -> String) {
    let mut line = format!("{name:<27}");
    for (index, variant) in Variant::ALL.into_iter().enumerate() {
        let width = if index == 0 { 11 } else { 12 };
        line += &format!("{:>width$}", of(variant));
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// Where the tables are, or what is missing.
fn memory(setting: &Setting<'_>, fit: &Fit) -> String {
    let mut out = format!(
        "tables of {} weights take {} with their state\n",
        short(setting.workload.table_weights()),
        bytes(fit.bytes)
    );
    for tier in fit.tiers.iter().filter(|tier| tier.bytes > 0.0) {
        let _ = writeln!(
            out,
            "  {:<5} holds {:>8} of {:>8} ({:.0} %) and serves {:.1} % of the ids",
            tier.name,
            bytes(tier.bytes),
            bytes(tier.capacity),
            100.0 * tier.bytes / tier.capacity,
            100.0 * tier.id_share
        );
    }
    if fit.missing > 0.0 {
        let words = format!(
            "They do NOT fit: {} are missing; {} would do. The figures below read the rest from {}.",
            bytes(fit.missing),
            nouns(fit.hosts_needed, "host"),
            fit.tiers.last().map_or("nowhere", |tier| tier.name.as_str()),
        );
        wrapped(&mut out, "  ", &words);
    }
    out
}

/// Many settings, a line each.
pub fn lines(points: &[Point<'_>]) -> String {
    let Some(first) = points.first() else { return String::new() };
    let mut out = format!(
        "{} on {}, {} samples a {}\nmilliseconds of a step, and how much faster than flat\n\n",
        first.setting.workload.name,
        first.setting.cluster.name,
        thousands(first.setting.workload.local_batch as u64),
        first.setting.cluster.rank_noun,
    );
    out +=
        "   ranks  hosts towers    CR       flat  exposed       SPTT         shortened            towers\n";
    let mut missing = false;
    for point in points {
        let (setting, flat) = (&point.setting, point.step(Variant::Flat));
        let fits = setting.fit().missing == 0.0;
        missing |= !fits;
        let mut line = format!(
            "{:>8} {:>6} {:>6} {:>5}  {:>9} {:>6.0} %",
            thousands(setting.ranks() as u64),
            setting.hosts,
            setting.towers,
            setting.ratio,
            milliseconds(flat.seconds()),
            100.0 * flat.exposed() / flat.seconds(),
        );
        for variant in [Variant::Sptt, Variant::Shortened, Variant::Towers] {
            line += &format!(
                "  {:>9} {:>5.2}x",
                milliseconds(point.step(variant).seconds()),
                point.speed_up(variant)
            );
        }
        let _ = writeln!(out, "{line}{}", if fits { "" } else { "  *" });
    }
    if missing {
        out += "* the tables do not fit there\n";
    }
    out
}

fn nouns(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", thousands(count as u64), if count == 1 { "" } else { "s" })
}

/// With as many digits as say something.
pub fn milliseconds(seconds: f64) -> String {
    match seconds * 1e3 {
        0.0 => "-".to_owned(),
        ms if ms.abs() >= 100.0 => format!("{ms:.0}"),
        ms if ms.abs() >= 10.0 => format!("{ms:.1}"),
        ms => format!("{ms:.2}"),
    }
}

/// `1.23 TB`: thousand million bytes and so on, as data sheets count.
pub fn bytes(count: f64) -> String {
    format!("{}B", short(count))
}

/// `1.23 M`.
pub fn short(value: f64) -> String {
    let units = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) if value / unit >= 100.0 => format!("{:.0} {name}", value / unit),
        Some((unit, name)) => format!("{:.1} {name}", value / unit),
        None => format!("{value:.0} "),
    }
}
