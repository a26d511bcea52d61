//! Whether this process may use AMX tiles.
//!
//! Three must agree: the processor (CPUID), the operating system (the tile state is enabled in XCR0), and, on
//! Linux, the kernel for this process, which must be asked, as the state is large. The palette's leaf of CPUID is
//! not read: some hypervisors leave it empty, while palette 1 works.
#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

/// True after the kernel granted the tiles to this process, its threads included.
pub(super) fn granted() -> bool {
    processor_has_tiles() && system_saves_tiles() && kernel_grants_tiles()
}

/// Whether one small product comes out right: the last question, after AVX-512 and [`granted`] were answered yes.
pub(super) fn works() -> bool {
    // SAFETY: `best_level` asks for AVX-512, and `granted` for the tiles, before it asks this.
    unsafe { crate::gemm::instructions_work() }
}

fn processor_has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    if __cpuid(0).eax < 7 {
        return false;
    }
    __cpuid_count(7, 0).edx & (BF16 | TILE) == BF16 | TILE
}

fn system_saves_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILE_STATE: u64 = 0b11 << 17;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: OSXSAVE says that XGETBV may be executed.
    unsafe { xcr0() & TILE_STATE == TILE_STATE }
}

/// # Safety
///
/// The operating system has enabled XSAVE.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller's contract; register 0 always exists.
    unsafe { _xgetbv(0) }
}

#[cfg(target_os = "linux")]
fn kernel_grants_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn kernel_grants_tiles() -> bool {
    false
}
