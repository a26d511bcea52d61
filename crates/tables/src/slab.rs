//! Memory for rows: zeroed, aligned to huge pages, and an error instead of a crash when there is none.
//!
//! A table is read at random places, so most reads would miss the processor's table of pages if pages were
//! small: random rows of 64 bytes cost about twice as much from pages of 4 KiB as from pages of 2 MiB. A slab
//! therefore comes straight from the system, starts at a huge page, and asks for huge pages.
//!
//! This is the only module of the room with `unsafe`. Invariant: `start` is good for `len` bytes, reading and
//! writing, until the slab is dropped, and nobody else has it.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use bytemuck::Pod;

const HUGE_PAGE: usize = 2 << 20;
const SMALL_PAGE: usize = 4 << 10;

/// The system would not give the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: u64,
}

/// Zeroed bytes, aligned to a page.
#[derive(Debug)]
pub struct Slab {
    start: NonNull<u8>,
    len: usize,
    /// What `mmap` returned: the slab starts at the first huge page inside.
    mapped: NonNull<u8>,
    mapped_len: usize,
}

// SAFETY: a slab owns its memory alone, as a `Vec<u8>` does.
unsafe impl Send for Slab {}
// SAFETY: shared access only reads.
unsafe impl Sync for Slab {}

impl Slab {
    /// `len` zeroed bytes.
    ///
    /// # Errors
    /// When the system does not have them.
    pub fn zeroed(len: usize) -> Result<Slab, OutOfMemory> {
        let failed = OutOfMemory { bytes: len as u64 };
        if len == 0 {
            let nothing = NonNull::<u64>::dangling().cast();
            return Ok(Slab { start: nothing, len: 0, mapped: nothing, mapped_len: 0 });
        }
        let alignment = if len >= HUGE_PAGE { HUGE_PAGE } else { SMALL_PAGE };
        let mapped_len =
            len.checked_next_multiple_of(alignment).and_then(|l| l.checked_add(alignment)).ok_or(failed)?;
        // SAFETY: a fresh private mapping at an address of the system's choice touches nothing that exists.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(failed);
        }
        let mapped = NonNull::new(mapped.cast::<u8>()).ok_or(failed)?;
        let skip = mapped.as_ptr().align_offset(alignment);
        // SAFETY: `skip` is below `alignment`, by which the mapping is longer than the slab.
        let start = unsafe { mapped.add(skip) };
        let slab = Slab { start, len, mapped, mapped_len };
        #[cfg(target_os = "linux")]
        if alignment == HUGE_PAGE {
            // The last huge page is taken whole only where the rest of it is little beside the slab.
            let whole = len.next_multiple_of(HUGE_PAGE);
            let advised = if whole - len <= len / 16 { whole } else { len / HUGE_PAGE * HUGE_PAGE };
            // SAFETY: the range is inside our mapping. It is advice: a system without huge pages says no, and
            // the slab works all the same.
            unsafe { libc::madvise(start.as_ptr().cast(), advised, libc::MADV_HUGEPAGE) };
        }
        Ok(slab)
    }

    /// Has the system find all pages now, so that the first steps do not pay for it and a lack of memory shows
    /// early.
    ///
    /// # Errors
    /// When the system does not have them.
    pub fn touch(&mut self) -> Result<(), OutOfMemory> {
        #[cfg(target_os = "linux")]
        if self.len > 0 {
            // SAFETY: the range is inside our mapping, and populating it changes no contents.
            let failed =
                unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_POPULATE_WRITE) }
                    != 0;
            // Systems before Linux 5.14 do not know the advice; there the pages come when they are used.
            if failed && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
                return Err(OutOfMemory { bytes: self.len as u64 });
            }
        }
        Ok(())
    }

    /// The bytes as a slice of plain values.
    ///
    /// # Panics
    /// If the length is not a whole number of values.
    pub fn values<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes())
    }

    /// The bytes as a slice of plain values, to be changed.
    ///
    /// # Panics
    /// If the length is not a whole number of values.
    pub fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the invariant; the mapping was zeroed, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the invariant, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if self.mapped_len > 0 {
            // SAFETY: the mapping is ours, and no slice of it outlives the slab. Nothing can be done about a
            // failure here.
            unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_zeroed_aligned_and_apart() {
        for len in [0, 4, 4096, HUGE_PAGE - 4, HUGE_PAGE, 3 * HUGE_PAGE + 64] {
            let mut slab = Slab::zeroed(len).expect("memory for a test");
            slab.touch().expect("memory for a test");
            let other = Slab::zeroed(len).expect("memory for a test");
            assert_eq!(slab.bytes().len(), len);
            assert!(slab.values::<u32>().iter().all(|v| *v == 0));
            slab.values_mut::<u32>().fill(u32::MAX);
            assert!(slab.values::<f32>().iter().all(|v| v.is_nan()));
            assert!(other.bytes().iter().all(|v| *v == 0));
            if len >= HUGE_PAGE {
                assert!(slab.bytes().as_ptr().addr().is_multiple_of(HUGE_PAGE));
            }
        }
    }

    #[test]
    fn too_much_is_an_error() {
        let bytes = 1 << 60;
        assert_eq!(Slab::zeroed(bytes).expect_err("an exabyte"), OutOfMemory { bytes: bytes as u64 });
    }
}
