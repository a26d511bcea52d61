//! Towers: every feature in one of them, and modules whose vectors fit the network.

use super::{super::nearest::suggest, Problem, WIDTH_MAX, between};
use crate::{
    config::raw::{RawTower, RawTowers},
    model::{CrossRank, ModelSpec, NetworkSpec},
    towers::{TowerModule, TowerSpec, TowerVariant, Towers},
};

/// The most towers.
const TOWERS_MAX: usize = 4096;

/// The fastest that modules may learn, beside all other dense weights.
const MODULE_RATE_MAX: f32 = 100.0;

pub(super) fn towers(raw: Option<&RawTowers>, model: &ModelSpec) -> Result<Towers, Problem> {
    let Some(raw) = raw else { return Ok(Towers::default()) };
    if raw.tower.is_empty() {
        let advice = "it lists a tower's name and features; `campanile towers JOB` writes such a list";
        return Err(Problem::missing("run.towers.tower", advice));
    }
    between("run.towers.tower", raw.tower.len(), 1, TOWERS_MAX)?;
    let list: Vec<TowerSpec> = raw
        .tower
        .iter()
        .enumerate()
        .map(|(place, tower)| one(place, tower, raw, model))
        .collect::<Result<_, _>>()?;
    if let Some(feature) =
        (0..model.features.len()).find(|feature| !list.iter().any(|tower| tower.features.contains(feature)))
    {
        let name = &model.features[feature].name;
        let advice = format!("`{name}` is in no tower; every feature must be in one");
        let last = list.len() - 1;
        return Err(Problem::value(
            &format!("run.towers.tower[{last}].features"),
            format!("{:?}", raw.tower[last].features),
            advice,
        ));
    }
    let module_rate = raw.module_rate.unwrap_or(1.0);
    if !(module_rate > 0.0 && module_rate <= MODULE_RATE_MAX) {
        let advice = format!(
            "modules move at a share of the learning rate of [run.dense], above 0 and up to {MODULE_RATE_MAX}; 1 is the rate of all others"
        );
        return Err(Problem::value("run.towers.module_rate", module_rate, advice));
    }
    let towers = Towers { variant: raw.variant, module_rate, list };
    if towers.variant == TowerVariant::Towers {
        check_modules(&towers, raw, model)?;
    }
    Ok(towers)
}

fn one(place: usize, raw: &RawTower, all: &RawTowers, model: &ModelSpec) -> Result<TowerSpec, Problem> {
    let path = |key: &str| format!("run.towers.tower[{place}].{key}");
    if raw.name.is_empty() {
        return Err(Problem::value(&path("name"), "\"\"", "it must not be empty"));
    }
    if all.tower[..place].iter().any(|other| other.name == raw.name) {
        return Err(Problem::value(
            &path("name"),
            format!("{:?}", raw.name),
            "a tower of this name stands above",
        ));
    }
    if raw.features.is_empty() {
        return Err(Problem::value(&path("features"), "[]", "a tower has at least one feature"));
    }
    let mut features = Vec::new();
    for (index, name) in raw.features.iter().enumerate() {
        let at = path(&format!("features[{index}]"));
        let Some(feature) = model.features.iter().position(|feature| feature.name == *name) else {
            let near = suggest(name, model.features.iter().map(|feature| feature.name.as_str()));
            return Err(Problem::value(
                &at,
                format!("{name:?}"),
                format!("there is no such feature; {near}"),
            ));
        };
        if let Some(other) = all.tower[..place].iter().find(|other| other.features.contains(name)) {
            let advice = format!(
                "tower `{}` has this feature already, and a feature is in one tower only",
                other.name
            );
            return Err(Problem::value(&at, format!("{name:?}"), advice));
        }
        if features.contains(&feature) {
            return Err(Problem::value(&at, format!("{name:?}"), "it stands before in this list"));
        }
        features.push(feature);
    }
    features.sort_unstable();
    Ok(TowerSpec { name: raw.name.clone(), features, module: raw.module.unwrap_or(all.module) })
}

/// Modules whose vectors meet in the network.
fn check_modules(towers: &Towers, raw: &RawTowers, model: &ModelSpec) -> Result<(), Problem> {
    for (place, tower) in towers.list.iter().enumerate() {
        let module = match raw.tower[place].module {
            Some(_) => format!("run.towers.tower[{place}].module"),
            None => "run.towers.module".to_owned(),
        };
        let (name, path) = (&tower.name, |key: &str| format!("{module}.{key}"));
        match tower.module {
            TowerModule::Identity => continue,
            TowerModule::Ensemble { per_feature, mixed, width } => {
                between(&path("width"), width, 1, WIDTH_MAX)?;
                between(&path("per_feature"), per_feature, 0, WIDTH_MAX / width)?;
                between(&path("mixed"), mixed, 0, WIDTH_MAX / width)?;
                if per_feature + mixed == 0 {
                    let advice = "with `mixed` = 0 too the tower hands on nothing; one must be at least 1";
                    return Err(Problem::value(&path("per_feature"), 0, advice));
                }
                let dim = |feature: usize| model.table_of(feature).dim;
                let first = tower.features[0];
                let other = tower.features.iter().find(|&&feature| dim(feature) != dim(first));
                if let (Some(&other), 1..) = (other, per_feature) {
                    let (one, two) = (&model.features[first].name, &model.features[other].name);
                    let advice = format!(
                        "tower `{name}` projects its features by one matrix, and `{one}` has rows of {} floats, \
                         `{two}` of {}; give their tables one dim, or set per_feature = 0",
                        dim(first),
                        dim(other)
                    );
                    return Err(Problem::value(&path("per_feature"), per_feature, advice));
                }
            }
            TowerModule::Cross { layers, rank, width } => {
                between(&path("width"), width, 1, WIDTH_MAX)?;
                between(&path("layers"), layers, 1, 64)?;
                if let CrossRank::Low(rank) = rank {
                    between(&path("rank"), rank, 1, WIDTH_MAX)?;
                }
            }
        }
        check_width(towers, tower, &path("width"), model)?;
    }
    Ok(())
}

/// The width of a module's vectors against the network's.
fn check_width(towers: &Towers, tower: &TowerSpec, path: &str, model: &ModelSpec) -> Result<(), Problem> {
    let width_of = |tower: &TowerSpec| match tower.module {
        TowerModule::Identity => None,
        TowerModule::Ensemble { width, .. } | TowerModule::Cross { width, .. } => Some(width),
    };
    let Some(width) = width_of(tower) else { return Ok(()) };
    match &model.network {
        NetworkSpec::Dlrm { bottom, .. } => {
            let first = towers.list.iter().find_map(width_of).unwrap_or(width);
            let wanted = bottom.last().copied().unwrap_or(first);
            if width == wanted {
                return Ok(());
            }
            let whose = if bottom.is_empty() { "the first module" } else { "run.model.bottom" };
            let advice = format!(
                "in \"dlrm\" all vectors meet, so it must be {wanted}, the width that {whose} ends with"
            );
            Err(Problem::value(path, width, advice))
        }
        NetworkSpec::Dcn { .. } | NetworkSpec::Mlp { .. } => Ok(()),
        NetworkSpec::TwoTower { .. }
        | NetworkSpec::LogisticRegression
        | NetworkSpec::FactorizationMachine => {
            let advice =
                "this model takes rows as they are; use \"identity\" towers, or \"dlrm\", \"dcn\" or \"mlp\"";
            Err(Problem::value(path, width, advice))
        }
    }
}
