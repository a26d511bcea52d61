//! The models in service, and how a newer snapshot takes the place of an older one.
//!
//! A newer snapshot is loaded beside the one in service, and then one pointer changes. A request takes the pointer
//! once, when it is read, and keeps it to the end: its features are prepared, scored and named by exactly one
//! version, whatever happens meanwhile.
//!
//! A snapshot that nobody uses any more is freed by the thread that loads, not by one that answers: giving back
//! gigabytes takes long.

use std::{
    collections::BTreeMap,
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
    /// Snapshots that may still be in use by a request.
    retired: Vec<Arc<Loaded>>,
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
            let wanted = (!model.status().unloaded).then(|| self.source.current(&model.name))?;
            model.bring(self.source.as_ref(), wanted)
        });
        Ok(followed.collect())
    }

    /// Loads a model, or its newest version, because a client asked.
    ///
    /// # Errors
    /// When it is not known or cannot be served.
    pub fn load(&self, name: &str) -> Result<Option<Arc<Loaded>>, ServeError> {
        let model = self.find(name)?;
        let current = self.source.current(name)?;
        {
            let mut status = model.status();
            status.unloaded = false;
            // Who asks wants it tried again.
            status.problem = None;
        }
        match model.bring(self.source.as_ref(), Ok(current)) {
            None => Ok(None),
            Some(Followed::Swapped(loaded)) => Ok(Some(loaded)),
            Some(Followed::Failed { problem, .. }) => Err(ServeError::Internal { problem }),
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

    /// Loads the wanted version beside the one in service, and lets it take its place.
    fn bring(&self, source: &dyn Source, wanted: Result<u64, SourceError>) -> Option<Followed> {
        let _one = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let served = self.served.load_full();
        let present = served.as_ref().map(|served| &served.snapshot);
        if present.is_some()
            && present.map(|present| present.version().number) == wanted.as_ref().ok().copied()
        {
            self.status().problem = None;
            return None;
        }
        let opened = wanted.and_then(|_| source.open(&self.name, present));
        match opened {
            Ok(opened) => {
                let loaded = Arc::new(Loaded::new(opened));
                let mut status = self.status();
                if status.unloaded {
                    return None;
                }
                let before = self.served.swap(Some(Arc::clone(&loaded)));
                status.retired.extend(before);
                status.problem = None;
                Some(Followed::Swapped(loaded))
            }
            Err(error) => {
                let problem = error.to_string();
                let mut status = self.status();
                let is_known = status.problem.as_ref() == Some(&problem);
                status.problem = Some(problem.clone());
                (!is_known).then(|| Followed::Failed { model: self.name.clone(), problem })
            }
        }
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
