//! Random numbers without a state: every value is a hash of where it is used.
//!
//! A row's first value depends only on (seed, table, row, element), and the rounding of a stored row only on
//! (seed, table, row, step, element). No generator runs along, so rows may be made and updated in any order,
//! on any rank, at any vector width, and come out with the same bits.
//!
//! A 64-bit key is mixed once per row ([`row_key`]); the 32 bits of an element come from that
//! key with two multiplications of 32 bits ([`element_bits`]), which every vector unit has.

/// The odd constant by which counters are spread; 2^64 over the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// The same for 32 bits.
pub(crate) const SPREAD_32: u32 = 0x9e37_79b9;
/// The two multipliers of the 32-bit mixer.
pub(crate) const MIX_32: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

/// Scrambles 64 bits: every input bit moves about half of the output bits (the finaliser of splitmix64).
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// One hash of `key` and the next word; chain it over several words.
pub const fn chain(key: u64, word: u64) -> u64 {
    mix(key ^ mix(word.wrapping_add(SPREAD)))
}

/// The key of the first values of a table's rows; see [`row_key`].
pub const fn first_values_key(seed: u64, table: u64) -> u64 {
    chain(chain(0, seed), table)
}

/// The key of the rounding of a table's rows in one step; see [`row_key`].
pub const fn step_key(seed: u64, table: u64, step: u64) -> u64 {
    // The constant keeps the rounding of step 0 apart from the first values.
    chain(chain(chain(1, seed), table), step)
}

/// The key of one row, given the key of what is done to the table.
pub const fn row_key(key: u64, row: u64) -> u64 {
    chain(key, row)
}

/// 32 random bits for one element of the row whose key is `key`.
pub const fn element_bits(key: u64, element: usize) -> u32 {
    let counter = (key as u32).wrapping_add((element as u32).wrapping_mul(SPREAD_32));
    let bits = (counter ^ (counter >> 16)).wrapping_mul(MIX_32[0]);
    let bits = (bits ^ (bits >> 15)).wrapping_mul(MIX_32[1]);
    (bits ^ (bits >> 16)) ^ (key >> 32) as u32
}

/// The key that gives a row's element `first + e` as its element `e`: for a part of a row.
pub const fn from_element(key: u64, first: usize) -> u64 {
    let counter = (key as u32).wrapping_add((first as u32).wrapping_mul(SPREAD_32));
    (key & !(u32::MAX as u64)) | counter as u64
}

/// Fills `row` with uniform values in `[-bound, bound)`, 2^24 different ones.
pub fn fill_uniform(row: &mut [f32], key: u64, bound: f32) {
    let scale = bound * (1.0 / (1 << 23) as f32);
    for (element, value) in row.iter_mut().enumerate() {
        *value = ((element_bits(key, element) >> 8) as i32 - (1 << 23)) as f32 * scale;
    }
}

/// Fills `row` with normal values of mean zero.
///
/// The inverse of the normal distribution function is evaluated in `f64` with additions, multiplications,
/// divisions and roots only, so no mathematics library can change a bit. Its error is below 2e-9 relative.
pub fn fill_normal(row: &mut [f32], key: u64, deviation: f32) {
    for (element, value) in row.iter_mut().enumerate() {
        // Half a unit off zero: never 0 or 1, where the inverse is infinite.
        let probability = (f64::from(element_bits(key, element)) + 0.5) / 4_294_967_296.0;
        *value = (normal_quantile(probability) * f64::from(deviation)) as f32;
    }
}

/// Where the normal distribution function takes the value `p`, `0 < p < 1` (a rational approximation in three
/// pieces, after Acklam).
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    const TAIL: f64 = 0.02425;

    fn polynomial<const N: usize>(coefficients: &[f64; N], x: f64) -> f64 {
        coefficients.iter().fold(0.0, |sum, c| sum * x + c)
    }
    if p < TAIL {
        let q = (-2.0 * natural_logarithm(p)).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    } else if p <= 1.0 - TAIL {
        let q = p - 0.5;
        let square = q * q;
        polynomial(&A, square) * q / polynomial(&B, square)
    } else {
        let q = (-2.0 * natural_logarithm(1.0 - p)).sqrt();
        -polynomial(&C, q) / polynomial(&D, q)
    }
}

/// `ln(x)` of a positive normal number, from its exponent and the series of the inverse hyperbolic tangent.
fn natural_logarithm(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    // |t| < 0.172, so twelve terms leave less than 1e-17.
    let series = (0..12).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * t * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_the_librarys_to_a_few_units() {
        for step in 1..2000 {
            let x = f64::from(step) * 1.2345e-5;
            assert!((natural_logarithm(x) - x.ln()).abs() <= 4e-15 * x.ln().abs().max(1.0), "{x}");
        }
    }

    #[test]
    fn uniform_values_fill_their_interval() {
        let mut row = vec![0.0; 1000];
        let (mut sum, mut low, mut high) = (0.0, f32::MAX, f32::MIN);
        for key in 0..200 {
            fill_uniform(&mut row, row_key(first_values_key(7, 3), key), 0.5);
            sum += row.iter().map(|v| f64::from(*v)).sum::<f64>();
            low = row.iter().copied().fold(low, f32::min);
            high = row.iter().copied().fold(high, f32::max);
        }
        assert!((-0.5..-0.4999).contains(&low) && (0.4999..0.5).contains(&high), "{low} {high}");
        // 200 000 values of deviation 0.29: the mean's own deviation is 0.00065.
        assert!((sum / 200_000.0).abs() < 0.003);
    }

    #[test]
    fn normal_values_have_the_moments_of_a_normal() {
        let mut row = vec![0.0; 1000];
        let mut moments = [0.0; 4];
        for key in 0..300 {
            fill_normal(&mut row, row_key(first_values_key(1, 2), key), 2.0);
            for value in &row {
                let value = f64::from(*value) / 2.0;
                for (power, moment) in moments.iter_mut().enumerate() {
                    *moment += value.powi(power as i32 + 1) / 300_000.0;
                }
            }
        }
        assert!(moments[0].abs() < 0.01, "{moments:?}");
        assert!((moments[1] - 1.0).abs() < 0.015, "{moments:?}");
        assert!(moments[2].abs() < 0.03, "{moments:?}");
        assert!((moments[3] - 3.0).abs() < 0.08, "{moments:?}");
    }

    #[test]
    fn known_points_of_the_normal() {
        for (p, x) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.001, -3.090_232_306), (0.999_9, 3.719_016_485)]
        {
            assert!((normal_quantile(p) - x).abs() < 1e-7, "{p}");
        }
    }

    #[test]
    fn keys_differ_in_every_part() {
        let key = row_key(step_key(1, 2, 3), 4);
        for (seed, table, step, row) in [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)] {
            assert_ne!(key, row_key(step_key(seed, table, step), row));
        }
        assert_ne!(first_values_key(1, 2), step_key(1, 2, 0));
    }

    #[test]
    fn bits_of_elements_and_rows_are_balanced() {
        let mut ones = [0_u32; 32];
        for row in 0..1000 {
            for element in 0..16 {
                let bits = element_bits(row_key(step_key(5, 6, 9), row), element);
                for (bit, count) in ones.iter_mut().enumerate() {
                    *count += (bits >> bit) & 1;
                }
            }
        }
        // 16 000 fair coins: deviation 63.
        assert!(ones.iter().all(|count| count.abs_diff(8000) < 320), "{ones:?}");
    }
}
