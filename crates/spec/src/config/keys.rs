//! How the job's keys are declared: once, with their type, default and meaning.
//!
//! Three macros declare the sections of a job file as ordinary types and add to each what the file needs:
//! reading with the place of every mistake, writing back, and the text of the reference page.
//!
//! ```text
//!   section!   a struct    a TOML table; a key without `= default` is required
//!   choice!    an enum     a word, or a table with `kind = "word"` and the keys of that word
//!   words!     an enum     a word
//! ```
//!
//! Serde is not used for reading: its tagged enums lose the place of a mistake and the list of known keys,
//! which are what a user needs. It is still derived, so that other files (a checkpoint's manifest) may hold
//! the same types.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::{
    error::{At, JobError, Problem, section_label, split_path},
    nearest::suggest,
};

/// A value as it stands in the file.
#[derive(Clone)]
pub(crate) struct Given<'a> {
    pub(crate) text: &'a str,
    pub(crate) value: &'a DeValue<'a>,
    pub(crate) span: Range<usize>,
    /// The key's path, such as `run.data.sparse[2].rows`.
    pub(crate) path: String,
    /// For a table: what its keys say where the user left them out, instead of their defaults.
    pub(crate) under: Option<&'a DeTable<'a>>,
}

impl<'a> Given<'a> {
    /// The value as the user wrote it, shortened.
    pub(crate) fn shown(&self) -> String {
        if self.value.is_table() {
            return "a table".to_owned();
        }
        let whole = self.text.get(self.span.clone()).unwrap_or_default().trim();
        let mut shown: String = whole.chars().take(60).collect();
        if shown.len() < whole.len() {
            shown.push('…');
        }
        shown
    }

    /// The error that something else was wanted.
    pub(crate) fn wrong(&self, wanted: impl Into<String>) -> Problem {
        let (section, key) = split_path(&self.path);
        let (value, wanted) = (self.shown(), wanted.into());
        Problem::at(self.span.clone(), JobError::WrongType { at: At::default(), key, section, value, wanted })
    }

    /// The table that stands here.
    pub(crate) fn reader(&self) -> Result<Reader<'a>, Problem> {
        match self.value {
            DeValue::Table(table) => {
                let reader = Reader::new(self.text, Some(table), self.span.clone(), self.path.clone());
                Ok(Reader { under: self.under, ..reader })
            }
            _ => Err(self.wrong("a table")),
        }
    }
}

/// What a value looks like when it is written back.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    /// Nothing: an optional key that is not set.
    Absent,
    /// One line.
    Inline(String),
    /// A `[section]`.
    Table(Vec<(&'static str, Node)>),
    /// A `[[section]]` for each.
    Tables(Vec<Vec<(&'static str, Node)>>),
}

/// What may stand at a key, for the reference page.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    /// One value, described.
    Plain(&'static str),
    /// A list of it.
    List(Box<Form>),
    /// It, or a list with one for every feature.
    PerFeature(Box<Form>),
    /// It, or nothing.
    Optional(Box<Form>),
    /// One of several words.
    Words { words: Vec<Word> },
    /// One of several words with keys of their own.
    Choice { variants: Vec<Variant> },
    /// A table.
    Section { docs: &'static str, keys: Vec<Key> },
}

/// One word of a closed choice.
#[derive(Debug, Clone)]
pub(crate) struct Word {
    pub(crate) name: String,
    pub(crate) docs: &'static str,
}

/// One word of a choice, and its keys.
#[derive(Debug, Clone)]
pub(crate) struct Variant {
    pub(crate) word: Word,
    pub(crate) keys: Vec<Key>,
}

/// One key, for the reference page.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) docs: &'static str,
    pub(crate) form: Form,
    /// `None`: the key is required.
    pub(crate) default: Option<Node>,
}

impl Key {
    pub(crate) fn new<T: Value>(name: &'static str, docs: &'static str, default: Option<fn() -> T>) -> Key {
        Key { name, docs, form: T::form(), default: default.map(|default| default().write()) }
    }
}

/// Something that may stand at a key.
pub(crate) trait Value: Sized {
    /// What may stand there.
    fn form() -> Form;
    /// Reads it.
    fn read(given: &Given<'_>) -> Result<Self, Problem>;
    /// Writes it back, so that reading it again gives the same value.
    fn write(&self) -> Node;
    /// What an absent key without a default means: for a section, one with no keys set.
    fn read_absent(_text: &str, _path: &str) -> Option<Result<Self, Problem>> {
        None
    }
}

/// Something with keys of its own inside a table.
pub(crate) trait Keys: Sized {
    /// Reads its keys; the caller finishes the reader.
    fn take(reader: &mut Reader<'_>) -> Result<Self, Problem>;
    /// Writes its keys.
    fn put(&self, keys: &mut Vec<(&'static str, Node)>);
}

/// A table being read: remembers which keys were asked for, so that the others can be refused.
pub(crate) struct Reader<'a> {
    text: &'a str,
    table: Option<&'a DeTable<'a>>,
    /// See [`Given::under`].
    under: Option<&'a DeTable<'a>>,
    /// A [`choice!`] written as a word alone.
    word: Option<Given<'a>>,
    span: Range<usize>,
    path: String,
    asked: Vec<&'static str>,
    /// The word of a [`choice!`], and the keys that belong to its other words.
    kind: Option<String>,
    elsewhere: Vec<(&'static str, String)>,
    kind_failed: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        text: &'a str,
        table: Option<&'a DeTable<'a>>,
        span: Range<usize>,
        path: String,
    ) -> Reader<'a> {
        let (asked, elsewhere, kind_failed) = (Vec::new(), Vec::new(), false);
        let (under, word, kind) = (None, None, None);
        Reader { text, table, under, word, span, path, asked, kind, elsewhere, kind_failed }
    }

    /// The same table, laid over another.
    pub(crate) fn over(self, under: &'a DeTable<'a>) -> Reader<'a> {
        Reader { under: Some(under), ..self }
    }

    /// A choice written as a word alone: all its keys have their defaults.
    pub(crate) fn of_word(given: &Given<'a>) -> Reader<'a> {
        let mut reader = Reader::new(given.text, None, given.span.clone(), given.path.clone());
        reader.word = Some(given.clone());
        reader
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value at `key`, if the user wrote one or the table below has one.
    pub(crate) fn given(&mut self, key: &'static str) -> Option<Given<'a>> {
        self.asked.push(key);
        if key == "kind" && self.word.is_some() {
            return self.word.clone();
        }
        let at_key = |table: &'a DeTable<'a>| table.iter().find(|(name, _)| name.get_ref() == key);
        let (mine, under) = (self.table.and_then(at_key), self.under.and_then(at_key));
        let ((_, value), text, path) = (mine.or(under)?, self.text, self.path_of(key));
        let span = mine.map_or_else(|| self.span.clone(), |(_, value)| value.span());
        let under = under.and_then(|(_, value)| value.get_ref().as_table());
        Some(Given { text, value: value.get_ref(), span, path, under })
    }

    /// The value at `key`, or its default.
    pub(crate) fn take<T: Value>(
        &mut self,
        key: &'static str,
        docs: &'static str,
        default: Option<fn() -> T>,
    ) -> Result<T, Problem> {
        match (self.given(key), default) {
            (Some(given), _) => T::read(&given),
            (None, Some(default)) => Ok(default()),
            (None, None) => {
                T::read_absent(self.text, &self.path_of(key)).unwrap_or_else(|| Err(self.missing(key, docs)))
            }
        }
    }

    fn missing(&self, key: &str, docs: &str) -> Problem {
        let mut meaning = format!("it says {}", sentence_inside(docs));
        if let (Some(_), Some(kind)) = (&self.word, &self.kind) {
            meaning.push_str(&format!("; write {{ kind = \"{kind}\", {key} = ... }}"));
        }
        let (key, section) = (key.to_owned(), section_label(&self.path));
        Problem::at(self.span.clone(), JobError::MissingKey { at: At::default(), key, section, meaning })
    }

    /// Starts a choice: the place of its word in `variants`.
    pub(crate) fn kind(&mut self, variants: &[Variant]) -> Result<usize, Problem> {
        let found = self.kind_of(variants);
        self.kind_failed = found.is_err();
        if let Ok(index) = found {
            self.kind = Some(variants[index].word.name.clone());
            let others = variants.iter().enumerate().filter(|&(other, _)| other != index);
            let keys = others.flat_map(|(_, v)| v.keys.iter().map(|key| (key.name, v.word.name.clone())));
            self.elsewhere = keys.collect();
        }
        found
    }

    fn kind_of(&mut self, variants: &[Variant]) -> Result<usize, Problem> {
        let Some(given) = self.given("kind") else {
            return Err(
                self.missing("kind", &format!("which: {}", word_list(variants.iter().map(|v| &v.word))))
            );
        };
        word_of(&given, variants.iter().map(|variant| &variant.word))
    }

    /// Refuses the keys that nobody asked for.
    pub(crate) fn finish(&self) -> Result<(), Problem> {
        if self.kind_failed {
            return Ok(()); // The error about `kind` comes first; without it the known keys are not known.
        }
        let keys = self.table.into_iter().flat_map(|table| table.iter().map(|(key, _)| key));
        let unknown = keys.filter(|key| !self.asked.contains(&&**key.get_ref()));
        let Some(first) = unknown.min_by_key(|key| key.span().start) else { return Ok(()) };
        let key = first.get_ref().to_string();
        let advice = match (&self.kind, self.elsewhere.iter().find(|(name, _)| *name == key)) {
            (Some(kind), Some((_, owner))) => {
                format!("it belongs to kind = \"{owner}\", and the kind here is \"{kind}\"")
            }
            _ => suggest(&key, self.asked.iter().copied()),
        };
        let section = section_label(&self.path);
        Err(Problem::at(first.span(), JobError::UnknownKey { at: At::default(), key, section, advice }))
    }
}

/// The place of the given word among `words`.
pub(crate) fn word_of<'w>(
    given: &Given<'_>,
    words: impl Iterator<Item = &'w Word> + Clone,
) -> Result<usize, Problem> {
    let wanted = || word_list(words.clone());
    let DeValue::String(word) = given.value else { return Err(given.wrong(wanted())) };
    let mut numbered = words.clone().enumerate();
    match numbered.find(|(_, known)| known.name == **word) {
        Some((index, _)) => Ok(index),
        None => match super::nearest::nearest(word, words.clone().map(|known| &*known.name)) {
            Some(near) => Err(given.wrong(format!("{}; did you mean \"{near}\"?", wanted()))),
            None => Err(given.wrong(wanted())),
        },
    }
}

fn word_list<'w>(words: impl Iterator<Item = &'w Word>) -> String {
    let names: Vec<String> = words.map(|word| format!("\"{}\"", word.name)).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The first sentence of a doc comment, to stand inside another sentence.
fn sentence_inside(docs: &str) -> String {
    let text = docs.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = text.split_once(". ").map_or(text.as_str(), |(first, _)| first).trim_end_matches('.');
    let mut letters = first.chars();
    letters.next().map(|letter| letter.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// `RowwiseAdagrad` as `rowwise_adagrad`, as serde's `snake_case` does.
pub(crate) fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// The default of a key as `Option<fn() -> T>`.
macro_rules! default_of {
    ($Type:ty) => {
        None::<fn() -> $Type>
    };
    ($Type:ty, $default:expr) => {
        Some((|| $default) as fn() -> $Type)
    };
}

/// Declares a struct that is a table of the job file; `#[derive]` lists what comes on top of the usual.
/// `flattens name: Type` adds a field whose own keys (of
/// another section or of a choice) stand in the same table.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($Extra:ident),*)])?
        $(#[serde($($serde:tt)*)])?
        $vis:vis struct $Name:ident $(flattens $flat:ident : $Flat:ty)? {
            $(
                $(#[doc = $key_doc:literal])*
                $key_vis:vis $key:ident : $Type:ty $(= $default:expr)?
            ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize $($(, $Extra)*)?)]
        $(#[serde($($serde)*)])?
        $vis struct $Name {
            $(
                #[doc = "The keys that depend on its kind."]
                pub $flat: $Flat,
            )?
            $(
                $(#[doc = $key_doc])*
                $key_vis $key: $Type,
            )*
        }

        impl $crate::config::keys::Keys for $Name {
            fn take(
                reader: &mut $crate::config::keys::Reader<'_>,
            ) -> Result<Self, $crate::config::error::Problem> {
                $( let $flat = <$Flat as $crate::config::keys::Keys>::take(reader); )?
                $(
                    let docs = concat!("" $(, $key_doc, "\n")*);
                    let default = $crate::config::keys::default_of!($Type $(, $default)?);
                    let $key = reader.take::<$Type>(stringify!($key), docs, default);
                )*
                reader.finish()?;
                Ok($Name { $($flat: $flat?,)? $($key: $key?,)* })
            }

            fn put(&self, keys: &mut Vec<(&'static str, $crate::config::keys::Node)>) {
                $( $crate::config::keys::Keys::put(&self.$flat, keys); )?
                $( keys.push((stringify!($key), $crate::config::keys::Value::write(&self.$key))); )*
            }
        }

        impl $crate::config::keys::Value for $Name {
            fn form() -> $crate::config::keys::Form {
                let keys = vec![
                    $(
                        $crate::config::keys::Key {
                            name: "kind",
                            docs: "Which of the kinds below; their keys stand in this section.",
                            form: <$Flat as $crate::config::keys::Value>::form(),
                            default: None,
                        },
                    )?
                    $(
                        $crate::config::keys::Key::new::<$Type>(
                            stringify!($key),
                            concat!("" $(, $key_doc, "\n")*),
                            $crate::config::keys::default_of!($Type $(, $default)?),
                        ),
                    )*
                ];
                $crate::config::keys::Form::Section { docs: concat!("" $(, $doc, "\n")*), keys }
            }

            fn read(given: &$crate::config::keys::Given<'_>) -> Result<Self, $crate::config::error::Problem> {
                <Self as $crate::config::keys::Keys>::take(&mut given.reader()?)
            }

            fn write(&self) -> $crate::config::keys::Node {
                let mut keys = Vec::new();
                $crate::config::keys::Keys::put(self, &mut keys);
                $crate::config::keys::Node::Table(keys)
            }

            fn read_absent(text: &str, path: &str) -> Option<Result<Self, $crate::config::error::Problem>> {
                let mut reader = $crate::config::keys::Reader::new(text, None, 0..0, path.to_owned());
                Some(<Self as $crate::config::keys::Keys>::take(&mut reader))
            }
        }
    };
}

/// Declares an enum whose variants may have keys: a word, or a table with `kind` and the keys. `#[derive]`
/// lists what comes on top of the usual.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($Extra:ident),*)])?
        $vis:vis enum $Name:ident {
            $(
                $(#[doc = $variant_doc:literal])*
                $Variant:ident $({
                    $(
                        $(#[doc = $key_doc:literal])*
                        $key:ident : $Type:ty $(= $default:expr)?
                    ),* $(,)?
                })?
            ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize $($(, $Extra)*)?)]
        #[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
        $vis enum $Name {
            $(
                $(#[doc = $variant_doc])*
                $Variant $({ $( $(#[doc = $key_doc])* $key: $Type, )* })?,
            )*
        }

        impl $Name {
            fn variants() -> Vec<$crate::config::keys::Variant> {
                vec![$(
                    $crate::config::keys::Variant {
                        word: $crate::config::keys::Word {
                            name: $crate::config::keys::snake_case(stringify!($Variant)),
                            docs: concat!("" $(, $variant_doc, "\n")*),
                        },
                        keys: vec![$($(
                            $crate::config::keys::Key::new::<$Type>(
                                stringify!($key),
                                concat!("" $(, $key_doc, "\n")*),
                                $crate::config::keys::default_of!($Type $(, $default)?),
                            ),
                        )*)?],
                    },
                )*]
            }
        }

        impl $crate::config::keys::Keys for $Name {
            fn take(
                reader: &mut $crate::config::keys::Reader<'_>,
            ) -> Result<Self, $crate::config::error::Problem> {
                let variants = Self::variants();
                let kind = variants[reader.kind(&variants)?].word.name.as_str();
                $(
                    if kind == $crate::config::keys::snake_case(stringify!($Variant)) {
                        $($(
                            let docs = concat!("" $(, $key_doc, "\n")*);
                            let default = $crate::config::keys::default_of!($Type $(, $default)?);
                            let $key = reader.take::<$Type>(stringify!($key), docs, default);
                        )*)?
                        return Ok($Name::$Variant $({ $($key: $key?,)* })?);
                    }
                )*
                unreachable!("`Reader::kind` gives one of the variants, not {kind}")
            }

            fn put(&self, keys: &mut Vec<(&'static str, $crate::config::keys::Node)>) {
                match self {
                    $(
                        $Name::$Variant $({ $($key,)* })? => {
                            let kind = $crate::config::keys::snake_case(stringify!($Variant));
                            keys.push(("kind", $crate::config::keys::Value::write(&kind)));
                            $( $( keys.push((stringify!($key), $crate::config::keys::Value::write($key))); )* )?
                        }
                    )*
                }
            }
        }

        impl $crate::config::keys::Value for $Name {
            fn form() -> $crate::config::keys::Form {
                $crate::config::keys::Form::Choice { variants: Self::variants() }
            }

            fn read(given: &$crate::config::keys::Given<'_>) -> Result<Self, $crate::config::error::Problem> {
                $crate::config::value::read_choice(given)
            }

            fn write(&self) -> $crate::config::keys::Node {
                $crate::config::value::write_choice(self)
            }
        }
    };
}

/// Declares an enum that is one of several words.
macro_rules! words {
    (
        $(#[doc = $doc:literal])*
        $vis:vis enum $Name:ident {
            $( $(#[doc = $variant_doc:literal])* $Variant:ident ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        $vis enum $Name {
            $( $(#[doc = $variant_doc])* $Variant, )*
        }

        impl $Name {
            fn words() -> Vec<$crate::config::keys::Word> {
                vec![$(
                    $crate::config::keys::Word {
                        name: $crate::config::keys::snake_case(stringify!($Variant)),
                        docs: concat!("" $(, $variant_doc, "\n")*),
                    },
                )*]
            }
        }

        impl $crate::config::keys::Value for $Name {
            fn form() -> $crate::config::keys::Form {
                $crate::config::keys::Form::Words { words: Self::words() }
            }

            fn read(given: &$crate::config::keys::Given<'_>) -> Result<Self, $crate::config::error::Problem> {
                let all = [$($Name::$Variant),*];
                Ok(all[$crate::config::keys::word_of(given, Self::words().iter())?])
            }

            fn write(&self) -> $crate::config::keys::Node {
                let name = match self { $( $Name::$Variant => stringify!($Variant), )* };
                $crate::config::keys::Value::write(&$crate::config::keys::snake_case(name))
            }
        }
    };
}

/// Gives sections whose keys all have defaults a [`Default`] with those.
macro_rules! defaults {
    ($($Name:ident),*) => {
        $(
            impl Default for $Name {
                fn default() -> $Name {
                    $crate::config::keys::of_defaults()
                }
            }
        )*
    };
}

/// A section with no key set.
///
/// # Panics
/// If a key has no default.
pub(crate) fn of_defaults<T: Value>() -> T {
    match T::read_absent("", "") {
        Some(Ok(value)) => value,
        _ => panic!("`defaults!` is for sections whose keys all have defaults"),
    }
}

pub(crate) use {choice, default_of, defaults, section, words};
