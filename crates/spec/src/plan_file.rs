//! A plan as a file that people read: TOML, with the names and shapes of the tables it was made for.
//!
//! ```toml
//! ranks = 2
//!
//! [[table]]
//! name = "user"
//! rows = 1000000
//! dim = 16
//! returns = "rows"
//! shards = [
//!   { rank = 0, rows = [0, 500000], columns = [0, 16] },
//!   { rank = 1, rows = [500000, 1000000], columns = [0, 16] },
//! ]
//! ```
//!
//! Tables are found by name, so their order does not matter, and a plan for another model is refused with the
//! first difference.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    model::ModelSpec,
    plan::{Placement, Plan, PlanError, Returns, Shard},
};

/// Why a plan file was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanFileError {
    /// The text is not TOML of the right form.
    #[error("the plan cannot be read: {problem}")]
    Syntax {
        /// What the reader says, with the line.
        problem: String,
    },
    /// It is for another number of ranks.
    #[error(
        "the plan is for {planned} ranks and the run has {running}; start {planned} ranks, or make another plan with \
         `campanile plan --ranks {running}`"
    )]
    Ranks {
        /// In the file.
        planned: usize,
        /// Of the run.
        running: usize,
    },
    /// A table is not the model's.
    #[error("the plan is for another model: {difference}; make a new one with `campanile plan`")]
    OtherModel {
        /// The first difference.
        difference: String,
    },
    /// The shards do not cover the tables.
    #[error(transparent)]
    DoesNotFit(#[from] PlanError),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    ranks: usize,
    #[serde(default)]
    table: Vec<FileTable>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTable {
    name: String,
    rows: u64,
    dim: usize,
    #[serde(default)]
    replicated: bool,
    returns: Returns,
    shards: Vec<FileShard>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileShard {
    rank: usize,
    rows: [u64; 2],
    columns: [usize; 2],
}

impl Plan {
    /// The plan of a file's text, for `model` on `rank_count` ranks.
    ///
    /// # Errors
    /// When the text is no plan, or one for another model or number of ranks.
    pub fn parse(text: &str, model: &ModelSpec, rank_count: usize) -> Result<Plan, PlanFileError> {
        let file: File = toml::from_str(text)
            .map_err(|error| PlanFileError::Syntax { problem: error.to_string().trim_end().to_owned() })?;
        if file.ranks != rank_count {
            return Err(PlanFileError::Ranks { planned: file.ranks, running: rank_count });
        }
        let other = |difference: String| PlanFileError::OtherModel { difference };
        for (index, planned) in file.table.iter().enumerate() {
            if !model.tables.iter().any(|table| table.name == planned.name) {
                return Err(other(format!("the model has no table `{}`", planned.name)));
            }
            if file.table[..index].iter().any(|earlier| earlier.name == planned.name) {
                return Err(other(format!("table `{}` stands in it twice", planned.name)));
            }
        }
        let mut placements = Vec::with_capacity(model.tables.len());
        for table in &model.tables {
            let planned = file.table.iter().find(|planned| planned.name == table.name);
            let Some(planned) = planned else {
                return Err(other(format!("it does not place table `{}`", table.name)));
            };
            if (planned.rows, planned.dim) != (table.row_count, table.dim) {
                return Err(other(format!(
                    "table `{}` has {} rows of {} floats, and {} of {} in the plan",
                    table.name, table.row_count, table.dim, planned.rows, planned.dim
                )));
            }
            placements.push(planned.placement());
        }
        let plan = Plan { rank_count, placements };
        plan.check(model)?;
        Ok(plan)
    }

    /// The plan as the text of a file.
    ///
    /// # Panics
    /// If the plan has not one placement per table of the model.
    pub fn to_toml(&self, model: &ModelSpec) -> String {
        assert_eq!(self.placements.len(), model.tables.len(), "a plan for another model");
        let mut out = format!("ranks = {}\n", self.rank_count);
        for (table, placement) in model.tables.iter().zip(&self.placements) {
            let name = toml::Value::String(table.name.clone());
            out.push_str(&format!("\n# {placement}\n[[table]]\nname = {name}\n"));
            out.push_str(&format!("rows = {}\ndim = {}\n", table.row_count, table.dim));
            if placement.replicated {
                out.push_str("replicated = true\n");
            }
            let returns = match placement.returns {
                Returns::Pooled => "pooled",
                Returns::Rows => "rows",
            };
            out.push_str(&format!("returns = \"{returns}\"\nshards = [\n"));
            for Shard { rank, rows, columns } in &placement.shards {
                out.push_str(&format!(
                    "  {{ rank = {rank}, rows = [{}, {}], columns = [{}, {}] }},\n",
                    rows.start, rows.end, columns.start, columns.end
                ));
            }
            out.push_str("]\n");
        }
        out
    }
}

impl FileTable {
    fn placement(&self) -> Placement {
        let shards = self.shards.iter().map(|shard| Shard {
            rank: shard.rank,
            rows: shard.rows[0]..shard.rows[1],
            columns: shard.columns[0]..shard.columns[1],
        });
        Placement { shards: shards.collect(), replicated: self.replicated, returns: self.returns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Heads, NetworkSpec, Precision, RowFormat, RowInit, TableSpec};

    fn model() -> ModelSpec {
        let table = |name: &str, row_count, dim| TableSpec {
            name: name.into(),
            row_count,
            dim,
            format: RowFormat::F32,
            init: RowInit::Zeros,
        };
        ModelSpec {
            dense_count: 0,
            features: Vec::new(),
            tables: vec![table("a", 10, 64), table("say \"b\"", 7, 16), table("c", 4, 8)],
            tasks: Vec::new(),
            network: NetworkSpec::LogisticRegression,
            heads: Heads::Shared,
            precision: Precision::F32,
            towers: crate::Towers::default(),
            followers: Vec::new(),
        }
    }

    fn plan(model: &ModelSpec) -> Plan {
        let placements = vec![
            Placement::grid(&model.tables[0], &[vec![0, 1], vec![1, 0]]),
            Placement::whole(&model.tables[1], 1),
            Placement::replicated(&model.tables[2], 2),
        ];
        Plan { rank_count: 2, placements }
    }

    #[test]
    fn a_plan_reads_back_as_itself() {
        let model = model();
        let plan = plan(&model);
        assert_eq!(Plan::parse(&plan.to_toml(&model), &model, 2), Ok(plan));
    }

    #[test]
    fn a_plan_for_something_else_is_refused() {
        let mut other = model();
        let text = plan(&other).to_toml(&other);
        let error =
            |model: &ModelSpec, text: &str, ranks| Plan::parse(text, model, ranks).unwrap_err().to_string();
        assert!(error(&other, &text, 4).starts_with("the plan is for 2 ranks and the run has 4"));
        assert!(error(&other, &text.replace("rank = 1", "rang = 1"), 2).contains("unknown field `rang`"));
        assert!(
            error(&other, &text.replace("rank = 1", "rank = 7"), 2).contains("rank 7 is beyond the 2 ranks")
        );
        other.tables[1].row_count = 8;
        assert!(error(&other, &text, 2).contains("has 8 rows of 16 floats, and 7 of 16 in the plan"));
        other.tables[1].name = "b".into();
        assert!(error(&other, &text, 2).contains("the model has no table `say \"b\"`"));
        other.tables.remove(1);
        other.tables.push(TableSpec { name: "new".into(), ..other.tables[0].clone() });
        assert!(error(&other, &text, 2).contains("the model has no table"));
        let empty = "ranks = 2\n";
        assert!(error(&other, empty, 2).contains("it does not place table `a`"));
    }
}
