//! Which way every feature takes: who holds its rows, and where its vector stands in messages.
//!
//! A table takes one of three ways, by its placement:
//!
//! ```text
//!   pooled    the owner holds all rows of some columns and sends one vector per bag
//!   borrowed  rows lie on several ranks, or repeat so much that a row is cheaper than its vectors: each row that
//!             a rank's samples name travels once, and the samples' rank pools
//!   mirrored  every rank has all rows; only gradients travel, to the one rank that updates a row
//! ```
//!
//! In the last two, an owner sees of every bag only the part that lies in its rows (a [`Lane`] in `parts`).

use std::ops::Range;

use campanile_spec::{ModelSpec, Plan, Pooling, Returns, RowFormat};

/// The way of every feature, the same on every rank.
#[derive(Debug)]
pub(crate) struct Route {
    /// By rank.
    pub owners: Vec<Owner>,
    /// By feature.
    pub features: Vec<Feature>,
    /// Width of all vectors side by side.
    pub pooled_width: usize,
    /// Tables whose rows travel.
    pub borrowed: Vec<Borrowed>,
    /// Tables that every rank has a copy of.
    pub mirrored: Vec<Mirrored>,
}

/// A feature of the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Feature {
    pub pooling: Pooling,
    pub dim: usize,
    /// Where its vector starts in a sample's pooled row.
    pub pooled_offset: usize,
    /// Place of its row cuts in [`Feature::way`]'s table.
    pub way: Way,
}

/// The way of a feature's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Pooled,
    /// Place in [`Route::borrowed`].
    Borrowed(usize),
    /// Place in [`Route::mirrored`].
    Mirrored(usize),
}

/// What a rank holds, as the messages to and from it carry it.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    /// Features that it pools, by feature, then by columns.
    pub pooled: Vec<Lane>,
    /// Floats of all pooled vectors of a sample.
    pub pooled_width: usize,
    /// Features of which it sees the ids in its own rows, by feature, then by shard.
    pub parts: Vec<Lane>,
    /// Shards whose rows it sends.
    pub lent: Vec<Lent>,
}

/// A feature in the messages of one owner.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    /// Its place in the model.
    pub feature: usize,
    /// The place of the shard among the owner's.
    pub shard: usize,
    /// The shard's columns.
    pub columns: Range<usize>,
    /// Which of the table's row ranges the shard has.
    pub row_range: usize,
    /// Where the vector starts among the owner's pooled ones.
    pub owner_offset: usize,
    /// Where these columns start in a sample's pooled row.
    pub pooled_offset: usize,
}

/// A shard whose rows travel.
#[derive(Debug, Clone)]
pub(crate) struct Lent {
    pub shard: usize,
    /// Place in [`Route::borrowed`].
    pub borrowed: usize,
    pub row_range: usize,
    /// Which of the table's column ranges.
    pub column_range: usize,
    pub row_bytes: usize,
}

/// A table whose rows travel.
#[derive(Debug)]
pub(crate) struct Borrowed {
    pub name: String,
    pub row_cuts: Vec<u64>,
    pub columns: Vec<Range<usize>>,
    pub format: RowFormat,
    pub features: Vec<usize>,
}

/// A table that every rank has a copy of.
#[derive(Debug)]
pub(crate) struct Mirrored {
    pub table: usize,
    pub name: String,
    pub row_cuts: Vec<u64>,
    pub features: Vec<usize>,
}

impl Route {
    pub fn new(model: &ModelSpec, plan: &Plan) -> Route {
        let mut route = Route {
            owners: (0..plan.rank_count).map(|_| Owner::default()).collect(),
            features: Vec::new(),
            pooled_width: model.pooled_width(),
            borrowed: Vec::new(),
            mirrored: Vec::new(),
        };
        let ways: Vec<Way> = (0..model.tables.len()).map(|table| route.way(model, plan, table)).collect();
        let offsets = model.pooled_offsets();
        for (feature, spec) in model.features.iter().enumerate() {
            let table = spec.table.0 as usize;
            let (way, dim) = (ways[table], model.tables[table].dim);
            match way {
                Way::Pooled => {}
                Way::Borrowed(place) => route.borrowed[place].features.push(feature),
                Way::Mirrored(place) => route.mirrored[place].features.push(feature),
            }
            route.features.push(Feature { pooling: spec.pooling, dim, pooled_offset: offsets[feature], way });
            route.add_lanes(plan, feature, table);
        }
        route
    }

    fn way(&mut self, model: &ModelSpec, plan: &Plan, table: usize) -> Way {
        let (spec, placement) = (&model.tables[table], &plan.placements[table]);
        let (name, features) = (spec.name.clone(), Vec::new());
        // A table without rows is cut nowhere; one range stands for it.
        let mut row_cuts = placement.row_cuts();
        if row_cuts.len() == 1 {
            row_cuts.push(spec.row_count);
        }
        if placement.replicated && plan.rank_count > 1 {
            self.mirrored.push(Mirrored { table, name, row_cuts, features });
            return Way::Mirrored(self.mirrored.len() - 1);
        }
        if placement.returns == Returns::Pooled || plan.rank_count == 1 && row_cuts.len() == 2 {
            return Way::Pooled;
        }
        let cuts = placement.column_cuts();
        let columns: Vec<Range<usize>> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        let place = self.borrowed.len();
        let format = spec.format;
        for (rank, owner) in self.owners.iter_mut().enumerate() {
            for (shard, (_, own)) in
                plan.shards_of(rank).enumerate().filter(|(_, (id, _))| id.0 as usize == table)
            {
                owner.lent.push(Lent {
                    shard,
                    borrowed: place,
                    row_range: range_of(&row_cuts, own.rows.start),
                    column_range: columns.iter().position(|c| *c == own.columns).unwrap_or(0),
                    row_bytes: own.columns.len() * format.element_bytes(),
                });
            }
        }
        self.borrowed.push(Borrowed { name, row_cuts, columns, format, features });
        Way::Borrowed(place)
    }

    fn add_lanes(&mut self, plan: &Plan, feature: usize, table: usize) {
        let Feature { way, pooled_offset, .. } = self.features[feature];
        for (rank, owner) in self.owners.iter_mut().enumerate() {
            let mut own: Vec<(usize, &campanile_spec::Shard)> = plan
                .shards_of(rank)
                .enumerate()
                .filter(|(_, (id, _))| id.0 as usize == table)
                .map(|(place, (_, shard))| (place, shard))
                .collect();
            own.sort_by_key(|(_, shard)| (shard.columns.start, shard.rows.start));
            for (place, shard) in own {
                let row_range = match way {
                    Way::Pooled => 0,
                    Way::Borrowed(table) => range_of(&self.borrowed[table].row_cuts, shard.rows.start),
                    Way::Mirrored(table) => range_of(&self.mirrored[table].row_cuts, shard.rows.start),
                };
                let lane = Lane {
                    feature,
                    shard: place,
                    columns: shard.columns.clone(),
                    row_range,
                    owner_offset: owner.pooled_width,
                    pooled_offset: pooled_offset + shard.columns.start,
                };
                if way == Way::Pooled {
                    owner.pooled_width += shard.columns.len();
                    owner.pooled.push(lane);
                } else {
                    owner.parts.push(lane);
                }
            }
        }
    }

    /// The row cuts of a feature whose bags are split by rows.
    pub fn row_cuts(&self, feature: usize) -> &[u64] {
        match self.features[feature].way {
            Way::Pooled => &[],
            Way::Borrowed(table) => &self.borrowed[table].row_cuts,
            Way::Mirrored(table) => &self.mirrored[table].row_cuts,
        }
    }

    /// The name of the table of a feature whose bags are split by rows.
    pub fn table_name(&self, feature: usize) -> &str {
        match self.features[feature].way {
            Way::Pooled => "",
            Way::Borrowed(table) => &self.borrowed[table].name,
            Way::Mirrored(table) => &self.mirrored[table].name,
        }
    }
}

/// Which range between the cuts a row lies in; the last for one beyond all.
pub(crate) fn range_of(cuts: &[u64], row: u64) -> usize {
    let inner = &cuts[1..cuts.len() - 1];
    inner.partition_point(|cut| *cut <= row)
}
