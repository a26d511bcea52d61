//! A disk of a test: fails at an operation, tears the write at it, refuses space from it on, and loses what was not synced.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use campanile_stream::log::disk::Faults;

/// What is on the disk for certain, and when trouble comes.
#[derive(Debug)]
pub struct Simulated {
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
    /// By file number: from which byte on a sync that failed has lost what was written.
    dropped: BTreeMap<u64, u64>,
    /// By directory: the names that were synced, and which file each is.
    names: BTreeMap<PathBuf, BTreeMap<PathBuf, u64>>,
}

/// What happens at the chosen operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and every one after it: the process dies, or the disk is full.
    All,
    /// It alone fails.
    One,
}

impl Simulated {
    /// A disk that holds what `home` holds now, all of it for certain; nothing fails yet.
    pub fn new(home: &Path, seed: u64) -> Simulated {
        let state = State {
            random: seed,
            left: u64::MAX,
            fault: Fault::All,
            bytes: BTreeMap::new(),
            held: BTreeMap::new(),
            dropped: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        let disk = Simulated { home: home.to_owned(), state: Mutex::new(state) };
        disk.all_is_synced();
        disk
    }

    fn all_is_synced(&self) {
        for directory in directories(&self.home) {
            for path in files(&directory) {
                self.synced(&File::open(path).unwrap());
            }
            self.synced_dir(&directory);
        }
    }

    /// The fault comes after so many operations from now on. What a process that was killed had not synced is still not synced.
    pub fn fail_after(&self, operations: u64, fault: Fault) {
        let mut state = self.state();
        (state.left, state.fault) = (operations, fault);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn synced(&self, file: &File) {
        let meta = file.metadata().unwrap();
        let mut bytes = vec![0; meta.len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut state = self.state();
        if let Some(&from) = state.dropped.get(&meta.ino()) {
            bytes[from as usize..].fill(0);
        }
        state.bytes.insert(meta.ino(), bytes);
        state.held.entry(meta.ino()).or_insert_with(|| file.try_clone().unwrap());
    }

    fn synced_dir(&self, directory: &Path) {
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
        (state.bytes, state.held, state.dropped, state.names) = Default::default();
        drop(state);
        // What is read when the power is back was on disk.
        self.all_is_synced();
    }
}

impl Faults for Simulated {
    fn operation(&self) -> io::Result<()> {
        self.state().count()
    }

    fn torn(&self, file: &File, offset: u64, bytes: usize) -> Option<usize> {
        let number = file.metadata().unwrap().ino();
        let mut state = self.state();
        if state.left == 0 {
            let _ = state.count();
            return Some(state.draw(bytes as u64 + 1) as usize);
        }
        // Written again from where it was lost, it can be synced again.
        if state.dropped.get(&number).is_some_and(|from| offset <= *from) {
            state.dropped.remove(&number);
        }
        None
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let counted = self.state().count();
        if counted.is_err() {
            // What was not on disk before now counts as written, and is not.
            let number = file.metadata().unwrap().ino();
            let mut state = self.state();
            let from = state.bytes.get(&number).map_or(0, Vec::len) as u64;
            state.dropped.entry(number).or_insert(from);
            return counted;
        }
        self.synced(file);
        Ok(())
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        self.state().count()?;
        self.synced_dir(directory);
        Ok(())
    }
}

impl State {
    /// Counts an operation; fails when it is time.
    fn count(&mut self) -> io::Result<()> {
        if self.left > 0 {
            self.left -= 1;
            return Ok(());
        }
        if self.fault == Fault::One {
            self.left = u64::MAX;
        }
        Err(io::ErrorKind::StorageFull.into())
    }

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
