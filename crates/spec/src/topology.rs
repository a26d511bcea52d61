//! What a cluster can do: hosts, ranks, memory, and the rates that a plan is priced with.
//!
//! The numbers are measured (`campanile bench topology` writes the file), never guessed from a data sheet: the
//! same rows cost several times more on a busy machine, and a plan is only as good as its prices. A file is TOML
//! and may be written or changed by hand, for instance to ask what twice the memory would bring.
//!
//! ```text
//!   hosts × ranks_per_host ranks, each with memory_mib_per_rank
//!   [compute]          how fast one rank reads, writes and multiplies while the others of its host do too
//!   [in_host]          an exchange between the ranks of a host
//!   [cross_host]       the same between hosts
//! ```

use thiserror::Error;
use toml::de::DeTable;

use crate::{
    config::{
        At, JobError, WireFormat,
        effective::print_table,
        error::Problem,
        keys::{Keys, Reader, Value, section},
    },
    description::named,
    model::Precision,
};

section! {
    /// A cluster: its shape, its memory and its measured rates.
    pub struct Topology {
        /// Machines.
        pub hosts: usize = 1,
        /// Ranks on each.
        pub ranks_per_host: usize,
        /// Memory for the tables, their state and all buffers of one rank, in MiB.
        pub memory_mib_per_rank: u64,
        /// What one rank computes.
        pub compute: Compute,
        /// An exchange between ranks of one host.
        pub in_host: Link,
        /// An exchange between hosts; may be left out when there is only one.
        pub cross_host: Option<Link> = None,
    }
}

section! {
    /// What one rank computes while the other ranks of its host are as busy.
    pub struct Compute {
        /// Bytes that stay in the nearest large cache; a smaller table is read from there.
        pub cache_bytes: u64,
        /// Bytes copied in a second, from memory to memory.
        pub copy_bytes_per_second: f64,
        /// Nanoseconds of one rank for the metrics of one sample and task, of which the first rank does all.
        pub judge_ns: f64 = 0.0,
        /// Processors that a rank has when all ranks use as many as they can: 0.5 where four ranks share two cores.
        /// All other rates here are of processor time.
        pub processors_per_rank: f64 = 1.0,
        /// Nanoseconds to read a column of a sample, beside the step where there are processors for it.
        pub read_column_ns: f64 = 0.0,
        /// Nanoseconds to read an id.
        pub read_id_ns: f64 = 0.0,
        /// Rows by their width, at least one, the narrowest first.
        pub row: Vec<RowRates>,
        /// Matrix products by the width of their layers, at least one, the narrowest first.
        pub product: Vec<ProductRates>,
        /// Vectors that travel encoded, by their format. A format that is not here has no price.
        pub codec: Vec<CodecRates> = Vec::new(),
    }
}

section! {
    /// Nanoseconds of one rank for a row of this many 32-bit floats.
    pub struct RowRates {
        /// Floats in the row.
        pub floats: usize,
        /// Pooling an id whose row is in the cache.
        pub pool_near_ns: f64,
        /// Pooling an id whose row is somewhere in memory.
        pub pool_far_ns: f64,
        /// Sorting an id in and adding its gradient to its row's.
        pub merge_ns: f64,
        /// Moving a row that is in the cache, once its gradient is merged.
        pub update_near_ns: f64,
        /// Moving a row that is somewhere in memory.
        pub update_far_ns: f64,
    }
}

section! {
    /// Operations a second of one rank in layers of this width, forward and backward.
    pub struct ProductRates {
        /// The root of inputs times outputs.
        pub width: usize,
        /// With `f32` operands.
        pub f32_flops_per_second: f64,
        /// With `bf16` operands.
        pub bf16_flops_per_second: f64,
        /// Pairwise dots of vectors of this width.
        pub dots_flops_per_second: f64,
        /// In `f32` layers between this width and 64: what is narrow on one side only. 0: as in layers of one width.
        pub narrow_flops_per_second: f64 = 0.0,
    }
}

section! {
    /// Nanoseconds of one rank for a float that travels in another format, from memory to memory.
    #[derive(Copy)]
    pub struct CodecRates {
        /// How vectors or gradients travel.
        pub format: WireFormat,
        /// Writing it into a message.
        pub encode_ns: f64,
        /// Reading it out of one.
        pub decode_ns: f64,
    }
}

section! {
    /// What an exchange between all ranks costs.
    #[derive(Copy)]
    pub struct Link {
        /// Seconds of an exchange without content.
        pub latency_seconds: f64,
        /// Bytes a second that one rank sends, while all others do too.
        pub bytes_per_second: f64,
        /// The part of an exchange that hides behind computing that takes as long; the rest is work that takes the
        /// processor from it.
        pub hidden_share: f64 = 1.0,
        /// Seconds that one more message to each of the others, and one from it, take from a rank that computes meanwhile, as
        /// all others do: threads are woken, and take the processor from those who compute.
        pub message_seconds: f64 = 0.0,
    }
}

/// Why a topology was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// The text is not TOML.
    #[error("the topology is not valid TOML{at}: {problem}")]
    Syntax {
        /// Where.
        at: At,
        /// What the TOML reader says.
        problem: String,
    },
    /// A key is wrong, unknown or missing.
    #[error(transparent)]
    Key(JobError),
}

impl Topology {
    /// Reads and checks a topology file's text.
    ///
    /// # Errors
    /// The first mistake, with its line, its key, its value and what to do.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        let document = DeTable::parse(text).map_err(|error| TopologyError::Syntax {
            at: error.span().map_or_else(At::default, |span| At::of(text, span.start)),
            problem: error.message().to_owned(),
        })?;
        let mut reader = Reader::new(text, Some(document.get_ref()), 0..0, String::new());
        let topology = <Topology as Keys>::take(&mut reader).and_then(checked);
        topology.map_err(|problem| TopologyError::Key(named(problem.locate(text, &document), "the topology")))
    }

    /// The topology as TOML that [`Topology::parse`] reads back as the same topology.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        print_table(&mut out, "", &self.write());
        out
    }

    /// All ranks.
    pub fn rank_count(&self) -> usize {
        self.hosts * self.ranks_per_host
    }

    /// The host of a rank: ranks of one host follow each other.
    pub fn host_of(&self, rank: usize) -> usize {
        rank / self.ranks_per_host
    }

    /// Bytes that a rank may hold.
    pub fn memory_bytes_per_rank(&self) -> u64 {
        self.memory_mib_per_rank << 20
    }

    /// The keys of prices that are not in the file, as in those that were written before they were measured; what they
    /// stand for counts as nothing.
    pub fn without_price(&self) -> Vec<&'static str> {
        let links = [Some(self.in_host), self.cross_host];
        let sends_for_nothing = links.into_iter().flatten().all(|link| link.message_seconds == 0.0);
        let is_narrow_as_wide = self.compute.product.iter().all(|one| one.narrow_flops_per_second == 0.0);
        let missing = [
            ("compute.codec", self.compute.codec.is_empty()),
            ("compute.product.narrow_flops_per_second", is_narrow_as_wide),
            ("message_seconds", sends_for_nothing && self.rank_count() > 1),
        ];
        missing.into_iter().filter(|(_, is_missing)| *is_missing).map(|(key, _)| key).collect()
    }

    /// The link between hosts; with one host nothing crosses it.
    pub fn between_hosts(&self) -> Link {
        self.cross_host.unwrap_or(self.in_host)
    }
}

impl Compute {
    /// The part of the time in which a rank has a processor while all compute.
    pub fn processor_share(&self) -> f64 {
        self.processors_per_rank.min(1.0)
    }

    /// Seconds that reading takes from computing, where both together ask for more processors than a rank has; of
    /// `compute_seconds` while all ranks compute, and `read_seconds` of one processor.
    pub fn read_seconds(&self, compute_seconds: f64, read_seconds: f64) -> f64 {
        let work = compute_seconds * self.processor_share() + read_seconds;
        (work / self.processors_per_rank - compute_seconds).max(0.0)
    }

    /// Seconds to copy some bytes from memory to memory, while all ranks do.
    pub fn copy_seconds(&self, bytes: f64) -> f64 {
        bytes / (self.copy_bytes_per_second * self.processor_share())
    }

    /// Nanoseconds to encode and to decode a float, while all ranks compute; nothing where that was not measured, and where
    /// floats travel as they are: that is part of an exchange.
    pub fn codec(&self, format: WireFormat) -> (f64, f64) {
        let rates = self.codec.iter().find(|rates| rates.format == format && format != WireFormat::F32);
        rates.map_or((0.0, 0.0), |rates| {
            (rates.encode_ns / self.processor_share(), rates.decode_ns / self.processor_share())
        })
    }

    /// The rates for rows of `floats`, between the two nearest widths that were measured, while all ranks compute.
    pub fn rows(&self, floats: f64) -> RowRates {
        let (low, high, share) = between(&self.row, |row| row.floats as f64, floats);
        let at = |of: fn(&RowRates) -> f64| {
            (of(low) + (of(high) - of(low)) * share).max(of(low) * 0.1) / self.processor_share()
        };
        RowRates {
            floats: floats as usize,
            pool_near_ns: at(|row| row.pool_near_ns),
            pool_far_ns: at(|row| row.pool_far_ns),
            merge_ns: at(|row| row.merge_ns),
            update_near_ns: at(|row| row.update_near_ns),
            update_far_ns: at(|row| row.update_far_ns),
        }
    }

    /// The rates for layers of `width`, between the two nearest widths that were measured, while all ranks compute.
    pub fn products(&self, width: f64) -> ProductRates {
        // Beyond the widest layer that was measured a product is as fast as there.
        let last = self.product.last().map_or(width, |widest| widest.width as f64);
        let (low, high, share) = between(&self.product, |product| product.width as f64, width.min(last));
        let at = |of: fn(&ProductRates) -> f64| {
            (of(low) + (of(high) - of(low)) * share).max(of(low) * 0.1) * self.processor_share()
        };
        ProductRates {
            width: width as usize,
            f32_flops_per_second: at(|product| product.f32_flops_per_second),
            bf16_flops_per_second: at(|product| product.bf16_flops_per_second),
            dots_flops_per_second: at(|product| product.dots_flops_per_second),
            narrow_flops_per_second: at(|product| product.narrow_flops_per_second),
        }
    }

    /// Operations a second in layers from `inputs` to `outputs`, while all ranks compute. A layer that is narrow on one side
    /// fills the lanes of a processor only partly, however wide the other is.
    pub fn layer_flops_per_second(&self, inputs: usize, outputs: usize, precision: Precision) -> f64 {
        let of = |rates: &ProductRates| match precision {
            Precision::F32 => rates.f32_flops_per_second,
            Precision::Bf16 => rates.bf16_flops_per_second,
        };
        let middle = self.products(((inputs * outputs) as f64).sqrt());
        let (narrow, wide) = (inputs.min(outputs), inputs.max(outputs));
        let side = self.products(narrow as f64);
        if narrow >= NARROW_OTHER || wide < NARROW_OTHER || side.narrow_flops_per_second <= 0.0 {
            return of(&middle);
        }
        side.narrow_flops_per_second * of(&side) / side.f32_flops_per_second
    }
}

/// The wide side of layers whose other side is narrow.
pub const NARROW_OTHER: usize = 64;

/// The two points around `x`, and how far from the first to the second it is; beyond the ends, on the line through
/// the last two.
fn between<T>(points: &[T], place: fn(&T) -> f64, x: f64) -> (&T, &T, f64) {
    let above = points.iter().position(|point| place(point) >= x).unwrap_or(points.len() - 1);
    let (low, high) = (&points[above.saturating_sub(1)], &points[above.max(1).min(points.len() - 1)]);
    let width = place(high) - place(low);
    (low, high, if width > 0.0 { (x - place(low)) / width } else { 0.0 })
}

fn checked(topology: Topology) -> Result<Topology, Problem> {
    let counts = [
        ("hosts", topology.hosts as u64),
        ("ranks_per_host", topology.ranks_per_host as u64),
        ("memory_mib_per_rank", topology.memory_mib_per_rank),
    ];
    if let Some((key, count)) = counts.into_iter().find(|(_, count)| *count == 0) {
        return Err(Problem::value(key, count, "it must be at least 1"));
    }
    let compute = &topology.compute;
    let costs = [
        ("judge_ns", compute.judge_ns),
        ("read_column_ns", compute.read_column_ns),
        ("read_id_ns", compute.read_id_ns),
    ];
    if let Some((key, cost)) = costs.into_iter().find(|(_, cost)| *cost < 0.0) {
        return Err(Problem::value(&format!("compute.{key}"), cost, "it must not be negative"));
    }
    let mut rates = vec![
        ("compute.copy_bytes_per_second".to_owned(), compute.copy_bytes_per_second),
        ("compute.processors_per_rank".to_owned(), compute.processors_per_rank),
    ];
    for (index, row) in compute.row.iter().enumerate() {
        let keys = [
            ("pool_near_ns", row.pool_near_ns),
            ("pool_far_ns", row.pool_far_ns),
            ("merge_ns", row.merge_ns),
            ("update_near_ns", row.update_near_ns),
            ("update_far_ns", row.update_far_ns),
        ];
        rates.extend(keys.map(|(key, rate)| (format!("compute.row[{index}].{key}"), rate)));
    }
    for (index, product) in compute.product.iter().enumerate() {
        let keys = [
            ("f32_flops_per_second", product.f32_flops_per_second),
            ("bf16_flops_per_second", product.bf16_flops_per_second),
            ("dots_flops_per_second", product.dots_flops_per_second),
        ];
        rates.extend(keys.map(|(key, rate)| (format!("compute.product[{index}].{key}"), rate)));
        if product.narrow_flops_per_second < 0.0 {
            let path = format!("compute.product[{index}].narrow_flops_per_second");
            return Err(Problem::value(&path, product.narrow_flops_per_second, "it must not be negative"));
        }
    }
    checked_codecs(&compute.codec)?;
    let links = [("in_host", Some(topology.in_host)), ("cross_host", topology.cross_host)];
    for (name, link) in links.into_iter().filter_map(|(name, link)| Some((name, link?))) {
        rates.push((format!("{name}.bytes_per_second"), link.bytes_per_second));
        checked_link(name, link)?;
    }
    if let Some((path, rate)) = rates.into_iter().find(|(_, rate)| *rate <= 0.0) {
        return Err(Problem::value(&path, rate, "a rate must be above zero"));
    }
    rising("compute.row", "floats", compute.row.iter().map(|row| row.floats))?;
    rising("compute.product", "width", compute.product.iter().map(|product| product.width))?;
    if topology.hosts > 1 && topology.cross_host.is_none() {
        return Err(Problem::missing(
            "cross_host",
            "with several hosts it says what an exchange between them costs",
        ));
    }
    Ok(topology)
}

fn checked_codecs(codecs: &[CodecRates]) -> Result<(), Problem> {
    for (index, codec) in codecs.iter().enumerate() {
        for (key, cost) in [("encode_ns", codec.encode_ns), ("decode_ns", codec.decode_ns)] {
            if cost < 0.0 {
                let path = format!("compute.codec[{index}].{key}");
                return Err(Problem::value(&path, cost, "it must not be negative"));
            }
        }
    }
    Ok(())
}

fn checked_link(name: &str, link: Link) -> Result<(), Problem> {
    let costs = [("latency_seconds", link.latency_seconds), ("message_seconds", link.message_seconds)];
    if let Some((key, cost)) = costs.into_iter().find(|(_, cost)| *cost < 0.0) {
        return Err(Problem::value(&format!("{name}.{key}"), cost, "it must not be negative"));
    }
    if !(0.0..=1.0).contains(&link.hidden_share) {
        let path = format!("{name}.hidden_share");
        return Err(Problem::value(&path, link.hidden_share, "it must be between 0 and 1"));
    }
    Ok(())
}

/// Points must be there, and the narrowest first.
fn rising(list: &str, key: &str, places: impl Iterator<Item = usize>) -> Result<(), Problem> {
    let mut before = 0;
    for (index, place) in places.enumerate() {
        if place <= before {
            let path = format!("{list}[{index}].{key}");
            return Err(Problem::value(
                &path,
                place,
                format!("it must be above {before}, the narrowest come first"),
            ));
        }
        before = place;
    }
    if before == 0 {
        return Err(Problem::missing(list, "measure with `campanile bench topology`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
ranks_per_host = 2
memory_mib_per_rank = 1024
[compute]
cache_bytes = 1000000
copy_bytes_per_second = 8e9
[[compute.row]]
floats = 16
pool_near_ns = 4.0
pool_far_ns = 20.0
merge_ns = 10.0
update_near_ns = 8.0
update_far_ns = 30.0
[[compute.row]]
floats = 64
pool_near_ns = 8.0
pool_far_ns = 40.0
merge_ns = 20.0
update_near_ns = 16.0
update_far_ns = 60.0
[[compute.product]]
width = 64
f32_flops_per_second = 2e10
bf16_flops_per_second = 2e10
dots_flops_per_second = 1e10
[in_host]
latency_seconds = 2e-6
bytes_per_second = 4e9
";

    #[test]
    fn what_is_written_reads_back() {
        let topology = Topology::parse(TEXT).unwrap();
        assert_eq!(topology.rank_count(), 2);
        assert_eq!(Topology::parse(&topology.to_toml()), Ok(topology));
    }

    #[test]
    fn rates_lie_between_the_measured_widths() {
        let compute = Topology::parse(TEXT).unwrap().compute;
        assert_eq!(compute.rows(16.0).pool_far_ns, 20.0);
        assert_eq!(compute.rows(40.0).pool_far_ns, 30.0);
        assert_eq!(compute.rows(112.0).pool_far_ns, 60.0);
        assert!(compute.rows(1.0).pool_far_ns > 0.0);
        assert_eq!(compute.products(1000.0).f32_flops_per_second, 2e10);
    }

    #[test]
    fn ranks_that_share_cores_compute_as_much_slower() {
        let mut compute = Topology::parse(TEXT).unwrap().compute;
        assert_eq!(compute.read_seconds(3.0, 1.0), 1.0, "one processor does both, one after the other");
        compute.processors_per_rank = 0.5;
        assert_eq!(compute.rows(16.0).pool_far_ns, 40.0);
        assert_eq!(compute.products(64.0).f32_flops_per_second, 1e10);
        assert_eq!(compute.copy_seconds(8e9), 2.0);
        assert_eq!(compute.read_seconds(6.0, 1.0), 2.0);
        compute.processors_per_rank = 2.0;
        assert_eq!(compute.rows(16.0).pool_far_ns, 20.0);
        assert_eq!(compute.read_seconds(3.0, 1.0), 0.0, "there is a processor for it");
        assert_eq!(compute.read_seconds(3.0, 5.0), 1.0, "and no more than one");
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let error = |from: &str, to: &str| Topology::parse(&TEXT.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            error("ranks_per_host = 2", "ranks_per_hots = 2"),
            "unknown key `ranks_per_hots` in the topology at line 1, column 1: did you mean `ranks_per_host`?"
        );
        assert_eq!(
            error("pool_far_ns = 40.0", "pool_far_ns = 0.0"),
            "`pool_far_ns` in [[compute.row]] number 2 at line 16, column 15 is 0: a rate must be above zero"
        );
        assert!(error("cache_bytes", "processors_per_rank = 0.0\ncache_bytes").contains("is 0: a rate must"));
        assert!(error("latency_seconds", "hidden_share = 1.5\nlatency_seconds").contains("between 0 and 1"));
        assert!(error("floats = 64", "floats = 8").contains("it must be above 16"));
        assert!(error("[in_host]", "[in_host").contains("the topology is not valid TOML at line 25"));
        let several = error("ranks_per_host = 2", "hosts = 2\nranks_per_host = 2");
        assert!(several.starts_with("missing key `cross_host` in the topology"), "{several}");
    }
}
