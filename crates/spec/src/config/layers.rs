//! Several jobs from one file: what all share, and what lies over it for one of them.

use toml::{Table, Value};

/// Puts the keys of one table over those of another, table by table. A list takes the place of a whole list.
pub fn lay_over(below: &mut Table, above: &Table) {
    for (key, value) in above {
        match (below.get_mut(key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => lay_over(below, above),
            _ => drop(below.insert(key.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_merged_and_lists_replaced() {
        let mut below: Table = "a = 1\n[run]\nseed = 1\nlist = [1, 2]".parse().unwrap();
        let above: Table = "[run]\nlist = [3]\nbatch_size = 2".parse().unwrap();
        lay_over(&mut below, &above);
        let wanted: Table = "a = 1\n[run]\nseed = 1\nlist = [3]\nbatch_size = 2".parse().unwrap();
        assert_eq!(below, wanted);
    }
}
