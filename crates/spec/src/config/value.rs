//! Numbers, words, paths and lists as values of the job file.

use std::path::PathBuf;

use toml::de::DeValue;

use super::{
    error::Problem,
    keys::{Form, Given, Keys, Node, Reader, Value},
};
use crate::{model::CrossRank, world::PerFeature};

/// Reads a choice: a word, or a table with `kind`.
pub(crate) fn read_choice<T: Keys>(given: &Given<'_>) -> Result<T, Problem> {
    let mut reader = match given.value {
        DeValue::String(_) => Reader::of_word(given),
        DeValue::Table(_) => given.reader()?,
        _ => return Err(given.wrong("a word, or a table with `kind`")),
    };
    let value = T::take(&mut reader);
    reader.finish()?;
    value
}

/// Writes a choice: the word alone when it has no keys.
pub(crate) fn write_choice<T: Keys>(choice: &T) -> Node {
    let mut keys = Vec::new();
    choice.put(&mut keys);
    if let [(_, word)] = &keys[..] {
        return word.clone();
    }
    let parts = keys.iter().filter_map(|(key, node)| Some(format!("{key} = {}", inline(node)?)));
    Node::Inline(format!("{{ {} }}", parts.collect::<Vec<_>>().join(", ")))
}

/// A node on one line; `None` when it is absent.
pub(crate) fn inline(node: &Node) -> Option<String> {
    let table = |keys: &[(&'static str, Node)]| {
        let parts = keys.iter().filter_map(|(key, node)| Some(format!("{key} = {}", inline(node)?)));
        format!("{{ {} }}", parts.collect::<Vec<_>>().join(", "))
    };
    match node {
        Node::Absent => None,
        Node::Inline(text) => Some(text.clone()),
        Node::Table(keys) => Some(table(keys)),
        Node::Tables(tables) => {
            Some(format!("[{}]", tables.iter().map(|keys| table(keys)).collect::<Vec<_>>().join(", ")))
        }
    }
}

macro_rules! whole_number {
    ($Type:ty, $wanted:literal) => {
        impl Value for $Type {
            fn form() -> Form {
                Form::Plain("whole number")
            }

            fn read(given: &Given<'_>) -> Result<$Type, Problem> {
                let DeValue::Integer(number) = given.value else { return Err(given.wrong($wanted)) };
                // TOML promises 64 signed bits, so that other readers of the saved job can read it.
                let number = i64::from_str_radix(number.as_str(), number.radix());
                number
                    .ok()
                    .and_then(|number| <$Type>::try_from(number).ok())
                    .ok_or_else(|| given.wrong($wanted))
            }

            fn write(&self) -> Node {
                Node::Inline(self.to_string())
            }
        }
    };
}

whole_number!(u64, "a whole number from 0 to 2^63 - 1");
whole_number!(u32, "a whole number from 0 to 2^32 - 1");
whole_number!(usize, "a whole number from 0 to 2^63 - 1");
whole_number!(i64, "a whole number");

macro_rules! number {
    ($Type:ty) => {
        impl Value for $Type {
            fn form() -> Form {
                Form::Plain("number")
            }

            fn read(given: &Given<'_>) -> Result<$Type, Problem> {
                let number: Option<$Type> = match given.value {
                    DeValue::Float(number) => number.as_str().parse().ok(),
                    DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
                    _ => None,
                };
                number.filter(|number| number.is_finite()).ok_or_else(|| given.wrong("a finite number"))
            }

            fn write(&self) -> Node {
                Node::Inline(format!("{self:?}")) // The shortest digits that read back as the same bits.
            }
        }
    };
}

number!(f32);
number!(f64);

impl Value for bool {
    fn form() -> Form {
        Form::Plain("`true` or `false`")
    }

    fn read(given: &Given<'_>) -> Result<bool, Problem> {
        match given.value {
            DeValue::Boolean(value) => Ok(*value),
            _ => Err(given.wrong("true or false")),
        }
    }

    fn write(&self) -> Node {
        Node::Inline(self.to_string())
    }
}

impl Value for String {
    fn form() -> Form {
        Form::Plain("text")
    }

    fn read(given: &Given<'_>) -> Result<String, Problem> {
        match given.value {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(given.wrong("text in quotes")),
        }
    }

    fn write(&self) -> Node {
        Node::Inline(quoted(self))
    }
}

impl Value for PathBuf {
    fn form() -> Form {
        Form::Plain("path")
    }

    fn read(given: &Given<'_>) -> Result<PathBuf, Problem> {
        match given.value {
            DeValue::String(text) if !text.is_empty() => Ok(PathBuf::from(&**text)),
            _ => Err(given.wrong("a path in quotes")),
        }
    }

    fn write(&self) -> Node {
        Node::Inline(quoted(&self.to_string_lossy()))
    }
}

impl Value for char {
    fn form() -> Form {
        Form::Plain("one ASCII character")
    }

    fn read(given: &Given<'_>) -> Result<char, Problem> {
        let wrong = || given.wrong("one ASCII character in quotes");
        let DeValue::String(text) = given.value else { return Err(wrong()) };
        let mut letters = text.chars();
        match (letters.next(), letters.next()) {
            (Some(letter), None) if letter.is_ascii() => Ok(letter),
            _ => Err(wrong()),
        }
    }

    fn write(&self) -> Node {
        Node::Inline(quoted(&self.to_string()))
    }
}

impl<T: Value> Value for Option<T> {
    fn form() -> Form {
        Form::Optional(Box::new(T::form()))
    }

    fn read(given: &Given<'_>) -> Result<Option<T>, Problem> {
        T::read(given).map(Some)
    }

    fn write(&self) -> Node {
        self.as_ref().map_or(Node::Absent, Value::write)
    }

    fn read_absent(_text: &str, _path: &str) -> Option<Result<Option<T>, Problem>> {
        Some(Ok(None))
    }
}

impl<T: Value> Value for Vec<T> {
    fn form() -> Form {
        Form::List(Box::new(T::form()))
    }

    fn read(given: &Given<'_>) -> Result<Vec<T>, Problem> {
        let DeValue::Array(list) = given.value else { return Err(given.wrong("a list in [brackets]")) };
        let element = |(index, value): (usize, &toml::Spanned<DeValue<'_>>)| {
            let path = format!("{}[{index}]", given.path);
            let (text, span) = (given.text, value.span());
            T::read(&Given { text, value: value.get_ref(), span, path, under: None })
        };
        list.iter().enumerate().map(element).collect()
    }

    fn write(&self) -> Node {
        let nodes: Vec<Node> = self.iter().map(Value::write).collect();
        let is_tables = !nodes.is_empty() && nodes.iter().all(|node| matches!(node, Node::Table(_)));
        if !is_tables {
            return Node::Inline(format!(
                "[{}]",
                nodes.iter().filter_map(inline).collect::<Vec<_>>().join(", ")
            ));
        }
        let keys = |node| if let Node::Table(keys) = node { Some(keys) } else { None };
        Node::Tables(nodes.into_iter().filter_map(keys).collect())
    }
}

/// TOML's basic string: quotes, backslashes and control characters escaped.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            letter if letter.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

impl Value for CrossRank {
    fn form() -> Form {
        Form::Plain("`\"full\"` or whole number")
    }

    fn read(given: &Given<'_>) -> Result<CrossRank, Problem> {
        match given.value {
            DeValue::String(word) if &**word == "full" => Ok(CrossRank::Full),
            DeValue::Integer(_) => usize::read(given).map(CrossRank::Low),
            _ => Err(given.wrong("\"full\" or a whole number")),
        }
    }

    fn write(&self) -> Node {
        match self {
            CrossRank::Full => Node::Inline(quoted("full")),
            CrossRank::Low(rank) => rank.write(),
        }
    }
}

impl<T: Value> Value for PerFeature<T> {
    fn form() -> Form {
        Form::PerFeature(Box::new(T::form()))
    }

    fn read(given: &Given<'_>) -> Result<PerFeature<T>, Problem> {
        match given.value {
            DeValue::Array(_) => Vec::read(given).map(PerFeature::Each),
            _ => T::read(given).map(PerFeature::All),
        }
    }

    fn write(&self) -> Node {
        match self {
            PerFeature::All(value) => value.write(),
            PerFeature::Each(values) => values.write(),
        }
    }
}
