//! Two by two tiles of a result, in tile registers, and the proof that they can be used.
//!
//! Rust has no stable intrinsics for AMX, but its assembler knows the instructions, and the compiler itself never
//! touches tile registers. A product configures them at its beginning and releases them at its end: context
//! switches then need not save them, and no other user of AMX on this thread is disturbed.
#![allow(unsafe_code)]

/// The sums of two by two tiles: 32 rows of 32 floats.
#[derive(Debug)]
#[repr(C, align(64))]
pub(in crate::gemm) struct Sums([f32; 32 * 32]);

impl Sums {
    pub(in crate::gemm) fn zero() -> Sums {
        Sums([0.0; 32 * 32])
    }

    pub(in crate::gemm) fn floats(&self) -> &[f32] {
        &self.0
    }
}

/// What one macro tile multiplies: `count` tiles from each pointer on. Where there is no second row or column of
/// tiles, its pointer repeats the first.
#[derive(Debug)]
pub(in crate::gemm) struct Session {
    pub count: usize,
    pub left: [*const u32; 2],
    pub right: [*const u32; 2],
    pub two_rows: bool,
    pub two_columns: bool,
}

/// Something that multiplies tiles.
///
/// # Safety
///
/// The processor has the instructions. `multiply` runs between `begin` and `end` on the same thread; `count` tiles
/// of 1 KiB follow each pointer of its session, and `count` is not zero.
#[derive(Debug)]
pub(in crate::gemm) struct TileUnit {
    pub begin: unsafe fn(),
    /// Writes the sums of a session.
    pub multiply: unsafe fn(&Session, &mut Sums),
    pub end: unsafe fn(),
}

/// The processor's own.
#[cfg(target_arch = "x86_64")]
pub(in crate::gemm) static HARDWARE: TileUnit =
    TileUnit { begin: configure, multiply: in_tiles, end: release };

/// Palette 1: eight tiles of 16 rows of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(64))]
struct Configuration([u8; 64]);

#[cfg(target_arch = "x86_64")]
static CONFIGURATION: Configuration = {
    let mut bytes = [0u8; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    Configuration(bytes)
};

/// # Safety
///
/// The processor has AMX-TILE, and the process may use it.
#[cfg(target_arch = "x86_64")]
unsafe fn configure() {
    // SAFETY: the caller's contract; the configuration is 64 readable bytes.
    unsafe {
        std::arch::asm!("ldtilecfg [{}]", in(reg) CONFIGURATION.0.as_ptr(), options(nostack, preserves_flags));
    }
}

/// # Safety
///
/// The processor has AMX-TILE, and the process may use it.
#[cfg(target_arch = "x86_64")]
unsafe fn release() {
    // SAFETY: the caller's contract.
    unsafe { std::arch::asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
}

/// # Safety
///
/// As for [`TileUnit`]; the processor has AMX-TILE and AMX-BF16, and the process may use them.
#[cfg(target_arch = "x86_64")]
unsafe fn in_tiles(session: &Session, sums: &mut Sums) {
    macro_rules! run {
        ($zero:literal, $load:literal, $multiply:literal, $store:literal) => {
            // SAFETY: the caller's contract for the pointers; every tile register is named as clobbered.
            unsafe {
                std::arch::asm!(
                    $zero,
                    "2:",
                    $load,
                    $multiply,
                    "add {a0}, 1024",
                    "add {a1}, 1024",
                    "add {b0}, 1024",
                    "add {b1}, 1024",
                    "dec {count}",
                    "jnz 2b",
                    $store,
                    a0 = inout(reg) session.left[0] => _,
                    a1 = inout(reg) session.left[1] => _,
                    b0 = inout(reg) session.right[0] => _,
                    b1 = inout(reg) session.right[1] => _,
                    count = inout(reg) session.count => _,
                    sums = in(reg) sums.0.as_mut_ptr(),
                    line = in(reg) 64usize,
                    row = in(reg) 128usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                )
            }
        };
    }
    debug_assert!(session.count > 0);
    match (session.two_rows, session.two_columns) {
        (true, true) => run!(
            "tilezero tmm0\n tilezero tmm1\n tilezero tmm2\n tilezero tmm3",
            "tileloadd tmm4, [{a0} + {line}*1]\n tileloadd tmm6, [{b0} + {line}*1]
             tileloadd tmm7, [{b1} + {line}*1]\n tileloadd tmm5, [{a1} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6\n tdpbf16ps tmm1, tmm4, tmm7
             tdpbf16ps tmm2, tmm5, tmm6\n tdpbf16ps tmm3, tmm5, tmm7",
            "tilestored [{sums} + {row}*1], tmm0\n tilestored [{sums} + {row}*1 + 64], tmm1
             tilestored [{sums} + {row}*1 + 2048], tmm2\n tilestored [{sums} + {row}*1 + 2112], tmm3"
        ),
        (false, true) => run!(
            "tilezero tmm0\n tilezero tmm1",
            "tileloadd tmm4, [{a0} + {line}*1]\n tileloadd tmm6, [{b0} + {line}*1]\n tileloadd tmm7, [{b1} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6\n tdpbf16ps tmm1, tmm4, tmm7",
            "tilestored [{sums} + {row}*1], tmm0\n tilestored [{sums} + {row}*1 + 64], tmm1"
        ),
        (true, false) => run!(
            "tilezero tmm0\n tilezero tmm2",
            "tileloadd tmm4, [{a0} + {line}*1]\n tileloadd tmm6, [{b0} + {line}*1]\n tileloadd tmm5, [{a1} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6\n tdpbf16ps tmm2, tmm5, tmm6",
            "tilestored [{sums} + {row}*1], tmm0\n tilestored [{sums} + {row}*1 + 2048], tmm2"
        ),
        (false, false) => run!(
            "tilezero tmm0",
            "tileloadd tmm4, [{a0} + {line}*1]\n tileloadd tmm6, [{b0} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tilestored [{sums} + {row}*1], tmm0"
        ),
    }
}

/// A unit in plain Rust: what the instructions are documented to do, but for their flushing of denormals.
/// It lets packing and walking be tested on every machine.
#[cfg(test)]
pub(in crate::gemm) static EMULATED: TileUnit = TileUnit { begin: || (), multiply: emulated, end: || () };

/// # Safety
///
/// As for [`TileUnit`].
#[cfg(test)]
unsafe fn emulated(session: &Session, sums: &mut Sums) {
    let half =
        |word: u32, which: usize| f32::from_bits(if which == 0 { word << 16 } else { word & 0xffff_0000 });
    for (i, j) in (0..32).flat_map(|i| (0..32).map(move |j| (i, j))) {
        if (i >= 16 && !session.two_rows) || (j >= 16 && !session.two_columns) {
            continue;
        }
        let mut sum = 0.0f32;
        for k in 0..session.count * 32 {
            // SAFETY: `count` tiles follow each pointer.
            let (a, b) = unsafe {
                let tile = k / 32 * 256;
                (
                    *session.left[i / 16].add(tile + i % 16 * 16 + k % 32 / 2),
                    *session.right[j / 16].add(tile + k % 32 / 2 * 16 + j % 16),
                )
            };
            sum = half(a, k % 2).mul_add(half(b, k % 2), sum);
        }
        sums.0[i * 32 + j] = sum;
    }
}
