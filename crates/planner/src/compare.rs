//! Flat, the ways of towers, and towers, side by side on one topology.

use std::fmt::Write;

use campanile_spec::Bytes;

use crate::{
    estimate::{CODECS, Cost, GRADIENTS, IDS, POOL, Prediction, UPDATE, VECTORS},
    explain::time,
};

/// A column of the comparison: a name, and a price or why there is none.
pub type Column<'a> = (&'a str, Result<&'a Prediction, &'a str>);

/// Lines that are left out where they are nothing in all columns.
const ENCODING: &str = "encoding and decoding";
const CHUNKS: &str = "messages of chunks, hidden";

/// What is shown of a prediction.
type Row = (&'static str, fn(&Prediction) -> String);

const ROWS: [Row; 12] = [
    ("network and modules", |price| time(price.network_seconds)),
    ("rows of tables", |price| time(price.slowest(POOL) + price.slowest(UPDATE))),
    ("ids, vectors, gradients", |price| {
        time(price.slowest(IDS) + price.slowest(VECTORS) + price.slowest(GRADIENTS))
    }),
    (ENCODING, |price| time(price.slowest(CODECS))),
    ("dense weights", |price| time(price.weights_seconds)),
    ("metrics, input, latency", |price| {
        time(price.rest_seconds + price.read_seconds + price.latency_seconds)
    }),
    (CHUNKS, |price| time(price.chunk_seconds)),
    ("step, one after the other", |price| time(price.step_seconds)),
    ("step, exchanges hidden", |price| time(price.overlapped_seconds)),
    ("sent between hosts", |price| bytes(price, |cost| cost.cross_host_bytes)),
    ("sent inside hosts", |price| bytes(price, |cost| cost.in_host_bytes)),
    ("fullest rank", |price| {
        Bytes((0..price.ranks.len()).map(|rank| price.memory_of(rank)).max().unwrap_or(0)).to_string()
    }),
];

fn bytes(price: &Prediction, of: fn(&Cost) -> f64) -> String {
    Bytes(price.ranks.iter().map(of).sum::<f64>() as u64).to_string()
}

/// The comparison as a table; the first column that has a price is what the others are compared with.
pub fn compare(columns: &[Column<'_>]) -> String {
    let mut out = format!("{:<26}", "of one step");
    columns.iter().for_each(|(name, _)| out += &format!("{name:>14}"));
    out.push('\n');
    let mut line = |name: &str, of: &dyn Fn(&Prediction) -> String| {
        let mut line = format!("{name:<26}");
        for (_, price) in columns {
            line += &format!("{:>14}", price.map_or_else(|_| "-".to_owned(), of));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    };
    let has = |of: fn(&Prediction) -> f64| columns.iter().any(|(_, price)| price.is_ok_and(|p| of(p) > 0.0));
    for (name, of) in ROWS {
        let is_shown = match name {
            ENCODING => has(|price| price.slowest(CODECS)),
            CHUNKS => has(|price| price.chunk_seconds),
            _ => true,
        };
        if is_shown {
            line(name, &of);
        }
    }
    if let Some(base) = columns.iter().find_map(|(_, price)| price.ok()) {
        let gain =
            |of: fn(&Prediction) -> f64| move |price: &Prediction| format!("{:.2}x", of(base) / of(price));
        line("speed-up", &gain(|price| price.step_seconds));
        line("speed-up, hidden", &gain(|price| price.overlapped_seconds));
    }
    for (name, price) in columns {
        if let Err(why) = price {
            crate::explain::wrapped(&mut out, "", &format!("{name} has no price: {why}"));
        }
    }
    out
}
