//! Who holds which feature, and where its vector stands in a message and in a sample's row.

use campanile_spec::{ModelSpec, Plan};

/// The way of every feature, the same on every rank.
#[derive(Debug)]
pub(crate) struct Route {
    /// Features by owner, each in feature order.
    pub owned: Vec<Vec<OwnedFeature>>,
    /// Width of all vectors of an owner side by side.
    pub widths: Vec<usize>,
    /// Width of all vectors side by side.
    pub pooled_width: usize,
}

/// A feature as its owner's messages carry it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnedFeature {
    /// Its place in the model.
    pub feature: usize,
    /// Floats of its vector.
    pub dim: usize,
    /// Where its vector starts among the owner's.
    pub owner_offset: usize,
    /// Where its vector starts in a sample's pooled row.
    pub pooled_offset: usize,
}

impl Route {
    pub fn new(model: &ModelSpec, plan: &Plan) -> Route {
        let offsets = model.pooled_offsets();
        let mut owned = vec![Vec::new(); plan.rank_count];
        let mut widths = vec![0; plan.rank_count];
        for (feature, spec) in model.features.iter().enumerate() {
            let owner = plan.of(spec.table).shards[0].rank;
            let dim = model.table_of(feature).dim;
            let pooled_offset = offsets[feature];
            owned[owner].push(OwnedFeature { feature, dim, owner_offset: widths[owner], pooled_offset });
            widths[owner] += dim;
        }
        Route { owned, widths, pooled_width: model.pooled_width() }
    }
}
