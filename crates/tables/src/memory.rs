//! How much memory tables take, and how much there is.

use campanile_spec::{
    model::{RowFormat, TableSpec},
    optimizer::SparseOptimizer,
};

/// Bytes of a table's rows and their optimizer state.
pub fn memory_needed(spec: &TableSpec, optimizer: &SparseOptimizer) -> u64 {
    memory_of_rows(spec.format, spec.dim, optimizer, spec.row_count)
}

/// The same for `row_count` rows of `dim` columns.
pub fn memory_of_rows(format: RowFormat, dim: usize, optimizer: &SparseOptimizer, row_count: u64) -> u64 {
    let row = dim as u64 * format.element_bytes() as u64;
    let state = optimizer.state_floats(dim) as u64 * 4;
    row_count.saturating_mul(row.saturating_add(state))
}

/// Bytes that this process can still get: what the machine has free, or less where a control group limits it.
/// `None` where the system does not say.
pub fn memory_available() -> Option<u64> {
    let free = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| free_in_meminfo(&text));
    match (free, left_in_control_group()) {
        (Some(free), Some(left)) => Some(free.min(left)),
        (free, left) => free.or(left),
    }
}

fn free_in_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What the process's own control group (version 2) leaves; file pages that it could drop count as free.
fn left_in_control_group() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = std::path::Path::new("/sys/fs/cgroup").join(group);
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let statistics = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let pages = statistics.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(pages.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use campanile_spec::model::RowInit;

    #[test]
    fn rows_and_state_are_counted() {
        let spec = TableSpec {
            name: "user".into(),
            row_count: 1000,
            dim: 16,
            format: RowFormat::F16,
            init: RowInit::Zeros,
        };
        assert_eq!(memory_needed(&spec, &SparseOptimizer::Sgd), 32_000);
        let rowwise = SparseOptimizer::RowwiseAdagrad { epsilon: 0.0, initial: 0.0 };
        assert_eq!(memory_needed(&spec, &rowwise), 36_000);
        let huge = TableSpec { row_count: u64::MAX, ..spec };
        assert_eq!(memory_needed(&huge, &rowwise), u64::MAX);
    }

    #[test]
    fn meminfo_is_read_in_kib() {
        assert_eq!(free_in_meminfo("MemTotal: 9 kB\nMemAvailable:   21 kB\n"), Some(21 * 1024));
        assert_eq!(free_in_meminfo("MemTotal: 9 kB\n"), None);
    }
}
