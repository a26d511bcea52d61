//! What the model said of a batch, brought to rank 0 in the order of the global batch.
//!
//! Metrics are summed there, sample by sample, so that they are the same for every number of ranks. A message
//! is some twenty bytes a sample, a thousandth of what a step moves otherwise.

use campanile_comm::{Buffer, CommError, Communicator};

use crate::{loader::LocalBatch, observe::Wish};

/// What is wished of a run, as far as a rank knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wishes {
    /// Of this rank.
    pub own: Wish,
    /// Which step's predictions are sent. Every message says it, so that none is taken for another's.
    pub step: u64,
    /// On rank 0: of all ranks, one step ago.
    heard: Wish,
}

/// The first words of a message of predictions.
const HEAD_WORDS: usize = 4;
const HEAD_BYTES: usize = HEAD_WORDS * size_of::<u32>();

/// What tells predictions from any other message: "pred".
const KIND: u32 = u32::from_le_bytes(*b"pred");

/// `wish, kind, step`, in words of 32 bits.
fn head(wish: Wish, step: u64) -> [u32; HEAD_WORDS] {
    [wish.word(), KIND, step as u32, (step >> 32) as u32]
}

/// Logits of some samples and what they are judged by. Optional columns are empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Predictions {
    /// Number of samples.
    pub sample_count: usize,
    /// `[task][sample]`.
    pub logits: Vec<f32>,
    /// `[task][sample]`, NaN where absent.
    pub labels: Vec<f32>,
    /// Sample weights.
    pub weights: Vec<f32>,
    /// Groups for GAUC.
    pub groups: Vec<u64>,
    /// Segments for calibration.
    pub segments: Vec<u32>,
    /// `[task][sample]`, for synthetic worlds.
    pub true_probabilities: Vec<f32>,
    /// What a teacher said, `[task][sample]`; NaN where nothing.
    pub teacher_logits: Vec<f32>,
    /// The newest of the samples' times, if they have any.
    pub newest_time: Option<i64>,
}

impl Predictions {
    /// The slice of one task in a `[task][sample]` column; empty where the column is.
    pub fn of_task<'a>(&self, column: &'a [f32], task: usize) -> &'a [f32] {
        if column.is_empty() { column } else { &column[task * self.sample_count..][..self.sample_count] }
    }

    /// Brings the predictions of all ranks to rank 0, which gets one `Predictions` per rank, in rank order;
    /// the others get none. `logits` are `[sample][task]`.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn collect(
        comm: &dyn Communicator,
        batch: &LocalBatch,
        logits: &[f32],
        task_count: usize,
    ) -> Result<Vec<Predictions>, CommError> {
        let mut wishes = Wishes::default();
        Ok(Predictions::collect_and_agree(comm, batch, (logits, task_count), &mut wishes)?.0)
    }

    /// The same; beside it rank 0 tells all ranks what is wished of the run, which are the wishes that it knows: its own,
    /// and those that the others sent with their last predictions. No message more is sent for it.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn collect_and_agree(
        comm: &dyn Communicator,
        batch: &LocalBatch,
        (logits, task_count): (&[f32], usize),
        wishes: &mut Wishes,
    ) -> Result<(Vec<Predictions>, Wish), CommError> {
        let mine = Predictions::of(batch, logits, task_count);
        let own = wishes.own.max(wishes.heard);
        if comm.rank_count() == 1 {
            return Ok((vec![mine], own));
        }
        let head = head(own, wishes.step);
        let told = if comm.rank() == 0 { Buffer::of(&head) } else { Buffer::new() };
        let mut send = vec![told; comm.rank_count()];
        send[0] = mine.write(&head);
        let parts = comm.all_to_all(send)?;
        let senders = if comm.rank() == 0 { &parts[..] } else { &parts[..1] };
        for (rank, part) in senders.iter().enumerate() {
            let wanted: &[u8] = bytemuck::cast_slice(&head[1..]);
            if part.bytes().get(size_of::<u32>()..HEAD_BYTES) != Some(wanted) {
                return Err(CommError::OtherMessage { rank: comm.number(rank) });
            }
        }
        if comm.rank() != 0 {
            return Ok((Vec::new(), Predictions::wish(&parts[0])));
        }
        // Its own part repeats what was heard before, which all have been told by now.
        wishes.heard = parts[1..].iter().map(Predictions::wish).max().unwrap_or_default();
        Ok((parts.iter().map(Predictions::read).collect(), own))
    }

    /// The parts of all ranks as one, in the order of the global batch.
    pub fn concatenated(parts: &[Predictions], task_count: usize) -> Predictions {
        let by_task = |column: fn(&Predictions) -> &[f32]| -> Vec<f32> {
            (0..task_count)
                .flat_map(|task| parts.iter().flat_map(move |p| p.of_task(column(p), task)))
                .copied()
                .collect()
        };
        Predictions {
            sample_count: parts.iter().map(|part| part.sample_count).sum(),
            logits: by_task(|part| &part.logits),
            labels: by_task(|part| &part.labels),
            weights: parts.iter().flat_map(|part| &part.weights).copied().collect(),
            groups: parts.iter().flat_map(|part| &part.groups).copied().collect(),
            segments: parts.iter().flat_map(|part| &part.segments).copied().collect(),
            true_probabilities: by_task(|part| &part.true_probabilities),
            teacher_logits: by_task(|part| &part.teacher_logits),
            newest_time: parts.iter().filter_map(|part| part.newest_time).max(),
        }
    }

    fn of(batch: &LocalBatch, logits: &[f32], task_count: usize) -> Predictions {
        let samples = &batch.samples;
        let count = samples.sample_count;
        let by_task =
            (0..task_count).flat_map(|task| (0..count).map(move |sample| sample * task_count + task));
        Predictions {
            sample_count: count,
            logits: by_task.map(|place| logits[place]).collect(),
            labels: samples.labels.clone(),
            weights: samples.weights.clone(),
            groups: samples.groups.clone(),
            segments: samples.segments.clone(),
            true_probabilities: samples.true_probabilities.clone(),
            teacher_logits: samples.teacher_logits.clone(),
            newest_time: samples.times.iter().copied().max(),
        }
    }

    /// `head | lengths of the seven columns, samples, newest time | the columns`, in words of 32 bits.
    fn write(&self, head: &[u32; HEAD_WORDS]) -> Buffer {
        let groups: Vec<u32> = self.groups.iter().flat_map(|g| [*g as u32, (*g >> 32) as u32]).collect();
        let columns: [&[u32]; 7] = [
            bytemuck::cast_slice(&self.logits),
            bytemuck::cast_slice(&self.labels),
            bytemuck::cast_slice(&self.weights),
            &groups,
            &self.segments,
            bytemuck::cast_slice(&self.true_probabilities),
            bytemuck::cast_slice(&self.teacher_logits),
        ];
        let mut words = head.to_vec();
        words.extend(columns.iter().map(|column| column.len() as u32));
        words.push(self.sample_count as u32);
        let newest = self.newest_time.unwrap_or(i64::MIN) as u64;
        words.extend([newest as u32, (newest >> 32) as u32]);
        words.extend(columns.iter().flat_map(|column| column.iter()));
        Buffer::of(&words)
    }

    fn wish(buffer: &Buffer) -> Wish {
        Wish::of(buffer.values::<u32>()[0])
    }

    fn read(buffer: &Buffer) -> Predictions {
        let (lengths, mut rest) = buffer.values::<u32>()[HEAD_WORDS..].split_at(10);
        let mut column = |index: usize| {
            let (column, after) = rest.split_at(lengths[index] as usize);
            rest = after;
            column
        };
        let floats = |words: &[u32]| words.iter().map(|w| f32::from_bits(*w)).collect();
        Predictions {
            sample_count: lengths[7] as usize,
            logits: floats(column(0)),
            labels: floats(column(1)),
            weights: floats(column(2)),
            groups: column(3).chunks_exact(2).map(|g| u64::from(g[0]) | u64::from(g[1]) << 32).collect(),
            segments: column(4).to_vec(),
            true_probabilities: floats(column(5)),
            teacher_logits: floats(column(6)),
            newest_time: Some((u64::from(lengths[8]) | u64::from(lengths[9]) << 32) as i64)
                .filter(|time| *time != i64::MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_whole() {
        let predictions = Predictions {
            sample_count: 2,
            logits: vec![0.5, -1.0, 2.0, 3.0],
            labels: vec![1.0, 0.0, 0.0, 1.0],
            weights: vec![],
            groups: vec![u64::MAX - 3, 7],
            segments: vec![4, 5],
            true_probabilities: vec![],
            teacher_logits: vec![-1.0, 0.25, 8.0, -3.5],
            newest_time: Some(-5_000_000_000),
        };
        let written = predictions.write(&head(Wish::Stop, 5 << 40));
        assert_eq!(Predictions::read(&written), predictions);
        assert_eq!(Predictions::wish(&written), Wish::Stop);
        assert_eq!(predictions.of_task(&predictions.logits, 1), [2.0, 3.0]);
    }

    /// Ranks that were started differently would read each other's messages as something else.
    #[test]
    fn a_message_of_another_step_or_kind_is_not_taken_for_this_ones() {
        fn of_step(comm: &dyn Communicator, step: u64) -> Result<(), CommError> {
            let mut wishes = Wishes { step, ..Wishes::default() };
            Predictions::collect_and_agree(comm, &LocalBatch::default(), (&[], 1), &mut wishes).map(drop)
        }
        let said = |odd: fn(&dyn Communicator) -> Result<(), CommError>| {
            campanile_comm::threads::run(
                2,
                |comm| if comm.rank() == 1 { odd(comm) } else { of_step(comm, 7) },
            )
        };
        assert!(said(|comm| of_step(comm, 7)).is_ok());
        let other = said(|comm| comm.all_gather(Buffer::of(&[1u64])).map(drop));
        for odd in [said(|comm| of_step(comm, 8)), other] {
            assert!(matches!(odd, Err(CommError::OtherMessage { .. })), "{odd:?}");
        }
        let agreed = campanile_comm::threads::run(2, |comm| match comm.rank() {
            0 => comm.agree(Ok(())),
            _ => comm.all_gather(Buffer::of(b"rows")).map(drop),
        });
        assert_eq!(agreed, Err(CommError::OtherMessage { rank: 1 }));
    }
}
