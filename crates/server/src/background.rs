//! Threads for work that no request waits for: they give way to those that answer.
//!
//! Loading a version keeps a core busy for as long as it lasts. Where requests keep all cores busy, a thread with equal
//! rights takes its share of them, and what waits meanwhile takes several times as long to catch up. With the least
//! priority loading gets what the others leave, and a little of a full core all the same, so that it always ends.

use std::{io, thread::JoinHandle};

/// The niceness of a thread that gives way to all others.
#[cfg(target_os = "linux")]
const NICEST: i32 = 19;

/// Starts a thread that gives way.
///
/// # Errors
/// When the system gives no thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        give_way();
        work()
    })
}

/// Lowers the priority of this thread for good. Where the system refuses, it works with the rights of all others.
fn give_way() {
    // Elsewhere a priority belongs to the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICEST);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn a_background_thread_gives_way_and_the_one_that_started_it_does_not() {
        let before = getpriority_process(None).unwrap();
        let inside = spawn("quiet", || getpriority_process(None).unwrap()).unwrap().join().unwrap();
        assert_eq!((inside, getpriority_process(None).unwrap()), (NICEST, before));
    }
}
