use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, PartialEq)]
struct Plain {
    number: usize,
    samples: usize,
    key: usize,
    deadline: Option<Instant>,
    gone: bool,
}

impl Job for Plain {
    fn samples(&self) -> usize {
        self.samples
    }
    fn key(&self) -> usize {
        self.key
    }
    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
    fn is_abandoned(&self) -> bool {
        self.gone
    }
}

fn plain(number: usize, samples: usize, key: usize) -> Plain {
    Plain { number, samples, key, deadline: None, gone: false }
}

const LIMITS: QueueLimits =
    QueueLimits { jobs_max: 8, samples_max: 100, batch_samples_max: 10, wait: Duration::ZERO };

fn numbers(jobs: &[Plain]) -> Vec<usize> {
    jobs.iter().map(|job| job.number).collect()
}

#[test]
fn a_batch_holds_jobs_of_one_key_up_to_its_samples_and_the_rest_keeps_its_place() {
    let queue = Queue::new(LIMITS);
    for job in [plain(0, 4, 1), plain(1, 4, 2), plain(2, 4, 1), plain(3, 4, 1), plain(4, 2, 1)] {
        queue.push(job).unwrap();
    }
    assert_eq!(numbers(&queue.take().unwrap().jobs), [0, 2, 4]);
    assert_eq!(numbers(&queue.take().unwrap().jobs), [1]);
    assert_eq!(numbers(&queue.take().unwrap().jobs), [3]);
    assert_eq!(queue.waiting(), (0, 0));
}

#[test]
fn a_full_queue_refuses_at_once_and_a_closed_one_empties() {
    let queue = Queue::new(LIMITS);
    // Larger than all that may wait, but nobody waits.
    queue.push(plain(0, 1000, 1)).unwrap();
    assert_eq!(queue.push(plain(1, 1, 1)).unwrap_err().1, Refused::Full);
    assert_eq!(numbers(&queue.take().unwrap().jobs), [0]);
    (0..8).for_each(|number| queue.push(plain(number, 1, number)).unwrap());
    assert_eq!(queue.push(plain(9, 1, 1)).unwrap_err().1, Refused::Full);
    queue.close();
    assert_eq!(queue.push(plain(9, 1, 1)).unwrap_err().1, Refused::Closed);
    assert_eq!((0..8).map(|_| queue.take().unwrap().jobs.len()).sum::<usize>(), 8);
    assert!(queue.take().is_none());
}

#[test]
fn a_thread_that_may_wait_gathers_what_comes_meanwhile() {
    let limits = QueueLimits { wait: Duration::from_secs(60), ..LIMITS };
    let queue = Arc::new(Queue::new(limits));
    queue.push(plain(0, 5, 1)).unwrap();
    let taker = std::thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.take().unwrap().jobs.len()
    });
    queue.push(plain(1, 5, 1)).unwrap();
    assert_eq!(taker.join().unwrap(), 2);
}

#[test]
fn every_job_comes_out_once_with_many_writers_and_threads() {
    let queue = Arc::new(Queue::new(LIMITS));
    let (taken, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(batch) = queue.take() {
                    taken.fetch_add(batch.jobs.len(), Ordering::Relaxed);
                }
            });
        }
        let writers: Vec<_> = (0..4)
            .map(|key| {
                let (queue, refused) = (&queue, &refused);
                scope.spawn(move || {
                    for number in 0..2000 {
                        if queue.push(plain(number, 1 + number % 5, key)).is_err() {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        queue.close();
    });
    assert_eq!(taken.into_inner() + refused.into_inner(), 8000);
}

proptest! {
    /// Whatever waits comes out exactly once unless its client is gone; late jobs come out as late; jobs of one
    /// key keep their order within and between batches unless one was too large to go along.
    #[test]
    fn nothing_is_lost_or_doubled(
        jobs in prop::collection::vec((1usize..15, 0usize..3, 0u8..10), 0..8),
    ) {
        let queue = Queue::new(LIMITS);
        let jobs: Vec<Plain> = jobs.iter().enumerate().map(|(number, &(samples, key, fate))| Plain {
            deadline: (fate == 0).then(clock::now), gone: fate == 1, ..plain(number, samples, key)
        }).collect();
        for job in &jobs {
            queue.push(job.clone()).unwrap();
        }
        queue.close();
        let (mut scored, mut late) = (Vec::new(), Vec::new());
        while let Some(batch) = queue.take() {
            let samples: usize = batch.jobs.iter().map(Job::samples).sum();
            prop_assert!(batch.jobs.len() < 2 || samples <= LIMITS.batch_samples_max);
            prop_assert!(batch.jobs.windows(2).all(|pair| pair[0].key == pair[1].key));
            scored.extend(numbers(&batch.jobs));
            late.extend(numbers(&batch.late));
        }
        scored.sort_unstable();
        late.sort_unstable();
        let wanted = |keep: fn(&&Plain) -> bool| {
            jobs.iter().filter(keep).map(|job| job.number).collect::<Vec<_>>()
        };
        prop_assert_eq!(scored, wanted(|job| job.deadline.is_none() && !job.gone));
        prop_assert_eq!(late, wanted(|job| job.deadline.is_some() && !job.gone));
        prop_assert_eq!(queue.waiting(), (0, 0));
    }
}
