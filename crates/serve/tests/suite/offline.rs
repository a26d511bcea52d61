//! Served scores have the bits of the offline evaluation of the same checkpoint, whatever shares a call.

use campanile_comm::threads;
use campanile_data::Raw;
use campanile_kernels::Isa;
use campanile_serve::{Options, Request, Scorer, Scores, Side, Snapshot};
use campanile_spec::{Batch, Plan, Precision};
use campanile_tables::checkpoint::{Checkpoint, Load};
use campanile_train::{
    TrainError,
    loader::LocalBatch,
    rank::{RankState, Seat},
    resume,
};

use crate::trained::{Trained, bits, fill};

/// The logits of the training's own forward pass, `[sample][task]`.
pub fn offline(trained: &Trained, batch: &Batch) -> Vec<f32> {
    let found = Checkpoint::open(&trained.checkpoint).unwrap();
    let logits = threads::run(1, |comm| -> Result<Vec<f32>, TrainError> {
        let plan = Plan::balanced(&trained.job.run.model, 1);
        let seat = Seat { plan: &plan, rank: 0, chunks: 1, isa: Isa::detect() };
        let mut state = RankState::new(&trained.job.run, seat)?;
        resume::load(&found, &mut state, 0, Load::Rows)?;
        state.network.prepare(&state.parameters);
        let mut logits = Vec::new();
        let size = trained.job.run.batch_size;
        for start in (0..batch.sample_count).step_by(size) {
            let mut samples = batch.slice(start..batch.sample_count.min(start + size));
            samples.bags.repeat(&trained.job.run.model.followers);
            let global_count = samples.sample_count;
            state.predict(comm, &LocalBatch { samples, global_count, first: 0, mark: None }, Ok(()))?;
            logits.extend_from_slice(state.logits());
        }
        Ok(logits)
    });
    logits.unwrap().remove(0)
}

#[test]
fn scores_have_the_bits_of_the_evaluation_however_requests_are_cut() {
    for example in ["tiny", "dcn", "towers", "multi_task", "low_precision"] {
        let trained = Trained::example(example);
        let snapshot = Snapshot::open(&trained.checkpoint, example, &Options::default()).unwrap();
        let batch = trained.samples(300);
        let wanted = offline(&trained, &batch);
        let tasks = snapshot.tasks().count();
        let mut scorer = Scorer::new();
        let mut scores = Scores::default();
        for cut in [1, 7, 128, 129, 300] {
            let mut requests = Vec::new();
            for start in (0..300).step_by(cut) {
                let mut request = Request::new();
                fill(&mut request, &snapshot, &batch.slice(start..300.min(start + cut)));
                requests.push(request);
            }
            let together: Vec<&Request> = requests.iter().collect();
            scorer.score(&snapshot, &together, &mut scores).unwrap();
            assert_eq!(bits(&scores.logits), bits(&wanted), "{example}, cut {cut}, together");
            let mut alone = Vec::new();
            for request in &requests {
                scorer.score(&snapshot, &[request], &mut scores).unwrap();
                alone.extend_from_slice(&scores.logits);
            }
            assert_eq!(bits(&alone), bits(&wanted), "{example}, cut {cut}, alone");
        }
        assert_eq!(wanted.len(), 300 * tasks);
    }
}

/// A model that was trained with bfloat16 products is served with them; `f32` must be asked for, and gives other bits.
#[test]
fn precision_follows_the_job_unless_another_is_asked_for() {
    let trained = Trained::example("low_precision");
    let batch = trained.samples(40);
    let scored = |precision: Option<Precision>| {
        let options = Options { precision, ..Options::default() };
        let snapshot = Snapshot::open(&trained.checkpoint, "low_precision", &options).unwrap();
        let mut request = Request::new();
        fill(&mut request, &snapshot, &batch);
        let mut scores = Scores::default();
        Scorer::new().score(&snapshot, &[&request], &mut scores).unwrap();
        (snapshot.model().precision, bits(&scores.logits))
    };
    let (precision, followed) = scored(None);
    assert_eq!(precision, Precision::Bf16);
    assert_eq!(followed, bits(&offline(&trained, &batch)));
    assert_eq!(followed, scored(Some(Precision::Bf16)).1);
    assert_ne!(followed, scored(Some(Precision::F32)).1);
}

/// A scorer that meets snapshots of other models and other precisions in turn answers each with its own bits.
#[test]
fn a_scorer_serves_snapshots_in_turn() {
    let (one, other) = (Trained::example("tiny"), Trained::example("low_precision"));
    let open = |trained: &Trained, precision: Precision| {
        let options = Options { precision: Some(precision), ..Options::default() };
        Snapshot::open(&trained.checkpoint, "turns", &options).unwrap()
    };
    let snapshots = [(&one, Precision::F32), (&other, Precision::F32), (&other, Precision::Bf16)]
        .map(|(trained, precision)| (trained, open(trained, precision)));
    let score = |scorer: &mut Scorer, (trained, snapshot): &(&Trained, Snapshot)| {
        let mut request = Request::new();
        fill(&mut request, snapshot, &trained.samples(20));
        let mut scores = Scores::default();
        scorer.score(snapshot, &[&request], &mut scores).unwrap();
        bits(&scores.logits)
    };
    let wanted = snapshots.each_ref().map(|one| score(&mut Scorer::new(), one));
    let mut scorer = Scorer::new();
    for turn in [0, 1, 1, 2, 1, 0, 2, 2, 0] {
        assert_eq!(score(&mut scorer, &snapshots[turn]), wanted[turn], "snapshot {turn}");
    }
}

#[test]
fn what_is_given_once_is_as_if_given_for_each() {
    let trained = Trained::example("tiny");
    let snapshot = Snapshot::open(&trained.checkpoint, "tiny", &Options::default()).unwrap();
    let inputs = snapshot.inputs();
    let count = 150;
    let candidates: Vec<u32> = (0..count as u32).map(|n| n % 10).collect();
    let (mut once, mut each) = (Request::new(), Request::new());
    for (request, side) in [(&mut once, Side::Once), (&mut each, Side::Each)] {
        let times = if side == Side::Once { 1 } else { count };
        request.begin(inputs, count).unwrap();
        for column in 0..inputs.dense_count() {
            request.raw_dense(column, side, vec![Raw::Float(0.25); times]).unwrap();
        }
        request.raw_ids(0, side, &vec![1; times], vec![Raw::Int(7); times]).unwrap();
        let ids: Vec<Raw<'_>> = (0..times * 2).map(|n| Raw::Int([3, 5][n % 2])).collect();
        request.raw_ids(1, side, &vec![2; times], ids).unwrap();
        request.rows(2, Side::Each, &vec![1; count], &candidates).unwrap();
        request.raw_ids(3, side, &vec![1; times], vec![Raw::Text(b"2"); times]).unwrap();
        request.finish().unwrap();
    }
    let (mut scorer, mut one, mut other) = (Scorer::new(), Scores::default(), Scores::default());
    scorer.score(&snapshot, &[&once], &mut one).unwrap();
    scorer.score(&snapshot, &[&each], &mut other).unwrap();
    assert_eq!(bits(&one.logits), bits(&other.logits));
    let first = one.samples(0..1).1[0];
    assert!(one.probabilities.chunks(one.task_count).any(|sample| sample[0] != first), "candidates differ");
}

#[test]
fn dense_inputs_given_once_have_the_same_bits_in_every_network() {
    for example in ["tiny", "first", "dcn", "towers", "multi_task", "low_precision"] {
        let trained = Trained::example(example);
        let snapshot = Snapshot::open(&trained.checkpoint, example, &Options::default()).unwrap();
        let inputs = snapshot.inputs();
        let (count, width) = (140, inputs.dense_count());
        let mut batch = trained.samples(count as u64);
        let (user, others) = batch.dense.split_at_mut(width);
        others.chunks_exact_mut(width).for_each(|dense| dense.copy_from_slice(user));
        let mut once = Request::new();
        once.begin(inputs, count).unwrap();
        for (column, value) in batch.dense[..width].iter().enumerate() {
            once.dense(column, Side::Once, &[*value]).unwrap();
        }
        for feature in 0..inputs.feature_count() {
            let bags = batch.bags.feature(feature);
            let lengths: Vec<u32> = bags.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
            once.rows(feature, Side::Each, &lengths, bags.rows).unwrap();
            if !bags.weights.is_empty() {
                once.weights(feature, bags.weights).unwrap();
            }
        }
        once.finish().unwrap();
        let mut each = Request::new();
        fill(&mut each, &snapshot, &batch);
        let (mut scorer, mut one, mut other) = (Scorer::new(), Scores::default(), Scores::default());
        scorer.score(&snapshot, &[&once, &each, &once], &mut one).unwrap();
        scorer.score(&snapshot, &[&each, &each, &each], &mut other).unwrap();
        assert_eq!(bits(&one.logits), bits(&other.logits), "{example}");
    }
}
