//! 64 bits from values: mixing, scaling, hashing.

/// A bijection of 64 bits in which every input bit reaches every output bit.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A number below `count` from 64 random bits, without a division.
#[inline]
pub(crate) fn scale(bits: u64, count: u64) -> u64 {
    ((u128::from(bits) * u128::from(count)) >> 64) as u64
}

/// 64 bits that follow from the bytes.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = mix(bytes.len() as u64 ^ 0x2d35_8dcc_aa6c_78a5);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = fold(hash ^ u64::from_le_bytes(*word), 0x8bb8_4b93_962e_acc9);
    }
    let mut tail = [0; 8];
    tail[..rest.len()].copy_from_slice(rest);
    mix(fold(hash ^ u64::from_le_bytes(tail), 0x4b33_a62e_d433_d4a3))
}

/// Both halves of a 128-bit product, added without carry; the addition of `a` keeps a zero factor harmless.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64 ^ (product >> 64) as u64).wrapping_add(a.rotate_left(29))
}

/// A fingerprint of bytes as 32 hexadecimal digits: for telling contents apart, not against an adversary.
pub(crate) fn fingerprint(bytes: &[u8]) -> String {
    let first = hash_bytes(bytes);
    let second = mix(first ^ u64::from(crc32c::crc32c(bytes)) << 16 ^ bytes.len() as u64);
    format!("{first:016x}{second:016x}")
}
