//! The thread that asks the source for newer versions, loads them and frees older ones. It gives way to requests.
//!
//! Nothing that it meets ends it: a panic over one model is that model's failure, and any other is told and the next look
//! is taken. Should it end all the same, the server says so: it is not ready, `campanile_following` is 0, and there is a
//! line in the log. A server that quietly serves an old model for ever looks healthy.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    background, clock,
    engine::Engine,
    journal::Journal,
    models::{Followed, said},
    security::Access,
};

/// How following goes, as everybody may see it.
#[derive(Debug, Default)]
pub struct Following {
    ended: AtomicBool,
    /// When the source was last looked at, in microseconds since 1970; 0 before the first look.
    looked_us: AtomicU64,
}

impl Following {
    /// Whether newer versions are still looked for; true before anybody began.
    pub fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// When the source was last looked at, in microseconds since 1970; 0 before the first look.
    pub fn looked_us(&self) -> u64 {
        self.looked_us.load(Ordering::Relaxed)
    }
}

/// The running thread.
#[derive(Debug)]
pub struct Follower {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Follower {
    /// Starts to look every `poll`, at the source and at the file of tokens.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        engine: &Arc<Engine>,
        poll: Duration,
        access: Access,
        journal: Journal,
    ) -> io::Result<Follower> {
        let (stop, stopped) = sync_channel(1);
        let alarm = Alarm { engine: Arc::clone(engine), journal, is_armed: true };
        let thread = background::spawn("follow", move || {
            let mut alarm = alarm;
            let mut told = None;
            loop {
                look(&alarm.engine, &alarm.journal, &access, &mut told);
                if stopped.recv_timeout(poll) != Err(RecvTimeoutError::Timeout) {
                    alarm.is_armed = false;
                    return;
                }
            }
        })?;
        Ok(Follower { stop, thread })
    }

    /// Ends it after the present look.
    pub fn finish(self) {
        let _ = self.stop.try_send(());
        let _ = self.thread.join();
    }
}

/// Rings when the thread ends and nobody asked it to.
struct Alarm {
    engine: Arc<Engine>,
    journal: Journal,
    is_armed: bool,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if self.is_armed {
            self.engine.following.ended.store(true, Ordering::Relaxed);
            let problem = "newer versions are no longer looked for; start the server again";
            self.journal.say("following ended", &[("problem", problem)]);
        }
    }
}

/// One look at everything that may change while the server runs; `told` is the log's last problem that was said.
fn look(engine: &Engine, journal: &Journal, access: &Access, told: &mut Option<String>) {
    follow_once(engine, journal);
    engine.following.looked_us.store(clock::unix_us(), Ordering::Relaxed);
    match access.refresh() {
        None => {}
        Some(Ok(count)) => journal.say("tokens", &[("count", &count.to_string())]),
        Some(Err(error)) => {
            let problem = format!("{error}; the tokens read before still count");
            journal.say("tokens", &[("problem", &problem)]);
        }
    }
    let problem = engine.log.problem();
    if problem != *told {
        let words = problem.as_deref().unwrap_or("none: records are written again");
        journal.say("feature log", &[("problem", words)]);
        *told = problem;
    }
}

/// Brings the models up to what the source has, and says what changed. Not even a panic comes out of it.
pub fn follow_once(engine: &Engine, journal: &Journal) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| follow(engine, journal))) {
        engine.metrics.load_failures.fetch_add(1, Ordering::Relaxed);
        journal.say("source", &[("problem", &format!("an internal error: {}", said(&*payload)))]);
    }
}

fn follow(engine: &Engine, journal: &Journal) {
    let followed = match engine.models.follow() {
        Ok(followed) => followed,
        Err(error) => {
            journal.say("source", &[("problem", &error.to_string())]);
            return;
        }
    };
    for change in followed {
        match change {
            Followed::Swapped(loaded) => {
                engine.metrics.swaps.fetch_add(1, Ordering::Relaxed);
                let model = &loaded.snapshot.version().model;
                journal.say("serving", &[("model", model), ("version", &loaded.version)]);
            }
            Followed::FellBack { loaded, problem } => {
                engine.metrics.swaps.fetch_add(1, Ordering::Relaxed);
                engine.metrics.load_failures.fetch_add(1, Ordering::Relaxed);
                let model = &loaded.snapshot.version().model;
                let fields = [("model", &**model), ("version", &*loaded.version), ("problem", &*problem)];
                journal.say("fell back", &fields);
            }
            Followed::Failed { model, problem } => {
                engine.metrics.load_failures.fetch_add(1, Ordering::Relaxed);
                journal.say("load failed", &[("model", &model), ("problem", &problem)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        feature_log::FeatureLog,
        metrics::prometheus,
        models::Models,
        protocol::Limits,
        queue::QueueLimits,
        source::{Opened, Source, SourceError},
    };

    /// A source that is nothing but trouble.
    struct Broken;

    impl Source for Broken {
        fn models(&self) -> Result<Vec<String>, SourceError> {
            panic!("no list today")
        }

        fn current(&self, _: &str) -> Result<u64, SourceError> {
            panic!("no version today")
        }

        fn open(
            &self,
            _: &str,
            _: u64,
            _: Option<&campanile_serve::Snapshot>,
        ) -> Result<Opened, SourceError> {
            panic!("no model today")
        }
    }

    fn engine() -> Arc<Engine> {
        let queue = QueueLimits { jobs_max: 1, samples_max: 1, batch_samples_max: 1, wait: Duration::ZERO };
        Arc::new(Engine::new(Models::new(Box::new(Broken)), FeatureLog::off(), Limits::default(), queue))
    }

    #[test]
    fn a_panic_of_the_source_is_counted_and_the_next_look_is_taken() {
        let engine = engine();
        let journal = Journal::new(io::sink());
        let follower =
            Follower::start(&engine, Duration::from_millis(1), Access::Everybody, journal).unwrap();
        while engine.metrics.load_failures.load(Ordering::Relaxed) < 3 {
            std::thread::yield_now();
        }
        assert!(engine.following.goes_on() && engine.following.looked_us() > 0);
        follower.finish();
        assert!(engine.following.goes_on(), "it was asked to end");
    }

    #[test]
    fn a_thread_that_ends_unasked_is_loud() {
        let engine = engine();
        assert!(prometheus(&engine).contains("campanile_following 1"));
        let alarm = Alarm { engine: Arc::clone(&engine), journal: Journal::new(io::sink()), is_armed: true };
        let ended = std::thread::spawn(move || {
            let _alarm = alarm;
            panic!("for whatever reason");
        });
        assert!(ended.join().is_err());
        assert!(!engine.following.goes_on() && !engine.is_ready());
        assert!(prometheus(&engine).contains("campanile_following 0"));
    }
}
