//! JSON and TOML, spoilt as trees: what comes out still reads, and says something odd.

use serde_json::{Value, json};

use super::EXTREMES;
use crate::random::Random;

/// Does one to three things to a JSON text; what is not JSON stays as it is.
pub fn json(text: &mut Vec<u8>, random: &mut Random) {
    let Ok(mut value) = serde_json::from_slice::<Value>(text) else { return };
    spoil(&mut value, random);
    *text = match random.one_in(2) {
        true => serde_json::to_vec_pretty(&value),
        false => serde_json::to_vec(&value),
    }
    .unwrap_or_default();
}

/// The same to a TOML text; what TOML cannot say is left out.
pub fn toml(text: &mut Vec<u8>, random: &mut Random) {
    let table = std::str::from_utf8(text).ok().and_then(|text| text.parse::<toml::Table>().ok());
    let Some(mut value) = table.and_then(|table| serde_json::to_value(table).ok()) else { return };
    spoil(&mut value, random);
    if let Ok(spoilt) = toml::to_string(&value) {
        *text = spoilt.into_bytes();
    }
}

/// Does one to three things to a tree.
pub fn spoil(value: &mut Value, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let whole = value.clone();
        let mut place = random.below(count(value));
        if let Some(node) = nth(value, &mut place) {
            change(node, &whole, random);
        }
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, left)),
        Value::Object(fields) => fields.values_mut().find_map(|field| nth(field, left)),
        _ => None,
    }
}

fn change(node: &mut Value, whole: &Value, random: &mut Random) {
    match node {
        Value::Object(fields) if !fields.is_empty() && !random.one_in(4) => {
            let key = fields.keys().nth(random.below(fields.len())).cloned().unwrap_or_default();
            match random.below(3) {
                0 => drop(fields.remove(&key)),
                1 => drop(fields.insert(string(random), odd(random))),
                _ => {
                    let value = fields.remove(&key).unwrap_or_default();
                    fields.insert(string(random), value);
                }
            }
        }
        Value::Array(items) if !items.is_empty() && !random.one_in(4) => {
            let place = random.below(items.len());
            match random.below(4) {
                0 => drop(items.remove(place)),
                1 => items.push(items[place].clone()),
                2 => items.clear(),
                _ => *items = vec![items[place].clone(); *random.pick(&[2, 65, 1000])],
            }
        }
        Value::Number(number) if random.one_in(3) => {
            let near = number.as_i64().unwrap_or(0).saturating_add(*random.pick(&[-1, 1]));
            *node = json!(near);
        }
        _ if random.one_in(3) => {
            let mut place = random.below(count(whole));
            let mut copy = whole.clone();
            if let Some(other) = nth(&mut copy, &mut place) {
                *node = other.take();
            }
        }
        _ => *node = odd(random),
    }
}

/// A value that nobody expects.
fn odd(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(random.pick(&[1e308, -1e308, 1e38, 3e38, 1e-300, 0.5, -0.0, f64::MIN_POSITIVE])),
        4 => json!([]),
        5 => json!({}),
        6 => (0..100).fold(json!(0), |inner, _| json!([inner])),
        7 => json!(string(random)),
        _ => json!(random.pick(&EXTREMES)),
    }
}

fn string(random: &mut Random) -> String {
    match random.below(10) {
        0 => String::new(),
        1 => "../../../tmp/x".to_owned(),
        2 => "/etc/passwd".to_owned(),
        3 => "\u{0}\u{1b}[31m\u{7f}".to_owned(),
        4 => "é\u{202e}\u{10ffff}".repeat(1 + random.below(5)),
        5 => "x".repeat(*random.pick(&[63, 300, 20_000])),
        6 => "NaN".to_owned(),
        7 => random.pick(&EXTREMES).to_string(),
        8 => "ffffffff".to_owned(),
        _ => "a".to_owned(),
    }
}
