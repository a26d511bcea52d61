//! A checksum of sixty-four bits that is faster than the memory it reads, so that checking a log costs little beside
//! copying it from the system.
//!
//! Six lanes each take two words of a block of 96 bytes: a lane becomes the folded product of one word and a constant and of
//! the other and what the lane was. A product of 64 bits by 64 takes a processor one cycle, and lanes do not wait for each
//! other. CRC-32C, with its instruction, was half as fast and has half the bits. It finds accidents and not forgers, as any
//! checksum without a key.

const LANES: usize = 6;
const BLOCK_BYTES: usize = LANES * 16;

/// What the words of a block are mixed with: the first outputs of SplitMix64 from the seed 0.
const KEYS: [u64; 2 * LANES] = keys();

const fn keys() -> [u64; 2 * LANES] {
    let (mut keys, mut state, mut place) = ([0; 2 * LANES], 0u64, 0);
    while place < keys.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        keys[place] = mixed ^ (mixed >> 31);
        place += 1;
    }
    keys
}

/// The checksum of some bytes, as frames carry it.
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut lanes: [u64; LANES] = std::array::from_fn(|lane| KEYS[LANES + lane] ^ bytes.len() as u64);
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    blocks.iter().for_each(|block| mix(&mut lanes, block));
    let mut last = [0; BLOCK_BYTES];
    last[..rest.len()].copy_from_slice(rest);
    mix(&mut lanes, &last);
    lanes.iter().zip(&KEYS).fold(0, |sum, (lane, key)| fold(sum ^ key, lane ^ KEYS[LANES]))
}

#[inline(always)]
fn mix(lanes: &mut [u64; LANES], block: &[u8; BLOCK_BYTES]) {
    let (words, _) = block.as_chunks::<8>();
    for (lane, state) in lanes.iter_mut().enumerate() {
        let (even, odd) = (u64::from_le_bytes(words[2 * lane]), u64::from_le_bytes(words[2 * lane + 1]));
        *state = fold(even ^ KEYS[lane], odd ^ *state);
    }
}

/// Both halves of the product, one over the other.
#[inline(always)]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn it_stays_what_it_is_on_disk() {
        // Worked out from the words of docs/format-log.md by another program.
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(checksum(b""), 0x74d7_2d7a_28ee_876a);
        assert_eq!(checksum(b"campanile"), 0x77f1_e604_5e8c_edae);
        assert_eq!(checksum(&bytes), 0x9853_1c5a_af5f_c41b);
    }

    #[test]
    fn every_flipped_bit_swapped_word_and_missing_byte_shows() {
        for length in [1, 15, 95, 96, 97, 192, 1000] {
            let bytes: Vec<u8> = (0..length).map(|place: usize| (place * 37 % 251) as u8).collect();
            let want = checksum(&bytes);
            let mut other = bytes.clone();
            for bit in 0..length * 8 {
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(&other), want, "bit {bit} of {length} bytes");
                other[bit / 8] ^= 1 << (bit % 8);
            }
            for place in (0..length.saturating_sub(16)).step_by(8) {
                other[place..place + 16].rotate_left(8);
                assert_ne!(checksum(&other), want, "the words at {place} of {length} bytes");
                other[place..place + 16].rotate_left(8);
            }
            assert_ne!(checksum(&bytes[..length - 1]), want);
            assert_ne!(checksum(&[&bytes[..], &[0]].concat()), want);
        }
        let zeros: std::collections::BTreeSet<u64> =
            (0..500).map(|length| checksum(&vec![0; length])).collect();
        assert_eq!(zeros.len(), 500, "zeros of every length differ");
    }
}
