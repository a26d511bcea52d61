//! A disk of a test: fails at an operation, tears the write at it, refuses space from it on, and loses what was not synced.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What is on the disk for certain, and when trouble comes.
#[derive(Debug)]
pub(crate) struct Simulated {
    home: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: u64,
    /// Operations until one fails, and what follows.
    left: u64,
    fault: Fault,
    /// By file number: its bytes, as they were synced.
    bytes: BTreeMap<u64, Vec<u8>>,
    /// Files whose numbers must not be given to others.
    held: BTreeMap<u64, File>,
    /// By directory: the names that were synced, and which file each is.
    names: BTreeMap<PathBuf, BTreeMap<PathBuf, u64>>,
}

/// What happens at the chosen operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails, and every one after it: the process dies, or the disk is full.
    All,
    /// It alone fails.
    One,
}

impl Simulated {
    /// A disk that holds what `home` holds now; the fault comes `after` so many operations.
    pub fn new(home: &Path, seed: u64, after: u64, fault: Fault) -> Simulated {
        let state = State {
            random: seed,
            left: after,
            fault,
            bytes: BTreeMap::new(),
            held: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        let disk = Simulated { home: home.to_owned(), state: Mutex::new(state) };
        for directory in directories(home) {
            for path in files(&directory) {
                disk.synced(&File::open(path).unwrap());
            }
            disk.synced_dir(&directory);
        }
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation; fails when it is time.
    pub fn count(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.left > 0 {
            state.left -= 1;
            return Ok(());
        }
        if state.fault == Fault::One {
            state.left = u64::MAX;
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    /// How many bytes of a write get through, if this is the one that fails.
    pub fn torn(&self, bytes: usize) -> Option<usize> {
        let fails = self.state().left == 0;
        fails.then(|| {
            let _ = self.count();
            self.state().draw(bytes as u64 + 1) as usize
        })
    }

    /// A file was synced.
    pub fn synced(&self, file: &File) {
        use std::os::unix::fs::FileExt;
        let meta = file.metadata().unwrap();
        let mut bytes = vec![0; meta.len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut state = self.state();
        state.bytes.insert(meta.ino(), bytes);
        state.held.entry(meta.ino()).or_insert_with(|| file.try_clone().unwrap());
    }

    /// A directory was synced.
    pub fn synced_dir(&self, directory: &Path) {
        let names = files(directory).into_iter().chain(children(directory));
        let names = names.map(|path| (path.clone(), fs::metadata(path).unwrap().ino())).collect();
        self.state().names.insert(directory.to_owned(), names);
    }

    /// Cuts the power: of every directory the synced names are left, or by chance those that it has now; of every file the
    /// synced bytes, or by chance a part of what it has now.
    pub fn cut_power(&self) {
        let mut state = self.state();
        let mut kept: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        let mut kept_dirs = Vec::new();
        let mut seen = vec![self.home.clone()];
        while let Some(directory) = seen.pop() {
            let mut now: BTreeMap<PathBuf, u64> = BTreeMap::new();
            for path in files(&directory).into_iter().chain(children(&directory)) {
                now.insert(path.clone(), fs::metadata(path).unwrap().ino());
            }
            let names = match state.names.get(&directory).cloned() {
                _ if state.draw(2) == 0 => now.clone(),
                names => names.unwrap_or_default(),
            };
            for (path, number) in names {
                if path.is_dir() {
                    kept_dirs.push(path.clone());
                    seen.push(path);
                    continue;
                }
                let synced = state.bytes.get(&number).cloned().unwrap_or_default();
                // A file whose name is gone now, by a removal or a rename, has its synced bytes.
                let live = now.get(&path).filter(|live| **live == number).map(|_| fs::read(&path).unwrap());
                let bytes = match live {
                    Some(live) if state.draw(3) > 0 => state.torn_between(&synced, live),
                    _ => synced,
                };
                kept.push((path, bytes));
            }
        }
        directories(&self.home).into_iter().rev().filter(|path| *path != self.home).for_each(|path| {
            let _ = fs::remove_dir_all(path);
        });
        kept_dirs.iter().for_each(|path| fs::create_dir_all(path).unwrap());
        for (path, bytes) in kept {
            fs::write(path, bytes).unwrap();
        }
    }
}

impl State {
    /// A number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ value >> 31) % bound.max(1)
    }

    /// Some of what was written since the last sync: up to any byte, the rest as zeros or not there. A small file lies in one
    /// sector and is old or new.
    fn torn_between(&mut self, synced: &[u8], mut live: Vec<u8>) -> Vec<u8> {
        if live.len() <= synced.len() || live.len() <= 32 {
            return if self.draw(2) == 0 { live } else { synced.to_vec() };
        }
        let length = live.len();
        let kept = synced.len() + self.draw((length - synced.len()) as u64 + 1) as usize;
        live.truncate(kept);
        if self.draw(3) == 0 {
            live.resize(length, 0);
        }
        live
    }
}

fn entries(directory: &Path, wanted: fn(&Path) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|p| wanted(p)).collect();
    paths.sort();
    paths
}

fn files(directory: &Path) -> Vec<PathBuf> {
    entries(directory, Path::is_file)
}

fn children(directory: &Path) -> Vec<PathBuf> {
    entries(directory, Path::is_dir)
}

/// A directory and all below it, parents first.
fn directories(home: &Path) -> Vec<PathBuf> {
    let mut all = vec![home.to_owned()];
    let mut place = 0;
    while place < all.len() {
        all.extend(children(&all[place].clone()));
        place += 1;
    }
    all
}
