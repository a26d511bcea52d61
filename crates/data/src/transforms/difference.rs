//! Where two transforms differ, by column: rows prepared with the one mean nothing to a model trained with the other.

use super::{SparseMap, ToRow, Transforms, Vocabulary};

impl Transforms {
    /// The columns that these transforms read otherwise than `other`, each with how; none if both do the same.
    pub fn difference(&self, other: &Transforms) -> Vec<String> {
        let mut found = Vec::new();
        if self.id_text != other.id_text {
            found.push("all ids: another reading of their text".to_owned());
        }
        if self.missing_values != other.missing_values {
            found.push("all columns: other `missing_values`".to_owned());
        }
        let names: [Vec<&str>; 2] =
            [self, other].map(|all| (0..all.dense_count()).map(|column| all.dense_name(column)).collect());
        for (name, own, others) in pairs(&names) {
            found.extend(
                match (own.map(|place| &self.dense[place]), others.map(|place| &other.dense[place])) {
                    (Some(own), Some(others)) if own.column != others.column => {
                        told(name, "other transforms")
                    }
                    (Some(own), Some(others)) if own.standard != others.standard => {
                        told(name, "another mean or deviation")
                    }
                    _ => placed(name, own, others),
                },
            );
        }
        let names: [Vec<&str>; 2] =
            [self, other].map(|all| (0..all.sparse_count()).map(|column| all.sparse_name(column)).collect());
        for (name, own, others) in pairs(&names) {
            let maps = (own.map(|place| &self.sparse[place]), others.map(|place| &other.sparse[place]));
            found.extend(match maps {
                (Some(own), Some(others)) if own.column != others.column => told(name, "other transforms"),
                (Some(own), Some(others)) if vocabulary(own) != vocabulary(others) => {
                    told(name, "another vocabulary")
                }
                _ => placed(name, own, others),
            });
        }
        found
    }
}

/// Every name of either side, with its place on each.
fn pairs<'a>(names: &[Vec<&'a str>; 2]) -> Vec<(&'a str, Option<usize>, Option<usize>)> {
    let place = |side: usize, name: &str| names[side].iter().position(|other| *other == name);
    let own = names[0].iter().enumerate().map(|(at, &name)| (name, Some(at), place(1, name)));
    let new = names[1].iter().enumerate().filter(|(_, name)| place(0, name).is_none());
    own.chain(new.map(|(at, &name)| (name, None, Some(at)))).collect()
}

fn placed(name: &str, own: Option<usize>, other: Option<usize>) -> Option<String> {
    match (own, other) {
        (Some(own), Some(other)) if own == other => None,
        (Some(_), Some(_)) => told(name, "another place in the order"),
        (Some(_), None) => told(name, "only in the first"),
        (None, _) => told(name, "only in the second"),
    }
}

fn told(name: &str, how: &str) -> Option<String> {
    Some(format!("`{name}`: {how}"))
}

fn vocabulary(map: &SparseMap) -> Option<&Vocabulary> {
    match &map.to_row {
        ToRow::Vocabulary(vocabulary) => Some(vocabulary),
        _ => None,
    }
}
