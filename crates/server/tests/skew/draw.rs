//! Tables drawn at random: what a column holds, how its values are written, which are missing, what they are used for.
//!
//! A value is drawn once and knows every way in which it may be written; that all of them mean the same is what the test is
//! about.

/// A seeded stream of numbers.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// True once in `count` times.
    pub fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// What the values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers from 0 to 29.
    Small,
    /// Whole numbers of all sizes, of both signs, also those that no float holds.
    Wide,
    /// Fractions, as text the shortest that 32 bits tell apart.
    Fractions,
    Truths,
    /// Words of several alphabets, with blanks, quotes, commas and line breaks inside.
    Words,
    /// Text that looks like numbers and is none.
    Codes,
}

/// A value that is there.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Int(i64),
    /// As written; in 32 and 64 bits it is what the text says.
    Fraction(String),
    Truth(bool),
    Text(String),
}

/// A cell: several values for a list, and `None` for one that is missing.
pub type Cell = Vec<Option<Value>>;

const WORDS: &[&str] = &[
    "red",
    "Zürich",
    "two words",
    "say \"hi\"",
    "a,b",
    "line\nbreak",
    "ß",
    "日本",
    "x y  z",
    "semi;colon",
    "O'Neill",
    "tab\there",
    "100%",
    "-",
    "e",
    "not missing",
];
const CODES: &[&str] =
    &["007", "1e5", "+5", "0x1f", "1_000", "-", ".5e", "1.2.3", "00", "-007", "1e400", "12a", "--3"];

/// A column of the table.
#[derive(Debug)]
pub struct Column {
    pub name: String,
    pub kind: Kind,
    pub is_list: bool,
    /// The numbers of this column are weights of the ids of that one.
    pub weighs: Option<usize>,
    /// Whether its numbers are inputs of the model.
    pub is_dense: bool,
    /// Whether a job may bucketise it, and files of Parquet must have numbers in it.
    pub is_number: bool,
    /// By row.
    pub cells: Vec<Cell>,
}

/// A drawn table: labels apart, for no request has them.
#[derive(Debug)]
pub struct Table {
    pub columns: Vec<Column>,
    pub labels: Vec<u8>,
    /// Of a second task; sometimes absent.
    pub ratings: Vec<Option<i64>>,
    /// Rows that train; the others are the test.
    pub train: usize,
}

impl Table {
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    pub fn draw(numbers: &mut Numbers) -> Table {
        let (train, test) = (120 + numbers.below(100) as usize, 20 + numbers.below(30) as usize);
        let rows = train + test;
        let mut columns = Vec::new();
        for place in 0..1 + numbers.below(3) {
            let kind = numbers.pick(&[Kind::Small, Kind::Fractions, Kind::Wide]);
            let cells = cells(numbers, kind, rows, false);
            let name = format!("dense {place}");
            columns.push(Column {
                name,
                kind,
                is_list: false,
                weighs: None,
                is_dense: true,
                is_number: true,
                cells,
            });
        }
        for place in 0..2 + numbers.below(5) {
            let kinds = [
                Kind::Small,
                Kind::Wide,
                Kind::Fractions,
                Kind::Truths,
                Kind::Words,
                Kind::Codes,
                Kind::Small,
            ];
            let (kind, is_list) = (numbers.pick(&kinds), numbers.once_in(3));
            let cells = cells(numbers, kind, rows, is_list);
            let name = format!("{}_{place}", numbers.pick(&["item", "Ünïcode", "a.b"]));
            let is_number = matches!(kind, Kind::Small | Kind::Wide | Kind::Fractions) && numbers.once_in(2);
            columns.push(Column { name, kind, is_list, weighs: None, is_dense: false, is_number, cells });
            if is_list && numbers.once_in(2) {
                columns.push(weights(numbers, columns.len() - 1, &columns[columns.len() - 1]));
            }
        }
        let labels = (0..rows).map(|row| (row as u64 + numbers.below(3)) as u8 % 2).collect();
        let ratings = (0..rows).map(|_| (!numbers.once_in(5)).then(|| numbers.below(6) as i64)).collect();
        Table { columns, labels, ratings, train }
    }
}

/// A weight for every value of a list, missing ones included.
fn weights(numbers: &mut Numbers, of: usize, ids: &Column) -> Column {
    let weight = |numbers: &mut Numbers| Some(fraction(numbers));
    let cells = ids.cells.iter().map(|cell| cell.iter().map(|_| weight(numbers)).collect()).collect();
    let name = format!("{} weights", ids.name);
    Column {
        name,
        kind: Kind::Fractions,
        is_list: true,
        weighs: Some(of),
        is_dense: false,
        is_number: true,
        cells,
    }
}

fn cells(numbers: &mut Numbers, kind: Kind, rows: usize, is_list: bool) -> Vec<Cell> {
    // Some columns are whole, some mostly empty.
    let missing = numbers.pick(&[0, 0, 3, 10]);
    let value =
        |numbers: &mut Numbers| (missing == 0 || !numbers.once_in(missing)).then(|| value(numbers, kind));
    let cell = |numbers: &mut Numbers| -> Cell {
        match is_list {
            false => vec![value(numbers)],
            // One missing value alone is how text writes an empty list.
            true => match numbers.below(5) {
                0 => Vec::new(),
                1 => vec![Some(self::value(numbers, kind))],
                more => (0..more).map(|_| value(numbers)).collect(),
            },
        }
    };
    (0..rows).map(|_| cell(numbers)).collect()
}

fn fraction(numbers: &mut Numbers) -> Value {
    let value = match numbers.below(4) {
        0 => numbers.below(2000) as f32 / 10.0 - 50.0,
        1 => numbers.below(40) as f32 / 4.0,
        2 => f32::from_bits(0x3f00_0000 + numbers.below(1 << 24) as u32),
        _ => numbers.below(100) as f32 / 1000.0,
    };
    Value::Fraction(value.to_string())
}

fn value(numbers: &mut Numbers, kind: Kind) -> Value {
    match kind {
        Kind::Small => Value::Int(numbers.below(30) as i64),
        Kind::Wide => {
            let size = numbers.pick(&[4, 20, 31, 33, 52, 54, 62]);
            let value = (numbers.below(12) as i64) << size | numbers.below(3) as i64;
            Value::Int(if numbers.once_in(3) { value.wrapping_neg() } else { value })
        }
        Kind::Fractions => fraction(numbers),
        Kind::Truths => Value::Truth(numbers.once_in(2)),
        Kind::Words => Value::Text(numbers.pick(WORDS).to_owned()),
        Kind::Codes => Value::Text(numbers.pick(CODES).to_owned()),
    }
}
