//! The models in service, and how a newer snapshot takes the place of an older one.
//!
//! A newer snapshot is loaded beside the one in service, and then one pointer changes. A request takes the pointer
//! once, when it is read, and keeps it to the end: its features are prepared, scored and named by exactly one
//! version, whatever happens meanwhile.
//!
//! A snapshot that nobody uses any more is freed by the thread that loads, not by one that answers: giving back
//! gigabytes takes long.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use campanile_serve::Snapshot;
use serde_json::Value;

use crate::{
    clock,
    error::ServeError,
    feature_log::RawColumns,
    metrics::ScoreTally,
    source::{Opened, Source, SourceError},
};

/// A snapshot in service.
#[derive(Debug)]
pub struct Loaded {
    /// What answers.
    pub snapshot: Snapshot,
    /// Its version as clients see it.
    pub version: String,
    /// When it came into service, in microseconds since 1970.
    pub since_us: u64,
    /// When it was published, in milliseconds since 1970, if that is known.
    pub published_ms: Option<u64>,
    /// What the gate measured on a hold-out; `null` without a gate.
    pub judged: Value,
    /// Names of the outputs: for each task its probability, then its logit.
    pub outputs: Vec<[String; 2]>,
    /// What it answered, by task.
    pub tallies: Vec<ScoreTally>,
    /// Its inputs, for the feature log.
    pub columns: Arc<RawColumns>,
}

/// A model by name.
#[derive(Debug)]
pub struct Model {
    /// Its name.
    pub name: String,
    served: ArcSwapOption<Loaded>,
    status: Mutex<Status>,
    /// Held while a snapshot is loaded: one at a time.
    loading: Mutex<()>,
}

#[derive(Debug, Default)]
struct Status {
    /// Taken out by a client.
    unloaded: bool,
    /// Why the newest version is not in service.
    problem: Option<String>,
    /// The version that could not be served when it was last tried, if its number is known.
    failed: Option<Failed>,
    /// Snapshots that may still be in use by a request.
    retired: Vec<Arc<Loaded>>,
}

/// A version that cannot be served: it is tried again, less and less often, since reading one may take long.
#[derive(Debug, Clone, Copy)]
struct Failed {
    number: u64,
    /// How often it was tried.
    tries: u32,
    /// Looks at the source before the next try.
    looks_left: u32,
}

/// Looks at the source between two tries of a version that cannot be served, at most.
const LOOKS_BETWEEN_MAX: u32 = 60;

impl Failed {
    /// What follows from one more failure.
    fn again(before: Option<Failed>, number: u64) -> Failed {
        let tries = before.filter(|failed| failed.number == number).map_or(0, |failed| failed.tries);
        Failed {
            number,
            tries: tries.saturating_add(1),
            looks_left: (1u32 << tries.min(6)).min(LOOKS_BETWEEN_MAX),
        }
    }
}

/// What a client sees in the repository's index.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct IndexEntry {
    /// The model.
    pub name: String,
    /// Its version, empty when none is in service.
    pub version: String,
    /// `READY` or `UNAVAILABLE`.
    pub state: &'static str,
    /// Why it is not ready, or why it is not newer.
    pub reason: String,
}

/// All models.
pub struct Models {
    source: Box<dyn Source>,
    by_name: ArcSwap<BTreeMap<String, Arc<Model>>>,
}

impl std::fmt::Debug for Models {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Models").field("by_name", &self.by_name).finish_non_exhaustive()
    }
}

/// What following the source did.
#[derive(Debug)]
pub enum Followed {
    /// A newer version is in service.
    Swapped(Arc<Loaded>),
    /// The newest version cannot be served; the one before stays.
    Failed {
        /// The model.
        model: String,
        /// Why.
        problem: String,
    },
    /// The newest version cannot be served, nothing was in service, and an earlier version is now.
    FellBack {
        /// What is in service.
        loaded: Arc<Loaded>,
        /// Why the newest is not.
        problem: String,
    },
}

impl Loaded {
    fn new(opened: Opened) -> Loaded {
        let Opened { snapshot, published_ms, judged } = opened;
        let outputs: Vec<_> =
            snapshot.tasks().map(|task| [task.to_owned(), format!("{task}.logit")]).collect();
        Loaded {
            version: snapshot.version().number.to_string(),
            since_us: clock::unix_us(),
            published_ms,
            judged,
            tallies: outputs.iter().map(|_| ScoreTally::default()).collect(),
            outputs,
            columns: RawColumns::of(&snapshot),
            snapshot,
        }
    }
}

impl Models {
    /// The models of a source; none is loaded yet.
    pub fn new(source: Box<dyn Source>) -> Models {
        Models { source, by_name: ArcSwap::default() }
    }

    /// Every model.
    pub fn all(&self) -> Vec<Arc<Model>> {
        self.by_name.load().values().cloned().collect()
    }

    /// The model of a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, name: &str) -> Result<Arc<Model>, ServeError> {
        let found = self.by_name.load().get(name).cloned();
        found.ok_or_else(|| ServeError::NoModel { model: name.chars().take(100).collect() })
    }

    /// The snapshot that answers for a model; an empty version means whichever is in service.
    ///
    /// # Errors
    /// When there is none, or not in this version.
    pub fn served(&self, name: &str, version: &str) -> Result<Arc<Loaded>, ServeError> {
        let model = self.find(name)?;
        let Some(loaded) = model.served.load_full() else {
            let reason = model.entry().reason;
            return Err(ServeError::NotReady { model: model.name.clone(), reason });
        };
        if !version.is_empty() && version != loaded.version {
            return Err(ServeError::NoVersion {
                model: model.name.clone(),
                version: version.chars().take(100).collect(),
                served: loaded.version.clone(),
            });
        }
        Ok(loaded)
    }

    /// Brings what is in service up to what the source has.
    ///
    /// # Errors
    /// When the source cannot be listed.
    pub fn follow(&self) -> Result<Vec<Followed>, SourceError> {
        let names = self.source.models()?;
        let known = self.by_name.load_full();
        if !names.iter().eq(known.keys()) {
            let model = |name: &String| {
                let fresh = || Arc::new(Model::new(name.clone()));
                (name.clone(), known.get(name).cloned().unwrap_or_else(fresh))
            };
            self.by_name.store(Arc::new(names.iter().map(model).collect()));
        }
        let followed = self.all().into_iter().filter_map(|model| {
            model.bury();
            let is_wanted = !model.status().unloaded;
            if is_wanted { model.bring(self.source.as_ref()) } else { None }
        });
        Ok(followed.collect())
    }

    /// Loads a model, or its newest version, because a client asked.
    ///
    /// # Errors
    /// When it is not known or cannot be served.
    pub fn load(&self, name: &str) -> Result<Option<Arc<Loaded>>, ServeError> {
        let model = self.find(name)?;
        {
            let mut status = model.status();
            status.unloaded = false;
            // Who asks wants it tried again.
            (status.problem, status.failed) = (None, None);
        }
        match model.bring(self.source.as_ref()) {
            None => Ok(None),
            Some(Followed::Swapped(loaded)) => Ok(Some(loaded)),
            Some(Followed::Failed { problem, .. } | Followed::FellBack { problem, .. }) => {
                Err(ServeError::Internal { problem })
            }
        }
    }

    /// Takes a model out because a client asked.
    ///
    /// # Errors
    /// When it is not known.
    pub fn unload(&self, name: &str) -> Result<(), ServeError> {
        let model = self.find(name)?;
        let _one = model.loading.lock().unwrap_or_else(PoisonError::into_inner);
        model.status().unloaded = true;
        let before = model.served.swap(None);
        model.status().retired.extend(before);
        Ok(())
    }
}

impl Model {
    fn new(name: String) -> Model {
        Model {
            name,
            served: ArcSwapOption::empty(),
            status: Mutex::new(Status::default()),
            loading: Mutex::new(()),
        }
    }

    /// What is in service.
    pub fn loaded(&self) -> Option<Arc<Loaded>> {
        self.served.load_full()
    }

    /// What the index says.
    pub fn entry(&self) -> IndexEntry {
        let status = self.status();
        let loaded = self.served.load();
        let reason = match (&status.problem, status.unloaded, loaded.is_some()) {
            (_, true, _) => "it was unloaded".to_owned(),
            (Some(problem), _, _) => problem.clone(),
            (None, false, true) => String::new(),
            (None, false, false) => "it is being loaded".to_owned(),
        };
        IndexEntry {
            name: self.name.clone(),
            version: loaded.as_ref().map_or_else(String::new, |loaded| loaded.version.clone()),
            state: if loaded.is_some() { "READY" } else { "UNAVAILABLE" },
            reason,
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the newest version is not in service, or nothing is.
    pub fn has_problem(&self) -> bool {
        self.status().problem.is_some()
    }

    /// Loads the version that ought to be served beside the one in service, and lets it take its place. When nothing is in
    /// service and that version cannot be, the last good one before it is.
    fn bring(&self, source: &dyn Source) -> Option<Followed> {
        let _one = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let served = self.served.load_full();
        let present = served.as_ref().map(|served| &served.snapshot);
        let wanted = self.guarded(|| source.current(&self.name));
        let number = wanted.as_ref().ok().copied();
        if present.is_some() && present.map(|present| present.version().number) == number {
            let mut status = self.status();
            (status.problem, status.failed) = (None, None);
            return None;
        }
        if !self.is_due(number) {
            return None;
        }
        let opened = wanted.and_then(|number| self.guarded(|| source.open(&self.name, number, present)));
        let problem = match opened {
            Ok(opened) => return self.serve(opened, None).map(Followed::Swapped),
            Err(error) => error,
        };
        let before = self.status().failed;
        self.status().failed = number.map(|number| Failed::again(before, number));
        // Where nothing was ever published, there is nothing to fall back to.
        let may_fall_back = served.is_none() && !matches!(problem, SourceError::Empty { .. });
        let problem = problem.to_string();
        if may_fall_back && let Some(opened) = self.last_good(source, number) {
            let used = opened.snapshot.version().number;
            let newest =
                number.map_or_else(|| "the newest version".to_owned(), |number| format!("version {number}"));
            let problem = format!("{newest} cannot be served, so version {used} is: {problem}");
            let loaded = self.serve(opened, Some(&problem))?;
            return Some(Followed::FellBack { loaded, problem });
        }
        let mut status = self.status();
        // What is in service may be what was fallen back to; then it is said already.
        let is_known = status.problem.as_ref().is_some_and(|known| known.ends_with(&problem));
        if !is_known {
            status.problem = Some(problem.clone());
        }
        (!is_known).then(|| Followed::Failed { model: self.name.clone(), problem })
    }

    /// Whether a version is to be tried now; one that could not be served waits for its turn.
    fn is_due(&self, number: Option<u64>) -> bool {
        let mut status = self.status();
        match &mut status.failed {
            Some(failed) if Some(failed.number) == number && failed.looks_left > 0 => {
                failed.looks_left -= 1;
                false
            }
            _ => true,
        }
    }

    /// The newest version before `number` that can be served. Where nobody can say which is current, none is: the newest one
    /// may be what was rolled back.
    fn last_good(&self, source: &dyn Source, number: Option<u64>) -> Option<Opened> {
        let number = number?;
        let before = self.guarded(|| source.before(&self.name, number)).ok()?;
        before.into_iter().find_map(|number| self.guarded(|| source.open(&self.name, number, None)).ok())
    }

    /// Puts a snapshot into service, unless a client took the model out meanwhile.
    fn serve(&self, opened: Opened, problem: Option<&str>) -> Option<Arc<Loaded>> {
        let loaded = Arc::new(Loaded::new(opened));
        let mut status = self.status();
        if status.unloaded {
            return None;
        }
        let before = self.served.swap(Some(Arc::clone(&loaded)));
        status.retired.extend(before);
        status.problem = problem.map(str::to_owned);
        if problem.is_none() {
            status.failed = None;
        }
        Some(loaded)
    }

    /// A panic over one model is that model's problem: the others are still followed.
    fn guarded<T>(&self, read: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|payload| {
            Err(SourceError::Panicked { model: self.name.clone(), problem: said(&*payload) })
        })
    }

    /// Frees what no request uses any more.
    fn bury(&self) {
        let retired = std::mem::take(&mut self.status().retired);
        let (unused, used) =
            retired.into_iter().partition::<Vec<_>, _>(|loaded| Arc::strong_count(loaded) == 1);
        self.status().retired.extend(used);
        drop(unused);
    }
}

/// What a panic said.
pub(crate) fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it said nothing".to_owned())
}
