//! The nearest known word to a misspelt one.

/// The candidate that `word` most likely meant, if any is near enough to be worth a suggestion.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = word.chars().count().div_ceil(3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// `did you mean ...?`, or all candidates when none is near.
pub(crate) fn suggest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(word, candidates.clone()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => {
            let all: Vec<String> = candidates.into_iter().map(|candidate| format!("`{candidate}`")).collect();
            if all.is_empty() {
                "nothing may stand there".to_owned()
            } else {
                format!("known are {}", all.join(", "))
            }
        }
    }
}

/// Letters to insert, remove, replace or swap with their neighbour (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    let mut costs = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in costs.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cost) in costs[0].iter_mut().enumerate() {
        *cost = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = costs[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            costs[i][j] = replace.min(costs[i - 1][j] + 1).min(costs[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                costs[i][j] = costs[i][j].min(costs[i - 2][j - 2] + 1);
            }
        }
    }
    costs[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        for (a, b, wanted) in
            [("", "", 0), ("", "ab", 2), ("bach", "batch", 1), ("sede", "seed", 1), ("a", "b", 1)]
        {
            assert_eq!(distance(a, b), wanted, "{a} {b}");
        }
    }

    #[test]
    fn far_words_are_not_suggested() {
        assert_eq!(nearest("bach_size", ["epochs", "batch_size"]), Some("batch_size"));
        assert_eq!(nearest("colour", ["epochs", "batch_size"]), None);
    }
}
