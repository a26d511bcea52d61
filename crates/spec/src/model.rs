//! What a model is: features, tables, tasks and the network on top, fully filled in.

use serde::{Deserialize, Serialize};

use crate::{
    config::keys::{choice, words},
    towers::Towers,
};

/// The place of a table in [`ModelSpec::tables`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableId(pub u32);

/// A model, described; every room reads the same one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Number of dense inputs.
    pub dense_count: usize,
    /// Sparse features, in the order of the batch's bags.
    pub features: Vec<FeatureSpec>,
    /// Tables; several features may share one.
    pub tables: Vec<TableSpec>,
    /// What is predicted.
    pub tasks: Vec<TaskSpec>,
    /// The dense network.
    pub network: NetworkSpec,
    /// Whether tasks share the layers above the interaction.
    pub heads: Heads,
    /// The arithmetic of the dense network.
    pub precision: Precision,
    /// Which features belong together; a description from before towers has none.
    #[serde(default, skip_serializing_if = "Towers::is_empty")]
    pub towers: Towers,
    /// For each of the last features, those that follow a teacher: the place of the feature whose ids they are looked up by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub followers: Vec<usize>,
}

/// One sparse feature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// Its name in the data.
    pub name: String,
    /// Where its rows are.
    pub table: TableId,
    /// How the rows of a bag become one vector.
    pub pooling: Pooling,
}

words! {
    /// How a bag is pooled. An empty bag gives zeros.
    pub enum Pooling {
        /// The sum of the rows.
        Sum,
        /// The sum divided by the number of rows.
        Mean,
        /// The sum of the rows times the per-id weights of the data.
        Weighted,
    }
}

/// One embedding table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Its name, unique in the model; a row's first value depends on it, not on the table's place.
    pub name: String,
    /// Number of rows, at most `u32::MAX`.
    pub row_count: u64,
    /// Floats in a row.
    pub dim: usize,
    /// How a row is stored.
    pub format: RowFormat,
    /// A row's first value.
    pub init: RowInit,
}

words! {
    /// How a row is stored. Arithmetic is always in `f32`.
    pub enum RowFormat {
        /// 32-bit floats.
        F32,
        /// IEEE half precision, stochastically rounded on update.
        F16,
        /// bfloat16, stochastically rounded on update.
        Bf16,
    }
}

choice! {
    /// A row's first value: a function of (seed, table name, row, element) only.
    #[derive(Copy)]
    pub enum RowInit {
        /// All zeros.
        Zeros,
        /// Uniform in `[-bound, bound)`.
        Uniform {
            /// Half the width.
            bound: f32,
        },
        /// Normal with mean zero.
        Normal {
            /// Standard deviation.
            deviation: f32,
        },
    }
}

/// One predicted label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Its name in the data.
    pub name: String,
    /// Its weight in the loss.
    pub weight: f32,
}

choice! {
    /// The dense network between pooled rows and logits.
    pub enum NetworkSpec {
        /// Bottom MLP on the dense inputs, pairwise dots of all vectors, top MLP. The interaction's width is the
        /// last of `bottom`; features of another dim are projected to it.
        Dlrm {
            /// Widths of the bottom MLP; its last is the interaction's width. Empty is allowed when there are no
            /// dense inputs: vectors then meet at the widest dim.
            bottom: Vec<usize>,
            /// Hidden widths of the top MLP; the logit's layer is added.
            top: Vec<usize>,
        },
        /// DCN-v2: cross layers on the concatenation of the bottom MLP's output and all vectors, and a deep MLP.
        Dcn {
            /// Widths of the bottom MLP; empty takes the dense inputs as they are.
            bottom: Vec<usize> = Vec::new(),
            /// Number of cross layers.
            cross_layers: usize = 3,
            /// Full matrices or a product of two thin ones.
            cross_rank: CrossRank = CrossRank::Full,
            /// Deep MLP behind the cross net or beside it.
            structure: DcnStructure = DcnStructure::Parallel,
            /// Hidden widths of the deep MLP.
            deep: Vec<usize>,
        },
        /// A plain MLP on the concatenation of dense inputs and vectors.
        Mlp {
            /// Hidden widths.
            hidden: Vec<usize>,
        },
        /// Two towers for retrieval: an MLP on the user's inputs, an MLP on the item's, and for each task the dot of a
        /// vector of each. Nothing else of the two meets, so the vectors of all items can be computed beforehand.
        TwoTower {
            /// Features of the item's side, by name; all others are the user's.
            item_features: Vec<String>,
            /// Places of dense inputs of the item's side, from 0; all others are the user's.
            item_dense: Vec<usize> = Vec::new(),
            /// Hidden widths of the user's tower.
            user: Vec<usize>,
            /// Hidden widths of the item's tower.
            item: Vec<usize>,
            /// Floats of the vectors that meet.
            width: usize = 16,
        },
        /// Logistic regression: tables of dim 1, a weight per dense input, a bias.
        LogisticRegression,
        /// Factorization machine: of a row's `dim` floats the first is its linear weight, the others its factors;
        /// each dense input has a weight and no factors.
        FactorizationMachine,
    }
}

/// The matrices of a cross layer `x0 * (W x + b) + x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrossRank {
    /// A square matrix.
    Full,
    /// `W = U V` through this many columns.
    Low(usize),
}

words! {
    /// Where DCN's deep MLP stands.
    pub enum DcnStructure {
        /// On top of the cross net's output.
        Stacked,
        /// Beside it; the two outputs are concatenated for the logit.
        Parallel,
    }
}

words! {
    /// How several tasks use the layers above the interaction.
    pub enum Heads {
        /// One top MLP, one last layer with an output per task.
        Shared,
        /// A top MLP of its own for every task.
        Separate,
    }
}

words! {
    /// The arithmetic of the dense network; weights, sums and updates are `f32` in both.
    pub enum Precision {
        /// `f32` operands.
        F32,
        /// Operands of every matrix product rounded to bfloat16, sums in `f32`.
        Bf16,
    }
}

impl ModelSpec {
    /// The table of a feature.
    pub fn table_of(&self, feature: usize) -> &TableSpec {
        &self.tables[self.features[feature].table.0 as usize]
    }

    /// Width of all pooled vectors side by side, in feature order.
    pub fn pooled_width(&self) -> usize {
        (0..self.features.len()).map(|feature| self.table_of(feature).dim).sum()
    }

    /// Where each feature's vector starts in the pooled row, and one past the last.
    pub fn pooled_offsets(&self) -> Vec<usize> {
        let mut offsets = vec![0];
        for feature in 0..self.features.len() {
            offsets.push(offsets[feature] + self.table_of(feature).dim);
        }
        offsets
    }
}

impl TableSpec {
    /// A number for the table that follows from its name alone (FNV-1a), for seeding.
    pub fn key(&self) -> u64 {
        self.name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

impl RowFormat {
    /// Bytes of one element.
    pub fn element_bytes(self) -> usize {
        match self {
            RowFormat::F32 => 4,
            RowFormat::F16 | RowFormat::Bf16 => 2,
        }
    }
}
