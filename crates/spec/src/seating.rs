//! How towers sit on ranks.
//!
//! The ranks are cut into equal runs, the *groups*; a group holds the tables of its towers and computes their modules. A
//! group is normally a host, but may be several hosts, or a part of one:
//!
//! ```text
//!   ranks   0   1 │ 2   3 │ 4   5 │ 6   7         groups of two members; rank 5 is member 1 of group 2
//!   towers    a   │   b   │   c   │   d
//!   peers   0, 2, 4, 6 are the first members of all groups; 1, 3, 5, 7 the second
//! ```
//!
//! A rank sees the samples of its peers for the features of its group; the members of a group share out the rows.

use std::ops::Range;

use crate::{
    model::{ModelSpec, TableId},
    plan::{Placement, Plan},
    towers::{TowerSpec, TowerVariant, Towers},
};

/// Which ranks have which towers; every rank computes the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seating {
    /// How many groups.
    pub groups: usize,
    /// Ranks of each.
    pub members: usize,
    /// By group: its towers, by their places in the model's list.
    pub towers: Vec<Range<usize>>,
    /// By group: its features, rising.
    pub features: Vec<Vec<usize>>,
}

impl Seating {
    /// Towers dealt to `groups` groups in their order. Both numbers must be powers of two, as ranks always are here.
    ///
    /// # Errors
    /// In words, when the numbers do not fit or groups would share a table.
    pub fn new(model: &ModelSpec, rank_count: usize, groups: usize) -> Result<Seating, String> {
        let list = &model.towers.list;
        if groups == 0 || !rank_count.is_multiple_of(groups) {
            return Err(format!("{groups} groups do not divide {rank_count} ranks"));
        }
        if groups > list.len() {
            return Err(format!("{} towers are too few for {groups} groups of ranks", list.len()));
        }
        let cut = |group: usize| list.len() * group / groups;
        let towers: Vec<Range<usize>> = (0..groups).map(|group| cut(group)..cut(group + 1)).collect();
        let features_of = |towers: &Range<usize>| {
            let mut features: Vec<usize> =
                list[towers.clone()].iter().flat_map(|tower| tower.features.iter().copied()).collect();
            features.sort_unstable();
            features
        };
        let features: Vec<Vec<usize>> = towers.iter().map(features_of).collect();
        let seating = Seating { groups, members: rank_count / groups, towers, features };
        for (table, spec) in model.tables.iter().enumerate() {
            let uses =
                |features: &Vec<usize>| features.iter().any(|&f| model.features[f].table.0 as usize == table);
            let owners: Vec<usize> = (0..groups).filter(|&group| uses(&seating.features[group])).collect();
            if owners.len() > 1 {
                return Err(format!(
                    "table `{}` is shared by features of towers that live apart; put them into one tower",
                    spec.name
                ));
            }
        }
        Ok(seating)
    }

    /// The seating of a job's towers on some ranks: as many groups as there are towers, or the power of two below.
    /// None where towers are not used, or there is but one rank.
    ///
    /// # Errors
    /// As [`Seating::new`].
    pub fn of(model: &ModelSpec, rank_count: usize) -> Result<Option<Seating>, String> {
        if model.towers.variant == TowerVariant::Flat || model.towers.is_empty() || rank_count < 2 {
            return Ok(None);
        }
        let groups = 1 << model.towers.list.len().min(rank_count).ilog2();
        Seating::new(model, rank_count, groups).map(Some)
    }

    /// The group of a rank, and its place there.
    pub fn place(&self, rank: usize) -> (usize, usize) {
        (rank / self.members, rank % self.members)
    }

    /// The model as a group sees it: its features, their tables, its towers; with the places of the tables in the model.
    pub fn model_of(&self, model: &ModelSpec, group: usize) -> (ModelSpec, Vec<usize>) {
        let own = &self.features[group];
        let mut tables: Vec<usize> = own.iter().map(|&f| model.features[f].table.0 as usize).collect();
        tables.sort_unstable();
        tables.dedup();
        let place = |table: usize| tables.iter().position(|&other| other == table).unwrap_or(0) as u32;
        let feature = |&f: &usize| {
            let mut feature = model.features[f].clone();
            feature.table = TableId(place(feature.table.0 as usize));
            feature
        };
        let tower = |tower: &TowerSpec| TowerSpec {
            features: tower.features.iter().map(|f| own.partition_point(|other| other < f)).collect(),
            ..tower.clone()
        };
        let list = model.towers.list[self.towers[group].clone()].iter().map(tower).collect();
        let sub = ModelSpec {
            features: own.iter().map(feature).collect(),
            tables: tables.iter().map(|&table| model.tables[table].clone()).collect(),
            towers: Towers { list, ..model.towers.clone() },
            ..model.clone()
        };
        (sub, tables)
    }

    /// Every group's tables whole, balanced inside the group.
    pub fn plan(&self, model: &ModelSpec) -> Plan {
        // A table that no feature uses lives anywhere.
        let mut placements: Vec<Placement> =
            model.tables.iter().map(|table| Placement::whole(table, 0)).collect();
        for group in 0..self.groups {
            let (sub, tables) = self.model_of(model, group);
            let inside = Plan::balanced(&sub, self.members);
            for (table, mut placement) in tables.into_iter().zip(inside.placements) {
                placement.shards.iter_mut().for_each(|shard| shard.rank += group * self.members);
                placements[table] = placement;
            }
        }
        Plan { rank_count: self.groups * self.members, placements }
    }

    /// A plan as a group's members see it, ranks counted from the group's first; none where a table of the group lies
    /// outside it, or is copied to all ranks.
    pub fn plan_of(&self, model: &ModelSpec, plan: &Plan, group: usize) -> Option<Plan> {
        let (first, end) = (group * self.members, (group + 1) * self.members);
        let (_, tables) = self.model_of(model, group);
        let mut placements = Vec::new();
        for table in tables {
            let mut placement = plan.placements[table].clone();
            if placement.replicated
                || placement.shards.iter().any(|shard| !(first..end).contains(&shard.rank))
            {
                return None;
            }
            placement.shards.iter_mut().for_each(|shard| shard.rank -= first);
            placements.push(placement);
        }
        Some(Plan { rank_count: self.members, placements })
    }

    /// Whether a plan keeps every group's tables inside the group, and gives ranks no others.
    pub fn fits(&self, model: &ModelSpec, plan: &Plan) -> bool {
        let unused = |table: usize| !model.features.iter().any(|f| f.table.0 as usize == table);
        plan.rank_count == self.groups * self.members
            && (0..self.groups).all(|group| self.plan_of(model, plan, group).is_some())
            && !(0..model.tables.len()).any(unused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Job, towers::TowerModule};

    fn model(towers: &[&[usize]]) -> ModelSpec {
        let text = "[run.data]\nkind = \"synthetic\"\n[run.data.world]\nsparse_count = 6\nhidden_groups = 2\nacross_pairs = 1\n\
                    [run.tables]\ndim = 4\n[run.model]\nkind = \"mlp\"\nhidden = [8]\n\
                    [run.sparse]\nlearning_rate = 0.1\n[run.dense]\nlearning_rate = 0.1\n";
        let mut model = Job::parse(text).unwrap().run.model;
        let tower = |(number, features): (usize, &&[usize])| TowerSpec {
            name: format!("t{number}"),
            features: features.to_vec(),
            module: TowerModule::Identity,
        };
        model.towers = Towers {
            variant: TowerVariant::Sptt,
            module_rate: 1.0,
            list: towers.iter().enumerate().map(tower).collect(),
        };
        model
    }

    #[test]
    fn tables_live_with_their_tower() {
        let model = model(&[&[0, 3], &[1, 5], &[2, 4]]);
        for (ranks, groups) in [(2, 1), (2, 2), (4, 2), (8, 2), (8, 1)] {
            let seating = Seating::new(&model, ranks, groups).unwrap();
            let plan = seating.plan(&model);
            plan.check(&model).unwrap();
            assert!(seating.fits(&model, &plan));
            assert_eq!(seating.fits(&model, &Plan::balanced(&model, ranks)), groups == 1);
            let mut all: Vec<usize> = seating.features.concat();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        }
        assert_eq!(Seating::of(&model, 8).unwrap().unwrap().groups, 2);
        assert_eq!(Seating::of(&model, 1).unwrap(), None);
        assert_eq!(Seating::new(&model, 8, 4).unwrap_err(), "3 towers are too few for 4 groups of ranks");
    }

    #[test]
    fn a_table_has_one_home() {
        let mut model = model(&[&[0, 3, 2], &[1, 5, 4]]);
        model.features[1].table = model.features[0].table;
        assert_eq!(
            Seating::new(&model, 2, 2).unwrap_err(),
            "table `sparse_1` is shared by features of towers that live apart; put them into one tower"
        );
        assert!(Seating::new(&model, 2, 1).is_ok());
    }
}
