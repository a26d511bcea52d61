//! In the steady state a request is filled and scored without a single allocation.
#![allow(unsafe_code)] // A counting allocator can only be written with it.

#[path = "suite/trained.rs"]
mod trained;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use campanile_data::Raw;
use campanile_serve::{Options, Request, RowStorage, Scorer, Scores, Side, Snapshot};
use trained::Trained;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: handed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: handed on to the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: handed on to the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

/// Raw ids on both sides, a list with missing ids, prepared rows.
fn fill_raw(request: &mut Request, snapshot: &Snapshot, count: usize) {
    const LENGTHS: [u32; 300] = [1; 300];
    const ROWS: [u32; 300] = [3; 300];
    let lengths = &LENGTHS[..count];
    request.begin(snapshot.inputs(), count).unwrap();
    request.raw_dense(0, Side::Each, (0..count).map(|n| Raw::Int(n as i64))).unwrap();
    request.raw_dense(1, Side::Once, [Raw::Missing]).unwrap();
    request.raw_ids(0, Side::Each, lengths, (0..count).map(|n| Raw::Int(n as i64 % 40))).unwrap();
    request.raw_ids(1, Side::Once, &[3], [Raw::Int(1), Raw::Missing, Raw::Text(b"2")]).unwrap();
    request.rows(2, Side::Each, lengths, &ROWS[..count]).unwrap();
    request.raw_ids(3, Side::Each, lengths, (0..count).map(|_| Raw::Int(2))).unwrap();
    request.finish().unwrap();
}

#[test]
fn the_steady_state_allocates_nothing() {
    let trained = Trained::example("tiny");
    for rows in [RowStorage::AsTrained, RowStorage::F16, RowStorage::Int8] {
        let options = Options { rows, ..Options::default() };
        let snapshot = Snapshot::open(&trained.checkpoint, "tiny", &options).unwrap();
        let (mut scorer, mut scores) = (Scorer::new(), Scores::default());
        let (mut large, mut small) = (Request::new(), Request::new());
        let mut round = || {
            fill_raw(&mut large, &snapshot, 300);
            fill_raw(&mut small, &snapshot, 5);
            scorer.score(&snapshot, &[&small, &large], &mut scores).unwrap();
            scorer.score(&snapshot, &[&small], &mut scores).unwrap();
        };
        assert!(allocations(&mut round) > 0, "the first round finds its memory");
        assert_eq!(allocations(&mut round), 0, "{rows:?}");
    }
}
