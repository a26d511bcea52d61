//! Where two runs part: the first step whose loss differs, and the first number of their checkpoints that does.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Proof;

/// In words, where `found` first differs from `wanted`; `None` when all that must be equal is.
pub fn first_difference(wanted: &Proof, found: &Proof) -> Option<String> {
    if (&wanted.weights, &wanted.losses, &wanted.metrics) == (&found.weights, &found.losses, &found.metrics) {
        return None;
    }
    let lines = wanted.lines.iter().zip(&found.lines).find(|(wanted, found)| wanted != found);
    let loss = lines.map(|(wanted, found)| in_line(wanted, found));
    let number = number(&wanted.checkpoint, &found.checkpoint);
    let words: Vec<String> = loss.into_iter().chain(number).collect();
    let more = || vec!["one of them has more lines of metrics".to_owned()];
    Some(if words.is_empty() { more() } else { words }.join("; "))
}

/// The first value that differs in two lines of metrics.
fn in_line(wanted: &str, found: &str) -> String {
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_default();
    let (wanted, found) = (parse(wanted), parse(found));
    let place = format!("the metrics of {} first differ after step {}", wanted["split"], wanted["step"]);
    match first_value("", &wanted, &found) {
        Some((key, wanted, found)) => format!("{place}: {key} is {wanted} there, {found} here"),
        None => place,
    }
}

fn first_value(key: &str, wanted: &Value, found: &Value) -> Option<(String, String, String)> {
    match (wanted, found) {
        (Value::Object(a), Value::Object(b)) => {
            a.iter().find_map(|(name, a)| first_value(name, a, b.get(name).unwrap_or(&Value::Null)))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).find_map(|(a, b)| first_value(key, a, b))
        }
        _ if wanted == found => None,
        _ => Some((key.to_owned(), wanted.to_string(), found.to_string())),
    }
}

/// The first number that differs in two checkpoints, by file name.
fn number(wanted: &Path, found: &Path) -> Option<String> {
    let mut names: Vec<_> = std::fs::read_dir(wanted)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".safetensors"))
        .collect();
    names.sort();
    names.into_iter().find_map(|name| {
        let read = |path: &Path| std::fs::read(path.join(&name)).ok();
        match (read(wanted), read(found)) {
            (Some(a), Some(b)) if a == b => None,
            (Some(a), Some(b)) => Some(in_file(&name, &a, &b)),
            _ => Some(format!("{name} is not in both checkpoints")),
        }
    })
}

fn in_file(name: &str, wanted: &[u8], found: &[u8]) -> String {
    let different = || format!("{name} differs in form");
    let (Ok(a), Ok(b)) = (SafeTensors::deserialize(wanted), SafeTensors::deserialize(found)) else {
        return different();
    };
    let mut tensors = a.names();
    tensors.sort_unstable();
    for tensor in tensors {
        let (Ok(a), Ok(b)) = (a.tensor(tensor), b.tensor(tensor)) else { return different() };
        if a.shape() != b.shape() || a.dtype() != b.dtype() {
            return different();
        }
        let Some(at) = a.data().iter().zip(b.data()).position(|(a, b)| a != b) else { continue };
        let size = if a.dtype() == Dtype::F32 { 4 } else { 2 };
        let (element, width) = (at / size, a.shape().last().copied().unwrap_or(1).max(1));
        let bits = |data: &[u8]| -> String {
            let bytes = &data[element * size..(element + 1) * size];
            bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect()
        };
        return format!(
            "{name}: `{tensor}` first differs in row {}, column {}: bits {} there, {} here",
            element / width,
            element % width,
            bits(a.data()),
            bits(b.data())
        );
    }
    different()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use safetensors::tensor::TensorView;

    use super::*;

    fn checkpoint(values: &[f32]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, vec![2, values.len() / 2], &bytes).unwrap();
        let file = safetensors::serialize(HashMap::from([("rows", view)]), None).unwrap();
        std::fs::write(home.path().join("table-a-00000.safetensors"), file).unwrap();
        home
    }

    fn proof(directory: &Path, loss: f64, weights: &str) -> Proof {
        let line = |step: u64, loss: f64| {
            let running = serde_json::json!([{ "task": "click", "logloss": loss }]);
            serde_json::json!({ "step": step, "split": "train", "running": running }).to_string()
        };
        let lines = vec![line(1, 0.5), line(2, loss)];
        let losses = lines.concat();
        Proof {
            weights: weights.to_owned(),
            losses,
            metrics: String::new(),
            lines,
            checkpoint: directory.to_owned(),
        }
    }

    #[test]
    fn the_first_step_and_the_first_number_are_named() {
        let (one, two) = (checkpoint(&[1.0, 2.0, 3.0, 4.0]), checkpoint(&[1.0, 2.0, 3.0, 4.5]));
        let wanted = proof(one.path(), 0.4, "a");
        assert_eq!(first_difference(&wanted, &wanted), None);
        let words = first_difference(&wanted, &proof(two.path(), 0.41, "b")).unwrap();
        assert!(words.contains("after step 2: logloss is 0.4 there, 0.41 here"), "{words}");
        assert!(words.contains("`rows` first differs in row 1, column 1: bits 40800000 there"), "{words}");
    }
}
