//! Tables of a student that follow its teacher.
//!
//! A teacher's word may carry its *embedding* `e` of a sample: its last hidden vector, projected to a few floats. A student
//! can have no word of the sample that it is about to score, but it can remember what the teacher said of the sample's ids
//! before. So each feature that is named here has a second table of as many floats, looked up by the same id:
//!
//! ```text
//!   v  the row that was looked up: an input of the network, like any vector
//!   the row's gradient is that of  1/2 f |v - e|^2 ,  with f the fading of an old word; none where there is no embedding
//! ```
//!
//! The network's own gradient ends at `v`. A row is then a running picture of what the teacher said of this id on earlier
//! samples; the present sample's word moves it only after the prediction. In everything else it is a table of the student:
//! it is sharded, kept, published, served and exported as such, and serving needs nothing beside it.
//!
//! A weight on the term is not there: every optimizer but plain steps divides a constant factor out again, and for plain
//! steps it is the learning rate.

use crate::{
    Batch,
    config::keys::section,
    distil::Distil,
    model::{FeatureSpec, ModelSpec, Pooling, RowFormat, RowInit, TableId, TableSpec},
    optimizer::SparseOptimizer,
};

/// The most floats of a teacher's embedding.
pub const EMBEDDING_FLOATS_MAX: usize = 256;

section! {
    /// Tables that follow the teacher's embedding, one for each feature named here, looked up by its id. They are inputs of
    /// the student in training and in serving. `docs/distillation.md` is the guide.
    #[serde(deny_unknown_fields)]
    pub struct Follow {
        /// Features with one id a sample, such as the user and the item.
        pub features: Vec<String>,
        /// Floats of the teacher's embedding, and so of a row.
        pub floats: usize = 16,
        /// How rows move. Plain and Adam's steps keep following a teacher that moves; AdaGrad's become small.
        pub optimizer: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 },
        /// The rate at which rows follow; L2 and the limit of a row's norm in `[run.sparse]` are not for them.
        pub learning_rate: f32 = 0.3,
        /// How a row is stored.
        pub format: RowFormat = RowFormat::F32,
    }
}

impl Default for Follow {
    /// Nobody follows.
    fn default() -> Follow {
        Follow {
            features: Vec::new(),
            floats: 16,
            optimizer: SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 },
            learning_rate: 0.3,
            format: RowFormat::F32,
        }
    }
}

impl Follow {
    /// Whether no table follows.
    pub fn is_none(&self) -> bool {
        self.features.is_empty()
    }

    /// Floats of the embedding that the job has a use for; 0 for none.
    pub fn floats_wanted(&self) -> usize {
        if self.is_none() { 0 } else { self.floats }
    }
}

/// The name of the table and of the vector that follow the teacher by a feature's ids.
pub fn follower_name(feature: &str) -> String {
    format!("teacher.{feature}")
}

impl ModelSpec {
    /// Adds a table and a vector that follow the teacher by the ids of the feature at this place.
    pub fn add_follower(&mut self, feature: usize, follow: &Follow) {
        let name = follower_name(&self.features[feature].name);
        let table = TableId(self.tables.len() as u32);
        self.tables.push(TableSpec {
            name: name.clone(),
            row_count: self.table_of(feature).row_count,
            dim: follow.floats,
            format: follow.format,
            init: RowInit::Zeros,
        });
        self.features.push(FeatureSpec { name, table, pooling: Pooling::Sum });
        self.followers.push(feature);
    }

    /// Features that the data has: the first ones. The others follow a teacher by ids of these.
    pub fn data_features(&self) -> usize {
        self.features.len() - self.followers.len()
    }

    /// The feature whose ids a feature is looked up by: itself, unless it follows a teacher.
    pub fn ids_of(&self, feature: usize) -> usize {
        feature.checked_sub(self.data_features()).map_or(feature, |place| self.followers[place])
    }

    /// The name of the feature by whose ids the vector of this name is looked up.
    pub fn ids_name<'a>(&'a self, vector: &'a str) -> &'a str {
        let follower = (self.data_features()..self.features.len())
            .find(|feature| self.features[*feature].name == vector);
        follower.map_or(vector, |feature| &self.features[self.ids_of(feature)].name)
    }

    /// Whether a table's rows follow a teacher.
    pub fn follows(&self, table: usize) -> bool {
        self.features[self.data_features()..].iter().any(|feature| feature.table.0 as usize == table)
    }

    /// Where the vectors that follow a teacher stand in the pooled row.
    pub fn followed_columns(&self) -> std::ops::Range<usize> {
        let offsets = self.pooled_offsets();
        offsets[self.data_features()]..offsets[self.features.len()]
    }
}

impl Batch {
    /// The teacher's embedding of a sample, if it gave one.
    pub fn teacher_embedding(&self, sample: usize) -> Option<&[f32]> {
        let floats = self.teacher_embeddings.len().checked_div(self.sample_count).unwrap_or(0);
        let embedding = self.teacher_embeddings.get(sample * floats..(sample + 1) * floats)?;
        embedding.first().filter(|first| !first.is_nan()).map(|_| embedding)
    }

    /// The weight of the pull of a sample's embedding: the sample's own, times the fading of the word, times `scale`.
    pub fn following_weight(&self, distil: &Distil, sample: usize, scale: f64) -> f64 {
        let own = self.weights.get(sample).map_or(1.0, |weight| f64::from(*weight));
        let delay = *self.teacher_delays.get(sample).unwrap_or(&f32::NAN);
        own * scale * distil.fading(delay)
    }
}
