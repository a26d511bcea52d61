//! Will the tables fit? Asked before anything is allocated, and answered with names and numbers.

use std::fmt;

use campanile_spec::{Bytes, Plan, SparseOptimizer, config::Job};
use campanile_tables::{memory_available, memory_needed, memory_of_rows};

/// The tables do not fit: which, how much, and what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoesNotFit {
    needed: u64,
    limit: u64,
    limit_source: &'static str,
    /// Name and bytes, largest first.
    largest: Vec<(String, u64)>,
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "the tables need {} here with their optimizer state, and {} is {}",
            Bytes(self.needed),
            self.limit_source,
            Bytes(self.limit)
        )?;
        for (name, size) in &self.largest {
            writeln!(f, "  table `{name}` needs {}", Bytes(*size))?;
        }
        write!(
            f,
            "make it smaller: fewer rows (hash to less), a smaller dim, format = \"f16\" or \"bf16\" in [run.tables], \
             or an optimizer with less state (rowwise_adagrad keeps one float a row)"
        )
    }
}

/// Bytes of a rank's rows, their optimizer state and its copies of replicated tables.
pub fn of_rank(job: &Job, plan: &Plan, rank: usize) -> u64 {
    let tables = &job.run.model.tables;
    let shards = plan.shards_of(rank).map(|(table, shard)| {
        let rows = shard.rows.end - shard.rows.start;
        let place = table.0 as usize;
        memory_of_rows(tables[place].format, shard.columns.len(), job.run.optimizer_of(place), rows)
    });
    let copied = tables.iter().zip(&plan.placements).filter(|(_, p)| p.replicated && plan.rank_count > 1);
    shards.sum::<u64>() + copied.map(|(table, _)| memory_needed(table, &SparseOptimizer::Sgd)).sum::<u64>()
}

/// Checks what tables need on this host against `process.table_memory_mib`, or against the free memory of the
/// machine.
///
/// # Errors
/// When they do not fit.
pub fn check(job: &Job, needed: u64) -> Result<(), DoesNotFit> {
    let (limit, limit_source) = match job.process.table_memory_mib {
        0 => match memory_available() {
            Some(free) => (free, "the free memory of this machine"),
            None => return Ok(()),
        },
        mib => (mib << 20, "process.table_memory_mib"),
    };
    let mut sizes: Vec<(String, u64)> = job
        .run
        .model
        .tables
        .iter()
        .enumerate()
        .map(|(place, table)| (table.name.clone(), memory_needed(table, job.run.optimizer_of(place))))
        .collect();
    if needed <= limit {
        return Ok(());
    }
    sizes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sizes.truncate(5);
    Err(DoesNotFit { needed, limit, limit_source, largest: sizes })
}
