//! Which columns a topic's records become, and how one record fills them.
//!
//! The loop's own columns come first, then the raw features under their names. Where a name is taken, the later one goes by
//! a longer name: `label.time` for a task called `time`, `raw.click` for a feature called as a task.

use std::collections::{BTreeMap, BTreeSet};

use campanile_data::{
    Raw,
    columnar::{Column, ColumnType, Kind, Unfit},
};
use campanile_kernels::half::f32_from_f16;
use campanile_stream::{
    log::{Log, LogError, Stored},
    records::{Schema, Schemas, Word},
    topics::{EXAMPLES, IMPRESSIONS, WORDS},
};

use super::{Topic, content::Content};

/// The most tasks that the bits of an example's labels have room for.
const TASKS_MAX: usize = u32::BITS as usize;

/// The columns of a file.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// The loop's own.
    own: Vec<(String, ColumnType)>,
    /// Features: the name in the log, and the name in the file.
    features: Vec<(String, String)>,
    /// By feature: its cell in the rows of the present schema.
    places: Vec<Option<usize>>,
    /// The present schema of the rows, and how many cells they have.
    schema: Option<u32>,
    cell_count: usize,
    /// All schemas of rows that are in the file.
    schemas: BTreeSet<u32>,
    tasks: Option<Schema>,
    teacher: Option<Schema>,
}

impl Layout {
    /// Names of all columns, with those of features as the log has them.
    pub fn columns(&self) -> Vec<(&str, &str)> {
        let own = self.own.iter().map(|(name, _)| ("", name.as_str()));
        own.chain(self.features.iter().map(|(raw, name)| (raw.as_str(), name.as_str()))).collect()
    }

    /// How many columns are the loop's own; they are the first.
    pub fn own_count(&self) -> usize {
        self.own.len()
    }

    /// The number of the rows' schema.
    pub fn schema(&self) -> Option<u32> {
        self.schema
    }

    /// How many cells a row has.
    pub fn cell_count(&self) -> usize {
        self.cell_count
    }

    /// By feature: its cell, where the rows have one.
    pub fn places(&self) -> &[Option<usize>] {
        &self.places
    }

    /// The layout of another's records with the features of both.
    pub fn with(&self, other: &Layout) -> Layout {
        let known = |raw: &String| self.features.iter().any(|(own, _)| own == raw);
        let added = other.features.iter().map(|(raw, _)| raw).filter(|raw| !known(raw));
        let features = named(&other.own, self.features.iter().map(|(raw, _)| raw).chain(added));
        let place = |(raw, _): &(String, String)| {
            other.features.iter().position(|(own, _)| own == raw).and_then(|at| other.places[at])
        };
        let places = features.iter().map(place).collect();
        let schemas = self.schemas.union(&other.schemas).copied().collect();
        Layout { features, places, schemas, ..other.clone() }
    }

    /// What a file says of its schemas.
    pub fn notes(&self) -> BTreeMap<String, String> {
        let hex = |number: u32| format!("{number:08x}");
        let schemas: Vec<String> = self.schemas.iter().copied().map(hex).collect();
        let all = [
            ("campanile.format", Some("1".to_owned())),
            ("campanile.schema", (!schemas.is_empty()).then(|| schemas.join(","))),
            ("campanile.tasks_schema", self.tasks.as_ref().map(|tasks| hex(tasks.number()))),
            ("campanile.teacher_schema", self.teacher.as_ref().map(|teacher| hex(teacher.number()))),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }

    /// Fills the loop's own columns.
    pub fn push_own(
        &self,
        columns: &mut [Column],
        record: &Stored<'_>,
        content: &Content<'_>,
    ) -> Result<(), Unfit> {
        let mut row = Row { columns: columns.iter_mut() };
        row.put(Raw::Int(record.offset as i64))?;
        row.put(Raw::Int(record.time_ms as i64))?;
        row.put(Raw::Int(content.id() as i64))?;
        if let Some(task) = content.task() {
            let names = self.tasks.iter().flat_map(|tasks| tasks.names());
            row.put(
                names.skip(task.into()).map(|name| Raw::text(name.as_bytes())).next().unwrap_or(Raw::Missing),
            )?;
        }
        if let Content::Correction(correction) = content {
            row.put(Raw::Int(correction.in_window.into()))?;
        }
        if let Content::Example { example, is_late } = content {
            row.put(Raw::Int((*is_late).into()))?;
            for task in 0..self.tasks.as_ref().map_or(0, |tasks| tasks.names().len()) {
                let label = example.label(task as u16);
                row.put(label.map_or(Raw::Missing, |label| Raw::Int(label.into())))?;
            }
        }
        match &self.teacher {
            Some(teacher) => row.put_word(content.word(), teacher.names().len(), record.time_ms as i64),
            None => Ok(()),
        }
    }
}

/// The columns that are left to fill in a row.
struct Row<'c> {
    columns: std::slice::IterMut<'c, Column>,
}

impl Row<'_> {
    fn put(&mut self, raw: Raw<'_>) -> Result<(), Unfit> {
        self.columns.next().map_or(Ok(()), |column| column.push(raw))
    }

    fn put_word(&mut self, word: Option<&Word<'_>>, tasks: usize, time_ms: i64) -> Result<(), Unfit> {
        let float = |half: u16| Raw::Float(f32_from_f16(half).into());
        let mut logits = word.into_iter().flat_map(|word| word.halves()).map(float);
        for _ in 0..tasks {
            self.put(logits.next().unwrap_or(Raw::Missing))?;
        }
        self.put(word.map_or(Raw::Missing, |word| Raw::Int(word.version as i64)))?;
        // A teacher that does not say what it has seen has no age.
        let seen_ms = word.map(|word| word.data_time_ms).filter(|seen_ms| *seen_ms != i64::MIN);
        self.put(seen_ms.map_or(Raw::Missing, Raw::Int))?;
        // As a trainer on the stream has it, to the bit.
        let delay = seen_ms.map(|seen_ms| time_ms.saturating_sub(seen_ms) as f32 / 1000.0);
        self.put(delay.map_or(Raw::Missing, |delay| Raw::Float(delay.into())))?;
        let Some(column) = self.columns.next() else { return Ok(()) };
        match word.filter(|word| word.is_embedded()) {
            Some(word) => column.push_list(word.embedding_halves().map(float)),
            None => column.push(Raw::Missing),
        }
    }
}

/// Finds layouts for records, and remembers what is known of types.
pub(super) struct Layouts {
    topic: Topic,
    features: Schemas,
    words: Schemas,
    tasks: Option<Schema>,
    /// Types of the columns of files before.
    known: BTreeMap<String, ColumnType>,
    /// Types that were said, by the features' names in the log, and which of them no record had a use for yet.
    said: BTreeMap<String, ColumnType>,
    unused: BTreeSet<String>,
}

impl Layouts {
    pub fn new(
        topic: Topic,
        known: BTreeMap<String, ColumnType>,
        said: BTreeMap<String, ColumnType>,
    ) -> Layouts {
        let unused = said.keys().cloned().collect();
        let (features, words) = (Schemas::default(), Schemas::default());
        Layouts { topic, features, words, tasks: None, known, said, unused }
    }

    /// Columns whose type was said and that did not come.
    pub fn unused(&self) -> &BTreeSet<String> {
        &self.unused
    }

    /// Remembers the type of a column for the next file.
    pub fn learn(&mut self, column: &Column) {
        self.known.insert(column.name().to_owned(), column.its_type());
    }

    /// Empty columns for a layout.
    pub fn columns(&mut self, layout: &Layout) -> Vec<Column> {
        self.unused.retain(|said| layout.features.iter().all(|(raw, _)| raw != said));
        let own = layout.own.iter().map(|(name, its_type)| Column::fixed(name.clone(), *its_type));
        let features = layout.features.iter().map(|(raw, name)| match self.said.get(raw) {
            Some(said) => Column::fixed(name.clone(), *said),
            None => Column::new(name.clone(), self.known.get(name).copied().unwrap_or_default()),
        });
        own.chain(features).collect()
    }

    /// The layout for a record, where the present one is not it; in words, why there is none. A log that fails is tried
    /// again, a record that cannot be read is not.
    pub fn find(
        &mut self,
        log: &dyn Log,
        content: &Content<'_>,
        present: Option<&Layout>,
    ) -> Result<Result<Option<Layout>, String>, LogError> {
        if let Err(problem) = self.find_tasks(log, content)? {
            return Ok(Err(problem));
        }
        let schema = content.features().map(|(number, _)| number);
        let teacher = content.word().map(|word| word.schema);
        let fits = |present: &Layout| {
            let own = present.teacher.as_ref().map(Schema::number);
            present.schema == schema && (teacher.is_none() || teacher == own)
        };
        if present.is_some_and(fits) {
            return Ok(Ok(None));
        }
        let names = match schema {
            None => Vec::new(),
            Some(number) => match self.features.find(log, IMPRESSIONS, 0, number)? {
                Some(schema) => schema.names().to_vec(),
                None => return Ok(Err(format!("its columns, schema {number:08x}, are not known"))),
            },
        };
        let teacher = match teacher {
            Some(number) => match self.words.find(log, WORDS, 0, number)? {
                Some(schema) => Some(schema.clone()),
                None => return Ok(Err(format!("its teacher's tasks, schema {number:08x}, are not known"))),
            },
            None if self.topic != Topic::Examples => None,
            // So that the files of a log with a teacher are alike, also where it said nothing for a while.
            None => match present.and_then(|present| present.teacher.clone()) {
                Some(teacher) => Some(teacher),
                None => Schemas::newest(log, WORDS, 0)?,
            },
        };
        Ok(Ok(Some(self.layout(schema, &names, teacher))))
    }

    /// Finds the names of the tasks, for records that are about tasks, and compares.
    fn find_tasks(&mut self, log: &dyn Log, content: &Content<'_>) -> Result<Result<(), String>, LogError> {
        let (wanted, is_all) = match content {
            Content::Example { example, .. } => (usize::from(example.tasks), true),
            _ => match content.task() {
                Some(task) => (usize::from(task) + 1, false),
                None => return Ok(Ok(())),
            },
        };
        if self.tasks.is_none() {
            self.tasks = Schemas::newest(log, EXAMPLES, 0)?;
        }
        let Some(tasks) = &self.tasks else {
            return Ok(Err("the log's tasks have no names yet; `campanile join` gives them".to_owned()));
        };
        let (count, names) = (tasks.names().len(), tasks.names().join("`, `"));
        if wanted > count || is_all && wanted != count || count > TASKS_MAX {
            let what = if is_all { "tasks" } else { "task number" };
            return Ok(Err(format!("it has {what} {wanted}, and the log has {count}: `{names}`")));
        }
        Ok(Ok(()))
    }

    fn layout(&self, schema: Option<u32>, names: &[String], teacher: Option<Schema>) -> Layout {
        let (mut own, mut taken) = (Vec::new(), BTreeSet::new());
        let mut add =
            |name: &str, its_type: ColumnType| own.push((free(&mut taken, "label.", name), its_type));
        add("record", ColumnType::one(Kind::Integer));
        add("time", ColumnType::one(Kind::Time));
        add("id", ColumnType::one(Kind::Unsigned));
        match self.topic {
            Topic::Impressions | Topic::Words => {}
            Topic::Feedback => add("task", ColumnType::one(Kind::Text)),
            Topic::Corrections => {
                add("task", ColumnType::one(Kind::Text));
                add("in_window", ColumnType::one(Kind::Boolean));
            }
            Topic::Examples => {
                add("late", ColumnType::one(Kind::Boolean));
                let tasks = self.tasks.iter().flat_map(Schema::names);
                tasks.for_each(|task| add(task, ColumnType::one(Kind::Label)));
            }
        }
        if let Some(teacher) = &teacher {
            let logits = teacher.names().iter().map(|task| format!("teacher.{task}"));
            logits.for_each(|name| add(&name, ColumnType::one(Kind::Single)));
            add("teacher_version", ColumnType::one(Kind::Unsigned));
            add("teacher_data_time", ColumnType::one(Kind::Time));
            add("teacher_delay", ColumnType::one(Kind::Single));
            add("teacher_embedding", ColumnType::list(Kind::Single));
        }
        // Of two cells under one name the first counts, as for every reader of the log.
        let is_first = |(place, name): &(usize, &String)| !names[..*place].contains(name);
        let cells: Vec<(usize, &String)> = names.iter().enumerate().filter(is_first).collect();
        let features = named(&own, cells.iter().map(|(_, name)| *name));
        Layout {
            own,
            features,
            places: cells.iter().map(|(place, _)| Some(*place)).collect(),
            schema,
            cell_count: names.len(),
            schemas: schema.into_iter().collect(),
            tasks: self.tasks.clone(),
            teacher,
        }
    }
}

/// A name that is not taken yet, and takes it.
fn free(taken: &mut BTreeSet<String>, prefix: &str, name: &str) -> String {
    let mut name = name.to_owned();
    while !taken.insert(name.clone()) {
        name = format!("{prefix}{name}");
    }
    name
}

/// Features with the names that they get beside the loop's own columns.
fn named<'n>(own: &[(String, ColumnType)], names: impl Iterator<Item = &'n String>) -> Vec<(String, String)> {
    let mut taken = own.iter().map(|(name, _)| name.clone()).collect();
    names.map(|name| (name.clone(), free(&mut taken, "raw.", name))).collect()
}
