//! How stages are told to end, and where they wait meanwhile.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use tokio::signal::unix::{SignalKind, signal};

/// When a stage ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum End {
    /// Not by itself.
    #[default]
    Never,
    /// When it has done all that is there.
    AtEnd,
    /// As soon as it has finished what it is doing.
    Now,
}

/// A wish that all stages see.
#[derive(Debug, Default)]
pub struct Stop {
    end: Mutex<End>,
    changed: Condvar,
}

impl Stop {
    /// A wish to begin with.
    pub fn new(end: End) -> Stop {
        Stop { end: Mutex::new(end), changed: Condvar::new() }
    }

    /// Wishes an end; a later wish never takes back an earlier one.
    pub fn ask(&self, end: End) {
        let mut present = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        *present = (*present).max(end);
        self.changed.notify_all();
    }

    /// What is wished.
    pub fn end(&self) -> End {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until somebody wishes an end at once, at most so long; says what is wished then.
    pub fn wait(&self, at_most: Duration) -> End {
        let present = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if *present == End::Now {
            return End::Now;
        }
        let waited = self.changed.wait_timeout(present, at_most);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Asks for an end at once when the process is interrupted or told to terminate; a second time it ends as it stands.
///
/// # Errors
/// When the system lets nobody listen.
pub fn on_signal(stop: &Arc<Stop>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupted, mut terminated) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let stop = Arc::clone(stop);
    let listen = async move {
        loop {
            tokio::select! { _ = interrupted.recv() => {}, _ = terminated.recv() => {} }
            if stop.end() == End::Now {
                std::process::exit(130);
            }
            stop.ask(End::Now);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(listen))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_stands() {
        let stop = Stop::default();
        assert_eq!(stop.wait(Duration::ZERO), End::Never);
        stop.ask(End::Now);
        stop.ask(End::AtEnd);
        assert_eq!((stop.end(), stop.wait(Duration::from_secs(3600))), (End::Now, End::Now));
    }
}
