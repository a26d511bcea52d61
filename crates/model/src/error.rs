//! Why a model cannot be built from its description.

use thiserror::Error;

/// A description whose shapes do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModelError {
    /// A model must predict something.
    #[error("the model has no task: name at least one label")]
    NoTask,
    /// A model must see something.
    #[error("the model has neither dense inputs nor features")]
    NoInput,
    /// Heads for a teacher on a model that has no layers to share.
    #[error(
        "this model has no layers that a teacher's head could share: take run.distil.method = \"one_head\" or another \
         model"
    )]
    NoSharedLayers,
    /// A layer without outputs.
    #[error("layer `{layer}` has width 0: every width must be at least 1")]
    ZeroWidth {
        /// Which.
        layer: String,
    },
    /// Two features or tasks would own the same weights.
    #[error("the weight `{name}` would exist twice: feature and task names must be unique")]
    Duplicate {
        /// The weight.
        name: String,
    },
    /// DLRM with dense inputs needs a bottom MLP.
    #[error(
        "{dense_count} dense inputs need a bottom MLP: give `bottom` at least one width, the interaction's"
    )]
    NoBottom {
        /// How many dense inputs.
        dense_count: usize,
    },
    /// DLRM's interaction needs pairs.
    #[error("the dot interaction has {vectors} vector(s), it needs two: add features or take another model")]
    NothingToInteract {
        /// How many vectors.
        vectors: usize,
    },
    /// A side of a two-tower model without inputs.
    #[error(
        "the {side}'s tower has no inputs: `item_features` and `item_dense` name those of the item, and all others are \
         the user's"
    )]
    EmptySide {
        /// `user` or `item`.
        side: &'static str,
    },
    /// A two-tower model whose features also form towers with modules.
    #[error("a two-tower model takes features as they are: use identity towers in [run.towers]")]
    TowersInTowers,
    /// A factorization machine or logistic regression with rows of a wrong width.
    #[error("feature `{feature}`: table `{table}` has rows of {found} floats, {model} needs {wanted}")]
    RowWidth {
        /// The feature.
        feature: String,
        /// Its table.
        table: String,
        /// The table's dim.
        found: usize,
        /// The model.
        model: &'static str,
        /// What it needs, in words.
        wanted: String,
    },
}
