//! Traffic, joiner and augmentation of the loop, and the lookout over all of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use campanile_live::{
    End, Stop,
    answers::Students,
    augment::{AugmentOptions, Augmenter},
    board::{Published, StageLine},
    file::Role,
    traffic::Traffic,
    watch::TeacherWatch,
};
use campanile_spec::config::Corrections;
use campanile_stream::{
    join::{JoinOptions, Joiner},
    log::{Limit, Log, Records},
    stage::{Runner, Stage},
    topics::{EXAMPLES, FEEDBACK, IMPRESSIONS, WORDS},
};
use campanile_tables::Registry;

use super::Loop;
use crate::command::{augment::stream as augment_stream, join};

/// How long a stage waits when there is nothing to do.
const PAUSE: Duration = Duration::from_millis(20);
/// Memory for features of open impressions.
const FEATURES_BYTES_MAX: usize = 256 << 20;
/// Impressions that may be open at once.
const OPEN_MAX: usize = 20_000_000;
/// Impressions that may wait for the joiner before traffic is held back.
const IMPRESSIONS_WAITING_MAX: u64 = 100_000;

impl Loop {
    fn registry(&self) -> Registry {
        Registry::new(&self.file.settings.directory.join("registry"))
    }

    /// Whether the stages behind are so far behind that nothing more shall come.
    fn is_full(&self) -> Result<bool> {
        let joined = self.log.committed("join", IMPRESSIONS, 0)?;
        let waiting = self.log.range(IMPRESSIONS, 0)?.end.saturating_sub(joined);
        let examples = self.log.range(EXAMPLES, 0)?.end.saturating_sub(self.board.position_of_slowest());
        // What waits for the joiner will wait for the models.
        Ok(waiting > IMPRESSIONS_WAITING_MAX || examples + waiting > self.file.settings.examples_waiting_max)
    }
}

/// Lets impressions and feedback arrive as their time comes, answered by the students.
pub fn traffic(live: &Loop) -> Result<()> {
    let students = live.file.members.iter().filter(|member| member.role == Role::Student);
    let mut students = Students::new(live.registry(), students.map(|member| member.name.clone()));
    let mut traffic = Traffic::new(&live.file.world, live.file.seed, &students)?;
    let there = live.log.range(IMPRESSIONS, 0)?.end;
    while traffic.made() < there && live.stop.end() < End::Now {
        traffic.chunk(&*live.log, &mut students)?;
    }
    let (first_ms, speed) = (traffic.now_ms(), live.file.settings.speed);
    live.board.set_time(first_ms, 0.0, false);
    // Time that traffic was held back does not have to be made up for.
    let (mut started, mut before) = (Instant::now(), (Instant::now(), first_ms));
    let mut passed_ms = 0.0;
    loop {
        if live.stop.end() == End::Now {
            return Ok(());
        }
        let held_back = live.is_full()?;
        if before.0.elapsed() >= Duration::from_secs(1) {
            let (seconds, ms) = (before.0.elapsed().as_secs_f64(), traffic.now_ms() - before.1);
            live.board.set_time(traffic.now_ms(), ms as f64 / 1000.0 / seconds, held_back);
            before = (Instant::now(), traffic.now_ms());
        }
        passed_ms += if held_back { 0.0 } else { started.elapsed().as_secs_f64() * 1000.0 * speed };
        started = Instant::now();
        if held_back || speed > 0.0 && (traffic.now_ms() - first_ms) as f64 > passed_ms {
            live.stop.wait(PAUSE);
        } else if !traffic.chunk(&*live.log, &mut students)? {
            let windows = live.file.windows_ms();
            let disorder = (live.file.settings.disorder_seconds * 1000.0) as u64;
            traffic.finish(&*live.log, windows.iter().max().unwrap_or(&0) + disorder + 1)?;
            return Ok(());
        }
    }
}

/// Joins.
pub fn join(live: &Loop) -> Result<()> {
    let settings = &live.file.settings;
    let given = match live.file.world.conversion.as_ref().map(|conversion| conversion.label) {
        Some(campanile_spec::world::ConversionLabel::GivenClick) => vec![None, Some(0)],
        _ => Vec::new(),
    };
    let longest_ms = live.file.windows_ms().into_iter().max().unwrap_or(0);
    let options = JoinOptions {
        windows_ms: live.file.windows_ms(),
        jump_ms: join::jump_ms(longest_ms),
        impressions_max: OPEN_MAX,
        given,
        disorder_ms: (settings.disorder_seconds * 1000.0) as u64,
        remember_ms: (settings.remember_seconds * 1000.0) as u64,
        features_bytes_max: FEATURES_BYTES_MAX,
        repeat_late: live.file.members.iter().any(|member| member.job.run.corrections == Corrections::Train),
        impression_inputs: 1,
        word_inputs: 1,
    };
    let runner = Runner::open(Arc::clone(&live.log), join::wiring(), Joiner::new(options));
    drive(runner.context("the joiner")?, &live.stop_stages, || true).context("the joiner")
}

/// Lets the teacher speak, from when it is first published.
pub fn augment(live: &Loop) -> Result<()> {
    let options = AugmentOptions {
        registry: live.registry(),
        model: "teacher".to_owned(),
        window_ms: live.file.windows_ms().into_iter().max().unwrap_or(0),
        remember_ms: (live.file.settings.remember_seconds * 1000.0) as u64,
        remembered_max: augment_stream::REMEMBERED_MAX,
        // The loop publishes by itself, and must not end because it was stopped for long.
        may_change_version: true,
        embedding_floats: live.file.embedding_floats(),
    };
    let registry = live.registry();
    let is_published = || registry.current("teacher").is_ok_and(|current| current.is_some());
    while !is_published() {
        // Without a teacher nobody waits for one.
        if live.stop_stages.end() >= End::AtEnd {
            return Ok(());
        }
        live.stop_stages.wait(PAUSE);
    }
    let stage = Augmenter::new(Arc::clone(&live.log), options);
    let runner = Runner::open(Arc::clone(&live.log), augment_stream::wiring(), stage);
    drive(runner.context("the augmentation")?, &live.stop_stages, is_published).context("the augmentation")
}

fn drive<S: Stage>(mut runner: Runner<S>, stop: &Stop, ready: impl Fn() -> bool) -> Result<()> {
    loop {
        let moved = stop.end() < End::Now && ready() && runner.turn()?;
        let end = if moved { stop.end() } else { stop.wait(PAUSE) };
        if end == End::Now || end == End::AtEnd && !moved {
            return Ok(runner.save()?);
        }
    }
}

/// Looks at all stages once a second.
pub struct Lookout {
    watch: TeacherWatch,
    before: Option<(Instant, Vec<(String, u64)>)>,
    read: Records,
}

impl Lookout {
    /// At the start of a loop.
    pub fn new(live: &Loop) -> Result<Lookout> {
        let run = &live.file.members[0].job.run;
        let window = run.evaluate.window_steps * run.batch_size as u64;
        let watch = TeacherWatch::new(&*live.log, live.tasks.names().len(), window)?;
        Ok(Lookout { watch, before: None, read: Records::default() })
    }

    /// Notes what is to be seen now.
    pub fn look(&mut self, live: &Loop) -> Result<()> {
        self.watch.look(&*live.log, &live.tasks, 64)?;
        let registry = live.registry();
        let published = live.file.members.iter().map(|member| {
            let version = registry.current(&member.name).ok().flatten()?;
            let data_time_ms =
                registry.release(&member.name, version).ok().and_then(|release| release.data_time);
            Some(Published { version, data_time_ms })
        });
        let published = published.collect();
        let log = &*live.log;
        let mut places = vec![
            ("traffic".to_owned(), IMPRESSIONS, log.range(IMPRESSIONS, 0)?.end),
            ("augment".to_owned(), IMPRESSIONS, log.committed("augment", IMPRESSIONS, 0)?),
            ("join".to_owned(), IMPRESSIONS, log.committed("join", IMPRESSIONS, 0)?),
            ("join, feedback".to_owned(), FEEDBACK, log.committed("join", FEEDBACK, 0)?),
        ];
        let trainers = live.board.positions().into_iter();
        places.extend(trainers.map(|(name, examples)| (format!("train {name}"), EXAMPLES, examples)));
        let now: Vec<(String, u64)> =
            places.iter().map(|(name, _, cursor)| (name.clone(), *cursor)).collect();
        let mut lines = Vec::new();
        for (place, (name, topic, cursor)) in places.into_iter().enumerate() {
            let rate = self.before.as_ref().map_or(0.0, |(at, before)| {
                cursor.saturating_sub(before[place].1) as f64 / at.elapsed().as_secs_f64().max(1e-3)
            });
            let waiting = log.range(topic, 0)?.end.saturating_sub(cursor);
            let behind_ms = self.behind(log, topic, cursor)?;
            lines.push(StageLine { name, waiting, waiting_most: waiting, behind_ms, rate });
        }
        self.before = Some((Instant::now(), now));
        let words = log.range(WORDS, 0)?.end;
        live.board.tick(published, lines, (self.watch.seen(), words));
        Ok(())
    }

    /// How far the newest record of a topic is ahead of the one at a cursor, in time of the stream.
    fn behind(&mut self, log: &dyn Log, topic: &str, cursor: u64) -> Result<Option<u64>> {
        let range = log.range(topic, 0)?;
        if cursor >= range.end {
            return Ok(Some(0));
        }
        log.last(topic, 0, &mut self.read)?;
        let newest_ms = self.read.last().map_or(0, |record| record.time_ms);
        log.read(topic, 0, cursor.max(range.start), Limit { records: 1, bytes: 1 }, &mut self.read)?;
        Ok(self.read.last().map(|record| newest_ms.saturating_sub(record.time_ms)))
    }
}
