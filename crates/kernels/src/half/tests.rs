use proptest::prelude::*;

use super::*;

const NAN_BITS: u32 = 0x7f80_0000;

/// Values of every kind: all exponents, all signs, and the neighbourhoods of the formats' borders.
fn many_values() -> Vec<f32> {
    let spread = (0..1 << 18).map(|i: u32| f32::from_bits(i.wrapping_mul(0x4001) ^ (i << 17)));
    let borders = [
        0,
        0x3300_0000,
        0x3380_0000,
        0x3880_0000,
        0x477f_e000,
        0x477f_f000,
        0x4780_0000,
        0x7f7f_0000,
        NAN_BITS,
    ];
    let near =
        borders.into_iter().flat_map(|b: u32| (0..200).map(move |i| b.saturating_add(i).saturating_sub(100)));
    spread.chain(near.flat_map(|bits| [f32::from_bits(bits), f32::from_bits(bits | 1 << 31)])).collect()
}

#[test]
fn every_half_survives_the_way_to_f32_and_back() {
    for bits in 0..=u16::MAX {
        let f16 = f32_from_f16(bits);
        if f16.is_nan() {
            assert_eq!(f16_nearest(f16), bits | 0x200);
        } else {
            assert_eq!((f16_nearest(f16), f16_stochastic(f16, !0)), (bits, bits));
        }
        let bf16 = f32_from_bf16(bits);
        if bf16.is_nan() {
            assert_eq!(bf16_nearest(bf16), bits | 0x40);
        } else {
            assert_eq!((bf16_nearest(bf16), bf16_stochastic(bf16, !0)), (bits, bits));
        }
    }
}

#[test]
fn known_values() {
    for (value, f16, bf16) in [
        (1.0, 0x3c00, 0x3f80),
        (-2.0, 0xc000, 0xc000),
        (65504.0, 0x7bff, 0x4780),
        (65520.0, 0x7c00, 0x4780),
        (5.960_464_5e-8, 0x0001, 0x3380),
        (2.980_232_2e-8, 0x0000, 0x3300),
        (1.0 + 1.0 / 256.0, 0x3c04, 0x3f80),
        (1.0 + 3.0 / 256.0, 0x3c0c, 0x3f82),
    ] {
        assert_eq!((f16_nearest(value), bf16_nearest(value)), (f16, bf16), "{value}");
    }
    assert_eq!(f16_nearest(f32::INFINITY), 0x7c00);
    assert_eq!((f16_stochastic(1e30, 0), f16_stochastic(-1e30, 9)), (0x7bff, 0xfbff));
    assert_eq!(bf16_stochastic(f32::MAX, u32::MAX), 0x7f7f);
    assert_eq!(bf16_stochastic(f32::NEG_INFINITY, 5), 0xff80);
}

#[test]
fn nearest_is_nearest_and_even_on_ties() {
    for value in many_values().into_iter().filter(|v| v.is_finite()) {
        for (half, back) in [
            (f16_nearest(value), f32_from_f16 as fn(u16) -> f32),
            (bf16_nearest(value), f32_from_bf16 as fn(u16) -> f32),
        ] {
            if back(half).is_infinite() {
                continue;
            }
            let distance = |bits: u16| (f64::from(back(bits)) - f64::from(value)).abs();
            for other in [half.wrapping_sub(1), half.wrapping_add(1)] {
                if back(other).is_finite() && (other ^ half) & 0x8000 == 0 {
                    let (mine, its) = (distance(half), distance(other));
                    assert!(mine < its || (mine == its && half & 1 == 0), "{value:e}");
                }
            }
        }
    }
}

proptest! {
    /// Over all random bits that matter, a value goes up exactly as often as its place between its neighbours
    /// says.
    #[test]
    fn stochastic_rounding_is_exact(bits in 0_u32..NAN_BITS, negative: bool) {
        let value = f32::from_bits(bits | u32::from(negative) << 31);
        let count = 1_u32 << 16;
        let down = bf16_stochastic(value, 0);
        let up = (0..count).filter(|r| bf16_stochastic(value, *r) != down).count();
        let (low, high) = (f64::from(f32_from_bf16(down)), f64::from(f32_from_bf16(down + 1)));
        if high.is_finite() {
            prop_assert_eq!(up as f64 / f64::from(count), (f64::from(value) - low) / (high - low));
        }
    }

    #[test]
    fn stochastic_rounding_to_f16_is_exact(bits in 0x3880_0000_u32..0x477f_e000, negative: bool) {
        let value = f32::from_bits(bits | u32::from(negative) << 31);
        let count = 1_u32 << 13;
        let down = f16_stochastic(value, 0);
        let up = (0..count).filter(|r| f16_stochastic(value, *r) != down).count();
        let (low, high) = (f64::from(f32_from_f16(down)), f64::from(f32_from_f16(down + 1)));
        prop_assert_eq!(up as f64 / f64::from(count), (f64::from(value) - low) / (high - low));
    }

    /// Subnormal halves compare 24 random bits with the rest: the border lies where it should.
    #[test]
    fn stochastic_rounding_of_subnormals_is_exact(bits in 0_u32..0x3880_0000) {
        let value = f32::from_bits(bits);
        let down = f16_stochastic(value, u32::MAX);
        let low = f64::from(f32_from_f16(down));
        let rest = ((f64::from(value) - low) * f64::from(1 << 24) * f64::from(1 << 24)).floor() as u32;
        prop_assert!(low <= f64::from(value));
        prop_assert!(rest < 1 << 24);
        if rest > 0 {
            prop_assert_eq!(f16_stochastic(value, (rest - 1) << 8 | 0xff), down + 1);
        }
        prop_assert_eq!(f16_stochastic(value, rest << 8), down);
    }
}

#[test]
fn every_level_matches_the_scalar_twin() {
    let values = many_values();
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let key = 0x0123_4567_89ab_cdef;
    for isa in Isa::all() {
        // Three elements past the vectors run through the tail.
        for length in [values.len(), values.len() - 5] {
            let values = &values[..length];
            let mut found = vec![0; length];
            let check = |found: &[u16], one: &dyn Fn(f32, u32) -> u16, name: &str| {
                for (at, (value, bits)) in values.iter().zip(found).enumerate() {
                    let random = crate::random::element_bits(key, at);
                    assert_eq!(*bits, one(*value, random), "{name} of {value:e} at {isa:?}");
                }
            };
            slice_to_f16(isa, values, &mut found);
            check(&found, &|v, _| f16_nearest(v), "f16");
            slice_to_bf16(isa, values, &mut found);
            check(&found, &|v, _| bf16_nearest(v), "bf16");
            slice_to_f16_stochastic(isa, values, &mut found, key);
            check(&found, &f16_stochastic, "stochastic f16");
            slice_to_bf16_stochastic(isa, values, &mut found, key);
            check(&found, &bf16_stochastic, "stochastic bf16");
        }
        let mut found = vec![0.0; halves.len()];
        slice_from_f16(isa, &halves, &mut found);
        assert!(halves.iter().zip(&found).all(|(h, f)| f32_from_f16(*h).to_bits() == f.to_bits()), "{isa:?}");
        slice_from_bf16(isa, &halves, &mut found);
        assert!(
            halves.iter().zip(&found).all(|(h, f)| f32_from_bf16(*h).to_bits() == f.to_bits()),
            "{isa:?}"
        );
    }
}
