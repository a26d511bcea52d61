//! Checkpoints of a run: when they are taken, what goes in, and how a run goes on from one.
//!
//! A checkpoint is the state between two steps. Rows are frozen by a cut and written while the next steps run
//! (`tables::checkpoint`); dense weights, their optimizer state and the metrics are small and copied at once.
//! In prepared data the batch of a step follows from its number, so the data cursor is the step; of a stream, the cursor is
//! the first record that was not trained on.

use std::{path::PathBuf, sync::Arc};

use campanile_comm::{Buffer, Communicator};
use campanile_data::{Prepared, Transforms};
use campanile_model::{Network, Parameter, optimizer::state_names};
use campanile_spec::config::Job;
use campanile_tables::checkpoint::{
    self, Checkpoint, CheckpointError, DenseKind, DenseLayout, Limits, Load, Manifest, Progress, Sweep,
    TableLayout, TensorEntry, Written,
};
use serde_json::json;

use crate::{TrainError, clock::Stopwatch, loader::Mark, observe::Wish, rank::RankState, scores::Scores};

/// Where a job's checkpoints are.
pub fn directory(job: &Job) -> PathBuf {
    job.process.output_dir.join("checkpoints")
}

/// The checkpoints of a run.
pub struct Checkpoints<'a> {
    job: &'a Job,
    fingerprint: &'a str,
    transforms: &'a Transforms,
    directory: PathBuf,
    under_way: Option<UnderWay>,
    /// The newest that stands.
    published: Option<(u64, PathBuf)>,
    /// How far a stream is trained on.
    mark: Option<Mark>,
    /// Since the last one was begun, or the run.
    watch: Stopwatch,
}

/// A checkpoint that is being written.
struct UnderWay {
    step: u64,
    sweep: Sweep,
    manifest: Manifest,
}

impl<'a> Checkpoints<'a> {
    /// For a job and its data.
    pub fn new(job: &'a Job, prepared: &'a Prepared) -> Checkpoints<'a> {
        let Prepared { fingerprint, transforms, .. } = prepared;
        Checkpoints {
            job,
            fingerprint,
            transforms,
            directory: directory(job),
            under_way: None,
            published: None,
            mark: None,
            watch: Stopwatch::start(),
        }
    }

    /// How far a stream was trained on, if it was one.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// A stream is trained on so far.
    pub fn set_mark(&mut self, mark: Option<Mark>) {
        self.mark = mark.or(self.mark);
    }

    /// Brings back the newest checkpoint, if there is one, and says which step comes next.
    ///
    /// # Errors
    /// When it is damaged, or belongs to another job or other data.
    pub fn restore(
        &mut self,
        comm: &dyn Communicator,
        state: &mut RankState,
        scores: &mut Scores,
    ) -> Result<u64, TrainError> {
        let swept = if comm.rank() == 0 { checkpoint::clean(&self.directory) } else { Ok(()) };
        comm.agree(swept.as_ref().map(drop).map_err(ToString::to_string))?;
        swept?;
        let Some(path) = checkpoint::latest(&self.directory)? else { return Ok(0) };
        let found = Checkpoint::open(&path)?;
        let manifest = found.manifest();
        let wrote: Result<Job, _> = serde_json::from_value(manifest.job.clone());
        let wrote =
            wrote.map_err(|error| TrainError::NoJob { path: path.clone(), reason: error.to_string() })?;
        if let Some(difference) = difference(&wrote, self.job) {
            return Err(TrainError::OtherRun { path, difference });
        }
        if manifest.transforms != self.fingerprint {
            let (found, wanted) = (manifest.transforms.clone(), self.fingerprint.to_owned());
            return Err(TrainError::OtherData { path, found, wanted });
        }
        load(&found, state, comm.rank(), Load::RowsAndState)?;
        scores.restore(&manifest.extra["scores"], &path)?;
        let step = manifest.step;
        let cursor = &manifest.cursor;
        // Earlier programs noted neither the topic nor the record.
        let number = |key: &str| cursor[key].as_u64().unwrap_or_default();
        self.mark = cursor["next"].as_u64().map(|next| Mark {
            next,
            time_ms: cursor["time_ms"].as_i64().unwrap_or_default(),
            identity: number("identity"),
            sum: number("sum"),
        });
        self.published = Some((step, path));
        Ok(step)
    }

    /// Whether a checkpoint begins after step `done`; the dense weights must be whole then.
    /// All ranks must pass the same wish.
    pub fn is_due(&self, done: u64, last: u64, wish: Wish) -> bool {
        let every = self.job.process.checkpoint_every_steps;
        let by_steps = every > 0 && done.is_multiple_of(every);
        (by_steps || wish == Wish::Checkpoint) && done < last
    }

    /// What the clock of rank 0 wishes: a checkpoint, when the last one was begun too long ago. Ranks' clocks differ, so
    /// they must agree on it.
    pub fn wish(&self, rank: usize) -> Wish {
        let is_late = is_late(self.job.process.checkpoint_every_minutes, self.watch.seconds());
        if is_late && rank == 0 && self.under_way.is_none() { Wish::Checkpoint } else { Wish::Nothing }
    }

    /// Does a checkpoint's share of work between two steps: begins one when it is due, copies some rows of the
    /// one under way, publishes it when all ranks have written theirs. Says which was published, if one was.
    ///
    /// # Errors
    /// When the disk fails, on all ranks; the checkpoints from before are intact.
    pub fn after_step(
        &mut self,
        comm: &dyn Communicator,
        state: &mut RankState,
        (scores, trouble): (&Scores, &Result<(), TrainError>),
        due: bool,
        done: u64,
    ) -> Result<Option<(u64, PathBuf)>, TrainError> {
        let mut published = None;
        if let Some(under_way) = &mut self.under_way {
            let progress = under_way.sweep.advance(&mut state.tables);
            self.give_up_on_error(comm, state, progress.as_ref().err())?;
            let written = u8::from(matches!(progress, Ok(Progress::Written)));
            let all = comm.all_gather(Buffer::of(&[written]))?;
            if due || all.iter().all(|rank| rank.bytes() == [1]) {
                published = self.publish(comm, state)?;
            }
        }
        if due {
            // A state that is known to be bad must not become the one to go on from.
            comm.agree(trouble.as_ref().map(drop).map_err(ToString::to_string))?;
            self.begin(comm, state, scores, done)?;
        }
        Ok(published)
    }

    /// Writes the state after the last step, waits until it stands, and says where.
    ///
    /// # Errors
    /// When the disk fails, on all ranks; the checkpoints from before are intact.
    pub fn finish(
        &mut self,
        comm: &dyn Communicator,
        state: &mut RankState,
        scores: &Scores,
        step: u64,
    ) -> Result<PathBuf, TrainError> {
        self.publish(comm, state)?;
        if self.published.as_ref().is_none_or(|(newest, _)| *newest != step) {
            self.begin(comm, state, scores, step)?;
            self.publish(comm, state)?;
        }
        Ok(self.published.as_ref().map(|(_, path)| path.clone()).unwrap_or_default())
    }

    fn begin(
        &mut self,
        comm: &dyn Communicator,
        state: &mut RankState,
        scores: &Scores,
        step: u64,
    ) -> Result<(), TrainError> {
        self.watch = Stopwatch::start();
        state.make_whole(comm)?;
        let made = if comm.rank() == 0 { self.prepare(step) } else { Ok(()) };
        comm.agree(made.as_ref().map(drop).map_err(ToString::to_string))?;
        made?;
        let begun = Sweep::begin(&self.directory, step, &mut state.tables, Limits::default());
        let begun = begun.and_then(|mut sweep| {
            write_dense(&mut sweep, state, comm.rank())?;
            Ok(sweep)
        });
        self.discard_on_error(comm, step, begun.as_ref().err())?;
        let sweep = begun?;
        let run = &self.job.run;
        let tables = run.model.tables.iter().enumerate();
        let layouts = tables.map(|(place, table)| TableLayout::new(table, run.optimizer_of(place)));
        let mut manifest = Manifest::new(step, layouts.collect());
        manifest.cursor = match self.mark {
            None => json!({ "step": step }),
            Some(Mark { next, time_ms, identity, sum }) => {
                json!({ "step": step, "next": next, "time_ms": time_ms, "identity": identity, "sum": sum })
            }
        };
        manifest.run_hash = run.hash();
        manifest.transforms = self.fingerprint.to_owned();
        manifest.job = json!(self.job);
        manifest.plan = json!(state.plan);
        if comm.rank() == 0 {
            manifest.extra = json!({
                "scores": scores.state(),
                "transforms": self.transforms.fingerprint(),
                "data_time": scores.newest_time(),
            });
            if let Some(mark) = self.mark {
                manifest.extra["data_time"] = json!(mark.time_ms);
            }
        }
        self.under_way = Some(UnderWay { step, sweep, manifest });
        Ok(())
    }

    /// Makes the directory of a checkpoint, and has the transforms beside it: a server needs them.
    fn prepare(&self, step: u64) -> Result<(), TrainError> {
        checkpoint::prepare(&self.directory, step)?;
        let transforms = self.directory.join(Transforms::file_name(&self.transforms.fingerprint()));
        if !transforms.exists() {
            self.transforms.save(&transforms)?;
        }
        Ok(())
    }

    /// Waits for the checkpoint under way, if there is one, and publishes it.
    fn publish(
        &mut self,
        comm: &dyn Communicator,
        state: &mut RankState,
    ) -> Result<Option<(u64, PathBuf)>, TrainError> {
        let Some(UnderWay { step, sweep, manifest }) = self.under_way.take() else { return Ok(None) };
        let written = sweep.finish(&mut state.tables);
        self.discard_on_error(comm, step, written.as_ref().err())?;
        let words = serde_json::to_vec(&written.unwrap_or_default()).unwrap_or_default();
        let parts = comm.gather(0, Buffer::of(&words))?;
        let mut outcome = Ok(self.directory.join(format!("step-{step:012}")));
        if comm.rank() == 0 {
            let parts = parts
                .iter()
                .filter_map(|part| serde_json::from_slice::<Written>(part.bytes()).ok())
                .collect();
            outcome = checkpoint::publish(&self.directory, manifest, parts);
        }
        self.discard_on_error(comm, step, outcome.as_ref().err())?;
        let path = outcome?;
        let kept = self.job.process.checkpoints_kept.max(1);
        let pruned =
            if comm.rank() == 0 { checkpoint::prune(&self.directory, kept).map(drop) } else { Ok(()) };
        comm.agree(pruned.map_err(|error| error.to_string()))?;
        self.published = Some((step, path.clone()));
        Ok(Some((step, path)))
    }

    fn give_up_on_error(
        &mut self,
        comm: &dyn Communicator,
        state: &mut RankState,
        error: Option<&CheckpointError>,
    ) -> Result<(), TrainError> {
        let step = self.under_way.as_ref().map_or(0, |under_way| under_way.step);
        let agreed = self.discard_on_error(comm, step, error);
        if agreed.is_err()
            && let Some(under_way) = self.under_way.take()
        {
            under_way.sweep.abandon(&mut state.tables);
        }
        agreed
    }

    /// Where any rank has failed, all return its error, and nothing is left of the checkpoint.
    fn discard_on_error(
        &self,
        comm: &dyn Communicator,
        step: u64,
        error: Option<&CheckpointError>,
    ) -> Result<(), TrainError> {
        let outcome = error.map_or(Ok(()), |error| Err(error.to_string()));
        let agreed = comm.agree(outcome);
        if agreed.is_err() && comm.rank() == 0 {
            // The error that led here is the one to tell; what could not be removed is cleaned up next time.
            let _ = checkpoint::discard(&self.directory, step);
        }
        Ok(agreed?)
    }
}

/// Fills a rank's state from a checkpoint.
///
/// # Errors
/// When a file is damaged, or a tensor is missing or of another shape.
pub fn load(found: &Checkpoint, state: &mut RankState, rank: usize, what: Load) -> Result<(), TrainError> {
    let weights = found.dense_values(&served_layout(&state.network))?;
    let (served, count) = (weights.len(), state.parameters.len());
    state.parameters[..served].copy_from_slice(&weights);
    if what == Load::RowsAndState {
        let values = found.dense_values(&state_layout(state))?;
        let mut rest = &values[..];
        let mut next = |count: usize| {
            let (now, after) = rest.split_at(count);
            rest = after;
            now
        };
        for (_, own) in &mut state.dense_state {
            let (whole, mut first) = (next(count), 0);
            for range in state.shares.of(rank) {
                own[first..first + range.len()].copy_from_slice(&whole[range.clone()]);
                first += range.len();
            }
        }
        state.parameters[served..].copy_from_slice(next(count - served));
        if let Some(adapting) = state.teaching.adapting_mut() {
            for own in [&mut adapting.parameters].into_iter().chain(&mut adapting.state) {
                let count = own.len();
                own.copy_from_slice(next(count));
            }
        }
    }
    for table in &mut state.tables {
        found.load_table(table, what)?;
    }
    for mirror in &mut state.mirrors {
        found.load_table(mirror, Load::Rows)?;
    }
    Ok(())
}

/// Adds this rank's slice of the dense optimizer's state, and on rank 0 the dense weights, which all ranks have.
fn write_dense(sweep: &mut Sweep, state: &RankState, rank: usize) -> Result<(), CheckpointError> {
    let served = state.network.served_parameters().last().map_or(0, |last| last.range.end);
    if rank == 0 {
        sweep.dense(&Arc::new(served_layout(&state.network)), 0, state.parameters[..served].to_vec())?;
    }
    let layout = Arc::new(state_layout(state));
    let count = state.parameters.len();
    // A small network may leave a rank without a share.
    for (place, (_, values)) in state.dense_state.iter().enumerate() {
        let mut first = 0;
        for range in state.shares.of(rank) {
            let own = values[first..first + range.len()].to_vec();
            sweep.dense(&layout, (place * count + range.start) as u64, own)?;
            first += range.len();
        }
    }
    // What only training needs, and all ranks have.
    let mut training_only = state.parameters[served..].to_vec();
    if let Some(adapting) = state.teaching.adapting() {
        training_only.extend_from_slice(&adapting.parameters);
        adapting.state.iter().for_each(|values| training_only.extend_from_slice(values));
    }
    if rank == 0 && !training_only.is_empty() {
        sweep.dense(&layout, (state.dense_state.len() * count) as u64, training_only)?;
    }
    Ok(())
}

/// The weights that are served.
fn served_layout(network: &Network) -> DenseLayout {
    let tensors = network.served_parameters().iter().map(|parameter| entry(parameter, "")).collect();
    DenseLayout { kind: DenseKind::Weights, tensors }
}

/// What only training needs: for each name of the dense optimizer's state every tensor of the network, then the weights
/// of the heads that learn from a teacher, then the adapters' and their optimizer's state.
fn state_layout(state: &RankState) -> DenseLayout {
    let mut tensors = Vec::new();
    for (name, _) in &state.dense_state {
        tensors
            .extend(state.network.parameters().iter().map(|parameter| entry(parameter, &format!(".{name}"))));
    }
    tensors.extend(state.network.teacher_parameters().iter().map(|parameter| entry(parameter, "")));
    if let Some(adapting) = state.teaching.adapting() {
        let names = state_names(&adapting.adapters.training().optimizer);
        for suffix in [""].iter().chain(names) {
            let dot = if suffix.is_empty() { "" } else { "." };
            tensors.extend(adapting.adapters.parameters().map(|(name, shape)| TensorEntry {
                name: format!("{name}{dot}{suffix}"),
                shape: shape.to_vec(),
            }));
        }
    }
    DenseLayout { kind: DenseKind::State, tensors }
}

fn entry(parameter: &Parameter, suffix: &str) -> TensorEntry {
    TensorEntry { name: format!("{}{suffix}", parameter.name), shape: parameter.shape.clone() }
}

/// Whether the last checkpoint was begun too long ago.
fn is_late(minutes: u64, seconds: f64) -> bool {
    minutes > 0 && seconds >= minutes as f64 * 60.0
}

/// Keys that differ which are named; the rest is counted.
const NAMED_MAX: usize = 3;

/// What a job's run says otherwise than that of a checkpoint, in words.
fn difference(wrote: &Job, now: &Job) -> Option<String> {
    let mut changes = wrote.run.changes(&now.run);
    let more = changes.len().saturating_sub(NAMED_MAX);
    changes.truncate(NAMED_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    (!changes.is_empty()).then(|| format!("{}{more}", changes.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_wished_when_its_minutes_have_passed() {
        assert!(!is_late(0, f64::MAX));
        assert!(!is_late(10, 599.0));
        assert!(is_late(10, 600.0));
        assert_eq!(Job::parse(NO_WORD).unwrap().process.checkpoint_every_minutes, 10);
    }

    /// A job that says nothing of checkpoints.
    const NO_WORD: &str = "[run.data]\nkind = \"synthetic\"\n[run.tables]\ndim = 4\n[run.model]\nkind = \"mlp\"\nhidden = [4]\n\
                           [run.sparse]\nlearning_rate = 0.1\n[run.dense]\nlearning_rate = 0.1\n";
}
