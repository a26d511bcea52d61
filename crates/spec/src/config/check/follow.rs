//! Tables that follow a teacher: features that exist and have one id, and a network with a place for their vectors.

use super::{super::nearest::suggest, Problem, between, training};
use crate::{
    data::{Columns, SourceSpec},
    follow::{EMBEDDING_FLOATS_MAX, Follow, follower_name},
    model::{ModelSpec, NetworkSpec},
};

/// Adds the tables that follow to the model.
pub(super) fn follow(
    raw: Option<Follow>,
    columns: &Columns,
    source: &SourceSpec,
    model: &mut ModelSpec,
) -> Result<Follow, Problem> {
    let Some(follow) = raw else { return Ok(Follow::default()) };
    if follow.features.is_empty() {
        let advice = "name at least one feature, or leave [run.follow] out";
        return Err(Problem::value("run.follow.features", "[]", advice));
    }
    between("run.follow.floats", follow.floats, 1, EMBEDDING_FLOATS_MAX)?;
    training::sparse_optimizer("run.follow.optimizer", follow.optimizer)?;
    training::rate("run.follow", follow.learning_rate)?;
    if matches!(model.network, NetworkSpec::LogisticRegression | NetworkSpec::FactorizationMachine) {
        let advice = "the rows of this model are its weights, and it has no layer to take another vector; use \
                      another [run.model]";
        return Err(Problem::value("run.follow.features", format!("{:?}", follow.features), advice));
    }
    for (index, name) in follow.features.iter().enumerate() {
        let place = feature(index, name, &follow.features, (columns, source), model)?;
        model.add_follower(place, &follow);
    }
    Ok(follow)
}

/// The place of a feature that can be followed by.
fn feature(
    index: usize,
    name: &str,
    all: &[String],
    (columns, source): (&Columns, &SourceSpec),
    model: &ModelSpec,
) -> Result<usize, Problem> {
    let (path, shown) = (format!("run.follow.features[{index}]"), format!("{name:?}"));
    let known = || columns.sparse.iter().map(|column| &*column.name);
    let Some(place) = known().position(|known| known == name) else {
        let advice = format!("there is no feature of this name; {}", suggest(name, known()));
        return Err(Problem::value(&path, shown, advice));
    };
    if all[..index].iter().any(|other| other == name) {
        return Err(Problem::value(&path, shown, "it stands there already"));
    }
    if columns.sparse[place].bag_max > 1 {
        let what = if matches!(source, SourceSpec::Synthetic(_)) { "the world gives it" } else { "it has" };
        let advice = format!(
            "{what} up to {} ids a sample, and what the teacher says of a sample is said of one; name a feature with \
             one id",
            columns.sparse[place].bag_max
        );
        return Err(Problem::value(&path, shown, advice));
    }
    let own = follower_name(name);
    let features = model.features.iter().map(|feature| &feature.name);
    if features.chain(model.tables.iter().map(|table| &table.name)).any(|taken| *taken == own) {
        let advice =
            format!("its table would be called `{own}`, and the job has that already; rename that one");
        return Err(Problem::value(&path, shown, advice));
    }
    Ok(place)
}
