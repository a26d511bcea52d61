//! A model as the simulator sees it: what a step asks of tables, network and links, without any data.
//!
//! Published models are described by a few figures (tables, dims, ids of a sample, layers or operations). That is all a
//! simulator needs, and often all there is.

use crate::{
    config::{
        error::Problem,
        keys::{choice, section, words},
    },
    description::{self, DescriptionError, above_zero},
    model::CrossRank,
};

section! {
    /// A model, described for the simulator.
    pub struct Workload {
        /// What it is, for titles.
        pub name: String,
        /// Samples of one rank in a step.
        pub local_batch: usize,
        /// Tables, alike ones together.
        pub table: Vec<TableGroup>,
        /// Bytes of an element of a stored row.
        pub row_element_bytes: f64 = 4.0,
        /// Bytes of optimizer state beside every row.
        pub state_bytes_per_row: f64 = 4.0,
        /// Bytes of optimizer state beside every element.
        pub state_bytes_per_element: f64 = 0.0,
        /// Bytes of an id on its way.
        pub id_bytes: f64 = 8.0,
        /// Bytes of a float of vectors and gradients on their way.
        pub wire_bytes: f64 = 2.0,
        /// How uneven ids are: the n-th most frequent row is named in proportion to n to the power of minus this. It decides
        /// how much of the traffic the fastest memory serves, where the tables do not fit there.
        pub zipf_exponent: f64 = 1.05,
        /// The dense network.
        pub network: DenseNetwork,
        /// What a tower does with its vectors.
        pub module: ModuleKind = ModuleKind::None,
    }
}

section! {
    /// Tables that are alike; each has one feature.
    pub struct TableGroup {
        /// How many.
        pub count: usize = 1,
        /// Rows of each.
        pub rows: u64,
        /// Floats in a row.
        pub dim: usize,
        /// Ids of a sample in each.
        pub ids: f64 = 1.0,
        /// How they are spread.
        pub split: SplitKind = SplitKind::Tables,
    }
}

words! {
    /// How tables are spread over the ranks that share them.
    pub enum SplitKind {
        /// Whole tables or columns: pooled vectors travel.
        Tables,
        /// By rows: every rank pools what it has for all samples, and sums are formed over the ranks.
        Rows,
    }
}

choice! {
    /// The dense network.
    pub enum DenseNetwork {
        /// Bottom MLP, pairwise dots, top MLP.
        Dlrm {
            /// Dense inputs.
            dense_count: usize,
            /// Widths of the bottom MLP; its last is that of all vectors.
            bottom: Vec<usize>,
            /// Hidden widths of the top MLP.
            top: Vec<usize>,
        },
        /// Bottom MLP, low-rank or full cross layers, deep MLP on top of them.
        Dcn {
            /// Dense inputs.
            dense_count: usize,
            /// Widths of the bottom MLP.
            bottom: Vec<usize>,
            /// Cross layers.
            cross_layers: usize = 3,
            /// Full matrices or a product of two thin ones.
            cross_rank: CrossRank = CrossRank::Full,
            /// Hidden widths of the deep MLP.
            deep: Vec<usize>,
        },
        /// Only its cost is known. Towers leave it as it is.
        Counted {
            /// Million operations of a sample, forward only; training is counted three times that.
            forward_mflop: f64,
            /// Million dense weights.
            million_weights: f64,
        },
    }
}

choice! {
    /// What a tower does with its features' vectors, to make them shorter by the compression ratio.
    #[derive(Copy)]
    pub enum ModuleKind {
        /// Nothing is known of it, and it is not counted.
        None,
        /// Every vector is projected by a matrix that the tower's features share.
        Project,
        /// A small cross net on the tower's vectors side by side, then a projection of all of it.
        Cross {
            /// Cross layers.
            layers: usize = 1,
            /// Full matrices or a product of two thin ones.
            rank: CrossRank = CrossRank::Full,
        },
    }
}

impl Workload {
    /// Reads and checks a description's text.
    ///
    /// # Errors
    /// The first mistake, with its line, its key, its value and what to do.
    pub fn parse(text: &str) -> Result<Workload, DescriptionError> {
        description::parse(text, "the model", checked)
    }

    /// Whether a text means to describe a model and not a job, which has `[run]`.
    pub fn is_meant(text: &str) -> bool {
        !description::has_key(text, "run")
    }

    /// Features, one for each table.
    pub fn feature_count(&self) -> usize {
        self.table.iter().map(|group| group.count).sum()
    }

    /// Weights in tables.
    pub fn table_weights(&self) -> f64 {
        self.table.iter().map(|group| group.count as f64 * group.rows as f64 * group.dim as f64).sum()
    }

    /// Bytes of all rows and their state.
    pub fn table_bytes(&self) -> f64 {
        let row = |dim: f64| {
            dim * (self.row_element_bytes + self.state_bytes_per_element) + self.state_bytes_per_row
        };
        self.table.iter().map(|group| group.count as f64 * group.rows as f64 * row(group.dim as f64)).sum()
    }
}

fn checked(workload: Workload) -> Result<Workload, Problem> {
    if workload.local_batch == 0 {
        return Err(Problem::value("local_batch", 0, "a rank needs at least one sample"));
    }
    if workload.table.is_empty() {
        return Err(Problem::missing("table", "it says which tables there are; write [[table]]"));
    }
    above_zero(&[
        ("row_element_bytes", workload.row_element_bytes),
        ("id_bytes", workload.id_bytes),
        ("wire_bytes", workload.wire_bytes),
    ])?;
    let not_negative = [
        ("state_bytes_per_row", workload.state_bytes_per_row),
        ("state_bytes_per_element", workload.state_bytes_per_element),
        ("zipf_exponent", workload.zipf_exponent),
    ];
    if let Some((key, value)) = not_negative.into_iter().find(|(_, value)| *value < 0.0) {
        return Err(Problem::value(key, value, "it must not be negative"));
    }
    for (index, group) in workload.table.iter().enumerate() {
        let counts = [("count", group.count as u64), ("rows", group.rows), ("dim", group.dim as u64)];
        if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Problem::value(&format!("table[{index}].{key}"), 0, "it must be at least 1"));
        }
        above_zero(&[(&format!("table[{index}].ids"), group.ids)])?;
    }
    match &workload.network {
        DenseNetwork::Counted { forward_mflop, million_weights } => above_zero(&[
            ("network.forward_mflop", *forward_mflop),
            ("network.million_weights", *million_weights),
        ])?,
        DenseNetwork::Dlrm { bottom, .. } => {
            let dims: Vec<usize> = workload.table.iter().map(|group| group.dim).collect();
            if let Some(other) = dims.iter().find(|dim| bottom.last() != Some(*dim)) {
                let advice = format!("its last width meets the vectors, so it must be their dim, {other}");
                return Err(Problem::value("network.bottom", format!("{bottom:?}"), advice));
            }
        }
        DenseNetwork::Dcn { .. } => {}
    }
    Ok(workload)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
name = \"small\"
local_batch = 64
network = { kind = \"dlrm\", dense_count = 4, bottom = [32, 16], top = [64] }
[[table]]
count = 8
rows = 1000
dim = 16
";

    #[test]
    fn bytes_are_those_of_rows_and_state() {
        let workload = Workload::parse(TEXT).unwrap();
        assert_eq!(workload.feature_count(), 8);
        assert_eq!(workload.table_weights(), 128_000.0);
        assert_eq!(workload.table_bytes(), 8_000.0 * (64.0 + 4.0));
        assert!(Workload::is_meant(TEXT) && !Workload::is_meant("[run]\nbatch_size = 4\n"));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let error = |from: &str, to: &str| Workload::parse(&TEXT.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            error("dim = 16", "dim = 8"),
            "`bottom` in [network] at line 3, column 54 is [32, 16]: its last width meets the vectors, so it must be \
             their dim, 8"
        );
        assert_eq!(
            error("rows = 1000", "rows = 0"),
            "`rows` in [[table]] number 1 at line 6, column 8 is 0: it must be at least 1"
        );
        assert!(error("local_batch", "local_bach").contains("did you mean `local_batch`?"));
        assert!(error("\"dlrm\"", "\"dlrn\"").contains("did you mean \"dlrm\"?"));
        assert!(error("name = ", "name = 3 #").contains("text in quotes"));
    }
}
