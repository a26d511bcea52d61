//! Counts what the calling thread allocates, so that a reader that believes a length is caught before the system is.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fmt::Write as _,
    io::Write as _,
};

/// More than this at once no reader may ask for.
const AT_ONCE_MAX: usize = 1 << 30;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
    static CASE: Cell<Option<(&'static str, u64, u64)>> = const { Cell::new(None) };
}

/// The system's allocator, watched.
#[derive(Debug)]
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Begins a case of the calling thread: what it holds now does not count.
pub fn begin(reader: &'static str, seed: u64, case: u64) {
    LIVE.set(0);
    MOST.set(0);
    CASE.set(Some((reader, seed, case)));
}

/// Ends the case; the most bytes that it held at once.
pub fn end() -> usize {
    CASE.set(None);
    MOST.get().max(0) as usize
}

fn count(bytes: isize) {
    // Threads that end have no such counters any more; theirs are of no interest either.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(live.get())));
    });
}

/// Whether so much is refused; says of which case it is, for a program out of memory says no more.
fn refused(bytes: usize) -> bool {
    let case = CASE.try_with(Cell::get).ok().flatten();
    let Some((reader, seed, case)) = case.filter(|_| bytes > AT_ONCE_MAX) else { return false };
    // No allocation here: the words are put together on the stack.
    let mut words = Words { bytes: [0; 200], length: 0 };
    let _ = writeln!(words, "{reader} --seed {seed} --case {case}: asks for {bytes} bytes at once");
    let _ = std::io::stderr().write_all(&words.bytes[..words.length]);
    true
}

struct Words {
    bytes: [u8; 200],
    length: usize,
}

impl std::fmt::Write for Words {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = (self.length + text.len()).min(self.bytes.len());
        self.bytes[self.length..end].copy_from_slice(&text.as_bytes()[..end - self.length]);
        self.length = end;
        Ok(())
    }
}

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait; every call is handed on as it came")]
// SAFETY: every call is handed on to the system's allocator with the same arguments, or refused with null before
// anything was allocated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refused(size) {
            return std::ptr::null_mut();
        }
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.realloc(place, layout, size) }
    }
}
