//! Towers: features that belong together, and what becomes of their vectors before they meet the others'.
//!
//! ```text
//!   vectors of tower 0 ──module──► a few vectors ─┐
//!   vectors of tower 1 ──module──► a few vectors ─┼──► interaction, heads
//!   bottom MLP ───────────────────────────────────┘
//! ```
//!
//! A module may interact its vectors and hand on fewer floats than it got. Where a tower's tables and its module live on
//! one host, only what the module hands on crosses the network: that is what towers are for.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    config::keys::{choice, words},
    model::{CrossRank, ModelSpec},
};

/// The towers of a model; none without a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Towers {
    /// What they are used for.
    pub variant: TowerVariant,
    /// The share of the dense learning rate at which the modules' weights move.
    pub module_rate: f32,
    /// In the order of the job; every feature of the model is in one of them.
    pub list: Vec<TowerSpec>,
}

words! {
    /// What towers are used for.
    pub enum TowerVariant {
        /// Nothing: the model and the ways of its vectors are those of a job without towers.
        Flat,
        /// The ways of the vectors only: the same model, and the same bits.
        Sptt,
        /// Every tower has its module.
        Towers,
    }
}

/// One tower.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TowerSpec {
    /// Its name, unique among towers; its weights are named by it.
    pub name: String,
    /// The places of its features in the model, rising.
    pub features: Vec<usize>,
    /// What becomes of their vectors.
    pub module: TowerModule,
}

choice! {
    /// What a tower does with its features' vectors.
    #[derive(Copy)]
    pub enum TowerModule {
        /// Hands them on as they are.
        Identity,
        /// Two linear maps, for the dot interaction: `mixed` vectors that see the whole tower, and `per_feature`
        /// projections of every feature by a matrix that the tower's features share.
        Ensemble {
            /// Projections of each feature; 0 leaves them out. Above 0 the tower's features need the same `dim`.
            per_feature: usize = 1,
            /// Vectors that mix all features of the tower; 0 leaves them out.
            mixed: usize = 0,
            /// Floats of every vector that is handed on; for `dlrm` the interaction's width.
            width: usize,
        },
        /// A small cross net on the tower's vectors side by side, then a projection to one vector for each feature.
        Cross {
            /// Cross layers.
            layers: usize = 1,
            /// Full matrices or a product of two thin ones.
            rank: CrossRank = CrossRank::Full,
            /// Floats of every vector that is handed on; for `dlrm` the interaction's width.
            width: usize,
        },
    }
}

impl Default for Towers {
    fn default() -> Towers {
        Towers { variant: TowerVariant::Flat, module_rate: 1.0, list: Vec::new() }
    }
}

impl Towers {
    /// Whether the job has no towers at all.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl TowerSpec {
    /// How many vectors it hands on for a sample.
    pub fn vector_count(&self) -> usize {
        match self.module {
            TowerModule::Identity | TowerModule::Cross { .. } => self.features.len(),
            TowerModule::Ensemble { per_feature, mixed, .. } => per_feature * self.features.len() + mixed,
        }
    }

    /// Floats of its features' vectors, for a sample.
    pub fn input_width(&self, model: &ModelSpec) -> usize {
        self.features.iter().map(|&feature| model.table_of(feature).dim).sum()
    }

    /// Weights of its module.
    pub fn weight_count(&self, model: &ModelSpec) -> usize {
        let (input, output) = (self.input_width(model), self.output_width(model));
        match self.module {
            TowerModule::Identity => 0,
            TowerModule::Ensemble { per_feature, mixed, width } => {
                let dim = self.features.first().map_or(0, |&feature| model.table_of(feature).dim);
                mixed * width * input + per_feature * width * dim
            }
            TowerModule::Cross { layers, rank, .. } => {
                let matrices = match rank {
                    CrossRank::Full => input * input,
                    CrossRank::Low(rank) => 2 * rank * input,
                };
                layers * (matrices + input) + output * input
            }
        }
    }

    /// Floats that it hands on for a sample.
    pub fn output_width(&self, model: &ModelSpec) -> usize {
        match self.module {
            TowerModule::Identity => self.input_width(model),
            TowerModule::Ensemble { width, .. } | TowerModule::Cross { width, .. } => {
                self.vector_count() * width
            }
        }
    }
}

impl ModelSpec {
    /// Whether vectors pass tower modules, even if all of them hand on what they get.
    pub fn has_tower_modules(&self) -> bool {
        self.towers.variant == TowerVariant::Towers && !self.towers.list.is_empty()
    }

    /// The towers whose modules change vectors, in order.
    pub fn tower_modules(&self) -> impl Iterator<Item = &TowerSpec> {
        let list = if self.has_tower_modules() { &self.towers.list[..] } else { &[] };
        list.iter().filter(|tower| tower.module != TowerModule::Identity)
    }

    /// All dense weights, cut into those of each module, in order, and the rest: one range without modules. Sums over the
    /// whole gradient (its norm) go range by range, so that a tower's ranks can form theirs.
    pub fn weight_segments(&self, weight_count: usize) -> Vec<Range<usize>> {
        let mut cuts = vec![0];
        for tower in self.tower_modules() {
            cuts.push(cuts[cuts.len() - 1] + tower.weight_count(self));
        }
        cuts.push(weight_count);
        cuts.windows(2).map(|cut| cut[0]..cut[1]).collect()
    }

    /// At which share of the dense learning rate weights move: runs of them that are one after the other.
    pub fn rate_shares(&self, weight_count: usize) -> [(Range<usize>, f32); 2] {
        let in_modules: usize = self.tower_modules().map(|tower| tower.weight_count(self)).sum();
        [(0..in_modules, self.towers.module_rate), (in_modules..weight_count, 1.0)]
    }

    /// The features whose vectors the network sees as they are, in feature order.
    pub fn plain_features(&self) -> Vec<usize> {
        let mut plain = vec![true; self.features.len()];
        for &feature in self.tower_modules().flat_map(|tower| &tower.features) {
            plain[feature] = false;
        }
        (0..plain.len()).filter(|&feature| plain[feature]).collect()
    }

    /// The widths of the vectors that the network sees above the towers: first those of [`ModelSpec::plain_features`],
    /// then what each module hands on. Without modules these are the pooled vectors.
    pub fn vector_widths(&self) -> Vec<usize> {
        let plain = self.plain_features();
        let mut widths: Vec<usize> = plain.iter().map(|&feature| self.table_of(feature).dim).collect();
        for tower in self.tower_modules() {
            let count = tower.vector_count();
            widths.extend(std::iter::repeat_n(tower.output_width(self) / count.max(1), count));
        }
        widths
    }

    /// The width in which DLRM's vectors meet: the bottom MLP's last, or without one what the modules hand on, or without
    /// those the widest row.
    pub fn interaction_width(&self, bottom: &[usize]) -> usize {
        let handed_on =
            self.tower_modules().next().map(|tower| tower.output_width(self) / tower.vector_count().max(1));
        let widest = (0..self.features.len()).map(|feature| self.table_of(feature).dim).max();
        bottom.last().copied().or(handed_on).or(widest).unwrap_or(0)
    }

    /// Floats of all pooled vectors over floats of what the towers hand on; 1 without modules.
    pub fn compression_ratio(&self) -> f64 {
        let handed_on: usize = self.vector_widths().iter().sum();
        if handed_on == 0 { 1.0 } else { self.pooled_width() as f64 / handed_on as f64 }
    }
}
