//! A request: some samples to score, by input name, raw or prepared.
//!
//! A ranking request has one user and many candidates. What is the user's is given once ([`Side::Once`]) and
//! computed once; what is a candidate's is given for each sample ([`Side::Each`]).
//!
//! ```text
//!   request.begin(inputs, 3)                                    three candidates
//!   request.raw_ids(color, Side::Each, &[2, 0, 1], [4, 9, 1])    bags [4 9] [] [1]: lengths and values
//!   request.raw_ids(country, Side::Once, &[1], ["it"])           one bag for all three
//!   request.raw_dense(age, Side::Once, [33])
//!   request.finish()                                            every input is there
//! ```
//!
//! Raw values go through the transforms of the training run here, so a request that is prepared holds rows and
//! dense inputs, and any scorer takes it. One that is used again keeps its memory.
//!
//! Invariant: after [`Request::finish`] every row is in its table, every bag is whole, and each dense input is
//! a finite number; the kernels trust that.

use std::sync::Arc;

use campanile_data::{BadReason, Raw, WEIGHT_MAX};
use campanile_spec::{Bags, FeatureBags, data::Keep};

use crate::{Input, Inputs, RequestError};

/// The most samples of a request.
pub const REQUEST_SAMPLES_MAX: usize = 1 << 16;

/// The most ids of one feature in a request.
pub const REQUEST_IDS_MAX: usize = 1 << 24;

/// For whom an input is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Once for all samples of the request: the user's side.
    Once,
    /// For each sample: the candidates' side.
    Each,
}

/// Some samples to score. Begin, give every input, finish.
#[derive(Debug, Default)]
pub struct Request {
    inputs: Option<Arc<Inputs>>,
    sample_count: usize,
    finished: bool,
    /// `[sample][dense]`.
    dense: Vec<f32>,
    dense_sides: Vec<Option<Side>>,
    bags: Vec<Bag>,
    unknown_ids: u64,
}

/// The bags of one feature: one for each sample, or one for all.
#[derive(Debug, Default)]
struct Bag {
    side: Option<Side>,
    offsets: Vec<u32>,
    rows: Vec<u32>,
    weights: Vec<f32>,
    /// Ids as they came, dropped ones counted: what weights are counted against.
    lengths_given: Vec<u32>,
    /// Which of the ids that came are kept.
    kept: Vec<bool>,
}

impl Request {
    /// A request without memory of its own yet.
    pub fn new() -> Request {
        Request::default()
    }

    /// Starts anew: so many samples for a model with these inputs.
    ///
    /// # Errors
    /// When there are more samples than [`REQUEST_SAMPLES_MAX`].
    pub fn begin(&mut self, inputs: &Arc<Inputs>, sample_count: usize) -> Result<(), RequestError> {
        if sample_count > REQUEST_SAMPLES_MAX {
            let (found, limit) = (sample_count, REQUEST_SAMPLES_MAX);
            return Err(RequestError::TooMany { what: "samples", found, limit });
        }
        self.finished = false;
        self.unknown_ids = 0;
        self.sample_count = sample_count;
        self.dense.clear();
        self.dense.resize(sample_count * inputs.dense_count(), 0.0);
        self.dense_sides.clear();
        self.dense_sides.resize(inputs.dense_count(), None);
        self.bags.resize_with(inputs.feature_count(), Bag::default);
        self.bags.iter_mut().for_each(Bag::clear);
        self.inputs = Some(Arc::clone(inputs));
        Ok(())
    }

    /// Begins and finishes at once, with samples that are prepared already: dense inputs `[sample][dense]` and
    /// bags of rows, as training has them.
    ///
    /// # Errors
    /// When there are too many samples, a row is beyond its table, or a dense input is not finite.
    ///
    /// # Panics
    /// If the bags or the dense inputs are not those of such a model.
    pub fn prepared(&mut self, inputs: &Arc<Inputs>, dense: &[f32], bags: &Bags) -> Result<(), RequestError> {
        let (samples, width) = (bags.sample_count(), inputs.dense_count());
        assert_eq!(bags.feature_count(), inputs.feature_count(), "features of the bags");
        assert_eq!(dense.len(), samples * width, "length of the dense inputs");
        self.begin(inputs, samples)?;
        if let Some(place) = dense.iter().position(|value| !value.is_finite()) {
            let (name, sample) = (inputs.name(Input::Dense(place % width)).to_owned(), place / width);
            let (value, reason) = (dense[place].to_string(), BadReason::NotFinite);
            return Err(RequestError::Value { name, sample, value, reason });
        }
        self.dense.copy_from_slice(dense);
        self.dense_sides.fill(Some(Side::Each));
        for feature in 0..bags.feature_count() {
            let own = bags.feature(feature);
            let row_count = inputs.row_count(feature);
            if let Some(place) = own.rows.iter().position(|&row| u64::from(row) >= row_count) {
                let name = inputs.name(Input::Sparse(feature)).to_owned();
                let sample = own.offsets.partition_point(|&end| (end - own.offsets[0]) as usize <= place) - 1;
                return Err(RequestError::RowOutside { name, sample, row: own.rows[place], row_count });
            }
            let bag = &mut self.bags[feature];
            bag.side = Some(Side::Each);
            bag.offsets.extend(own.offsets.iter().map(|offset| offset - own.offsets[0]));
            bag.rows.extend_from_slice(own.rows);
            bag.weights.extend_from_slice(own.weights);
        }
        self.finish()
    }

    /// How many samples.
    pub fn sample_count(&self) -> usize {
        self.sample_count
    }

    /// Bytes of memory that it keeps for the next request, whatever it holds now.
    pub fn memory_bytes(&self) -> usize {
        let bags = self.bags.capacity() * size_of::<Bag>();
        let own = 4 * self.dense.capacity() + self.dense_sides.capacity() * size_of::<Option<Side>>();
        own + bags + self.bags.iter().map(Bag::memory_bytes).sum::<usize>()
    }

    /// The inputs that it was begun for.
    pub fn inputs(&self) -> Option<&Arc<Inputs>> {
        self.inputs.as_ref()
    }

    /// Dense values that are transformed already, for one column.
    ///
    /// # Errors
    /// When their number is not that of the samples (or one, for [`Side::Once`]), or one is not finite.
    pub fn dense(&mut self, column: usize, side: Side, values: &[f32]) -> Result<(), RequestError> {
        let raw = values.iter().map(|&value| Raw::Float(f64::from(value)));
        self.fill_dense(column, side, raw, |_, _, raw| match raw {
            Raw::Float(value) if value.is_finite() => Ok(value as f32),
            _ => Err(BadReason::NotFinite),
        })
    }

    /// Dense values as the event has them, for one column.
    ///
    /// # Errors
    /// When their number is not that of the samples (or one, for [`Side::Once`]), or one is no number.
    pub fn raw_dense<'a>(
        &mut self,
        column: usize,
        side: Side,
        values: impl IntoIterator<Item = Raw<'a>>,
    ) -> Result<(), RequestError> {
        self.fill_dense(column, side, values, |inputs, column, raw| inputs.transforms().dense(column, raw))
    }

    /// Rows of a feature: `lengths` of the bags, then the rows of all bags.
    ///
    /// # Errors
    /// When lengths and rows do not fit together or the samples, or a row is beyond its table.
    pub fn rows(
        &mut self,
        feature: usize,
        side: Side,
        lengths: &[u32],
        rows: &[u32],
    ) -> Result<(), RequestError> {
        let inputs = self.take_feature(feature, side, lengths, rows.len())?;
        let row_count = inputs.row_count(feature);
        if let Some(place) = rows.iter().position(|&row| u64::from(row) >= row_count) {
            let name = inputs.name(Input::Sparse(feature)).to_owned();
            let (sample, row) = (sample_of(lengths, place), rows[place]);
            return Err(RequestError::RowOutside { name, sample, row, row_count });
        }
        let bag = &mut self.bags[feature];
        bag.rows.extend_from_slice(rows);
        bag.kept.resize(rows.len(), true);
        let mut end = 0;
        bag.offsets.extend(lengths.iter().map(|&length| {
            end += length;
            end
        }));
        Ok(())
    }

    /// One cell of a feature for each sample, as a file has it: where the feature is a list, text is cut at the
    /// column's separator, as training does.
    ///
    /// # Errors
    /// When the cells do not fit the samples, or a value cannot be an id.
    pub fn raw_cells<'a>(
        &mut self,
        feature: usize,
        side: Side,
        cells: impl IntoIterator<Item = Raw<'a>, IntoIter: Clone + ExactSizeIterator>,
    ) -> Result<(), RequestError> {
        let inputs = self.begun();
        let cells = cells.into_iter();
        match inputs.transforms().separator(feature) {
            None => {
                let lengths = vec![1; cells.len()];
                self.raw_ids(feature, side, &lengths, cells)
            }
            Some(separator) => {
                let transforms = inputs.transforms();
                let items = |cell| transforms.value(cell).items(separator);
                let lengths: Vec<u32> = cells.clone().map(|cell| items(cell).count() as u32).collect();
                let left = lengths.iter().map(|&length| length as usize).sum();
                let ids = Cut { ids: cells.flat_map(items), left };
                self.raw_ids(feature, side, &lengths, ids)
            }
        }
    }

    /// Ids of a feature as the event has them: `lengths` of the bags, then the ids of all bags. A feature with
    /// one id a sample takes a length of 0 as a missing id. An id that its table has no row for is left out, and
    /// counted: see [`Request::unknown_ids`].
    ///
    /// # Errors
    /// When lengths and ids do not fit together or the samples, or a value cannot be an id.
    pub fn raw_ids<'a>(
        &mut self,
        feature: usize,
        side: Side,
        lengths: &[u32],
        ids: impl IntoIterator<Item = Raw<'a>, IntoIter: ExactSizeIterator>,
    ) -> Result<(), RequestError> {
        let mut ids = ids.into_iter();
        let inputs = self.take_feature(feature, side, lengths, ids.len())?;
        let transforms = inputs.transforms();
        let (is_list, bag_max) = (transforms.is_list(feature), transforms.bag_max(feature));
        let keeps_last = transforms.keep(feature) == Keep::Last;
        let name = || inputs.name(Input::Sparse(feature)).to_owned();
        let bag = &mut self.bags[feature];
        for (sample, &length) in lengths.iter().enumerate() {
            let (start, first) = (bag.rows.len(), bag.kept.len());
            if !is_list && length > 1 {
                return Err(RequestError::SeveralIds { name: name(), sample, found: length as usize });
            }
            let missing = (!is_list && length == 0).then_some(Raw::Missing);
            for raw in missing.into_iter().chain(ids.by_ref().take(length as usize)) {
                let full = is_list && !keeps_last && bag.rows.len() - start == bag_max;
                let row = match transforms.id(raw) {
                    _ if full => None,
                    Raw::Missing if is_list => None,
                    raw => match transforms.row(feature, raw) {
                        Ok(row) => row,
                        // A new shop must not cost the other candidates their scores.
                        Err(BadReason::BeyondTable { .. }) => {
                            self.unknown_ids += 1;
                            None
                        }
                        Err(reason) => {
                            let value = raw.shown();
                            return Err(RequestError::Value { name: name(), sample, value, reason });
                        }
                    },
                };
                bag.rows.extend(row);
                if length > 0 {
                    bag.kept.push(row.is_some());
                }
            }
            if is_list && keeps_last {
                bag.keep_last(start, first, bag_max);
            }
            bag.offsets.push(bag.rows.len() as u32);
        }
        Ok(())
    }

    /// Weights of a feature's ids, one for each id that was given; the ids must be there already. Without
    /// this call every weight is one.
    ///
    /// # Errors
    /// When there are more or fewer than ids, or one is not finite.
    pub fn weights(&mut self, feature: usize, weights: &[f32]) -> Result<(), RequestError> {
        let inputs = self.begun();
        let name = || inputs.name(Input::Weights(feature)).to_owned();
        let bag = &mut self.bags[feature];
        if bag.side.is_none() {
            return Err(RequestError::Missing { name: inputs.name(Input::Sparse(feature)).to_owned() });
        }
        if weights.len() != bag.kept.len() {
            let (found, wanted) = (weights.len(), bag.kept.len());
            return Err(RequestError::Count { name: name(), what: "weights", found, wanted });
        }
        if let Some(place) = weights.iter().position(|weight| weight.is_nan() || weight.abs() > WEIGHT_MAX) {
            let (sample, value) = (sample_of(&bag.lengths_given, place), weights[place].to_string());
            let is_finite = weights[place].is_finite();
            let reason = if is_finite { BadReason::LargeWeight } else { BadReason::NotFinite };
            return Err(RequestError::Value { name: name(), sample, value, reason });
        }
        bag.take_weights(weights);
        Ok(())
    }

    /// Checks that every input is there. Only a finished request can be scored.
    ///
    /// # Errors
    /// With the first input that is missing.
    pub fn finish(&mut self) -> Result<(), RequestError> {
        let inputs = self.begun();
        let missing = |input| RequestError::Missing { name: inputs.name(input).to_owned() };
        if let Some(column) = self.dense_sides.iter().position(Option::is_none) {
            return Err(missing(Input::Dense(column)));
        }
        if let Some(feature) = self.bags.iter().position(|bag| bag.side.is_none()) {
            return Err(missing(Input::Sparse(feature)));
        }
        self.finished = true;
        Ok(())
    }

    /// Ids since [`Request::begin`] that their direct tables have no row for.
    pub fn unknown_ids(&self) -> u64 {
        self.unknown_ids
    }

    /// Whether it is ready to be scored.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Dense inputs `[sample][dense]` of a finished request: what the model sees.
    pub fn dense_values(&self) -> &[f32] {
        &self.dense
    }

    /// Whether all dense inputs were given once for all samples.
    pub fn dense_is_shared(&self) -> bool {
        self.dense_sides.iter().all(|side| *side == Some(Side::Once))
    }

    /// The bags of a feature of a finished request: one for all samples or one for each, as [`Request::side`]
    /// says.
    pub fn feature(&self, feature: usize) -> FeatureBags<'_> {
        let bag = &self.bags[feature];
        FeatureBags { offsets: &bag.offsets, rows: &bag.rows, weights: &bag.weights }
    }

    /// For whom a feature was given.
    pub fn side(&self, feature: usize) -> Option<Side> {
        self.bags[feature].side
    }

    /// The inputs it was begun for; calling anything before `begin` is a mistake of the program.
    fn begun(&self) -> Arc<Inputs> {
        Arc::clone(self.inputs.as_ref().expect("a request is begun before it is filled"))
    }

    fn fill_dense<'a>(
        &mut self,
        column: usize,
        side: Side,
        values: impl IntoIterator<Item = Raw<'a>>,
        transform: impl Fn(&Inputs, usize, Raw<'a>) -> Result<f32, BadReason>,
    ) -> Result<(), RequestError> {
        let inputs = self.begun();
        let name = || inputs.name(Input::Dense(column)).to_owned();
        if self.dense_sides[column].is_some() {
            return Err(RequestError::Twice { name: name() });
        }
        let (width, wanted) = (inputs.dense_count(), self.given_count(side));
        let mut found = 0;
        for raw in values {
            if found < wanted {
                let value = transform(&inputs, column, raw).map_err(|reason| RequestError::Value {
                    name: name(),
                    sample: found,
                    value: raw.shown(),
                    reason,
                })?;
                match side {
                    Side::Each => self.dense[found * width + column] = value,
                    Side::Once => {
                        self.dense.chunks_exact_mut(width).for_each(|sample| sample[column] = value);
                    }
                }
            }
            found += 1;
        }
        if found != wanted {
            return Err(RequestError::Count { name: name(), what: "values", found, wanted });
        }
        self.dense_sides[column] = Some(side);
        Ok(())
    }

    /// Checks the shape of a feature and marks it as given.
    fn take_feature(
        &mut self,
        feature: usize,
        side: Side,
        lengths: &[u32],
        id_count: usize,
    ) -> Result<Arc<Inputs>, RequestError> {
        let inputs = self.begun();
        let name = || inputs.name(Input::Sparse(feature)).to_owned();
        let count = |what, found, wanted| RequestError::Count { name: name(), what, found, wanted };
        let wanted = self.given_count(side);
        let bag = &mut self.bags[feature];
        if bag.side.is_some() {
            return Err(RequestError::Twice { name: name() });
        }
        if lengths.len() != wanted {
            return Err(count("lengths", lengths.len(), wanted));
        }
        if id_count > REQUEST_IDS_MAX {
            return Err(RequestError::TooMany { what: "ids", found: id_count, limit: REQUEST_IDS_MAX });
        }
        let total: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        if total != id_count as u64 {
            return Err(count("ids", id_count, usize::try_from(total).unwrap_or(usize::MAX)));
        }
        bag.side = Some(side);
        bag.offsets.push(0);
        bag.lengths_given.extend_from_slice(lengths);
        Ok(inputs)
    }

    /// How many values or bags an input has.
    fn given_count(&self, side: Side) -> usize {
        match side {
            Side::Once => 1,
            Side::Each => self.sample_count,
        }
    }
}

impl Bag {
    fn memory_bytes(&self) -> usize {
        let words = [&self.offsets, &self.rows, &self.lengths_given].map(|words| words.capacity());
        4 * (words.iter().sum::<usize>() + self.weights.capacity()) + self.kept.capacity()
    }

    fn clear(&mut self) {
        self.side = None;
        self.offsets.clear();
        self.rows.clear();
        self.weights.clear();
        self.lengths_given.clear();
        self.kept.clear();
    }

    /// Leaves the first rows from `start` on out where there are more than `most`; `first` is where the ids of the
    /// sample begin among all that were given.
    fn keep_last(&mut self, start: usize, first: usize, most: usize) {
        let excess = (self.rows.len() - start).saturating_sub(most);
        self.rows.drain(start..start + excess);
        self.kept[first..].iter_mut().filter(|kept| **kept).take(excess).for_each(|kept| *kept = false);
    }

    /// Takes the weights of the ids that are kept. A missing id that has a row of its own came without a
    /// weight, and weighs one.
    fn take_weights(&mut self, weights: &[f32]) {
        self.weights.clear();
        let mut given = self.kept.iter().zip(weights);
        for (sample, &length) in self.lengths_given.iter().enumerate() {
            let own = given.by_ref().take(length as usize).filter(|(kept, _)| **kept);
            self.weights.extend(own.map(|(_, weight)| weight));
            self.weights.resize(self.offsets[sample + 1] as usize, 1.0);
        }
    }
}

/// Ids cut out of cells, whose number is known.
struct Cut<I> {
    ids: I,
    left: usize,
}

impl<I: Iterator> Iterator for Cut<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.left = self.left.saturating_sub(1);
        self.ids.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<I: Iterator> ExactSizeIterator for Cut<I> {}

/// The sample whose bag holds id `place`.
fn sample_of(lengths: &[u32], place: usize) -> usize {
    let mut end = 0;
    lengths
        .iter()
        .position(|&length| {
            end += length as usize;
            place < end
        })
        .unwrap_or(lengths.len())
}
