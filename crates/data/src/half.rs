//! IEEE half precision, to and from `f32`: a few lines, so that this room needs no other for them.

/// The smallest half above zero, 2^-24, and the smallest normal one, 2^-14.
const SMALLEST: f32 = 1.0 / (1 << 24) as f32;
const SMALLEST_NORMAL: f32 = 1.0 / (1 << 14) as f32;

/// The value of a half.
pub(crate) fn to_f32(bits: u16) -> f32 {
    let (sign, exponent, fraction) =
        (u32::from(bits >> 15) << 31, bits >> 10 & 0x1f, u32::from(bits & 0x3ff));
    match exponent {
        // Zeros and denormals: the fraction counts 2^-24.
        0 => f32::from_bits(sign | (fraction as f32 * SMALLEST).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (u32::from(exponent) + 112) << 23 | fraction << 13),
    }
}

/// The half nearest to a value, the even one of two; beyond 65504, the largest.
pub(crate) fn from_f32(value: f32) -> u16 {
    let (bits, sign) = (value.to_bits(), (value.to_bits() >> 16 & 0x8000) as u16);
    if value.is_nan() {
        return sign | 0x7e00;
    }
    let size = value.abs();
    if size >= 65504.0 {
        return sign | 0x7bff;
    }
    if size < SMALLEST_NORMAL {
        return sign | round_to_even(size * (1 << 24) as f32);
    }
    let kept = (bits & 0x7fff_ffff) - (112 << 23);
    let (half, rest) = (kept >> 13, kept & 0x1fff);
    let up = rest > 0x1000 || (rest == 0x1000 && half & 1 == 1);
    sign | (half + u32::from(up)) as u16
}

fn round_to_even(value: f32) -> u16 {
    value.round_ties_even() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back_and_ties_go_to_even() {
        for bits in 0..=u16::MAX {
            let value = to_f32(bits);
            if value.is_nan() {
                assert!(to_f32(from_f32(value)).is_nan());
            } else if value.is_infinite() {
                assert_eq!(from_f32(value) & 0x7fff, 0x7bff);
            } else {
                assert_eq!(from_f32(value), bits, "{value}");
            }
        }
        let pairs = (0..0x7bff_u16).map(|bits| (bits, to_f32(bits), to_f32(bits + 1)));
        for (bits, low, high) in pairs {
            let middle = low + (high - low) / 2.0;
            assert_eq!(from_f32(middle), bits + (bits & 1), "between {low} and {high}");
            assert_eq!(from_f32(middle.next_down()), bits);
            assert_eq!(from_f32(-middle.next_up()), 0x8000 | (bits + 1));
        }
        assert_eq!(from_f32(1e9), 0x7bff);
    }
}
