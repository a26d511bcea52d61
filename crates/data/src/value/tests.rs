use proptest::prelude::*;

use super::{
    number::{parse_hex, parse_hex_eight},
    *,
};

#[test]
fn an_integer_has_one_key_however_it_is_written() {
    for raw in [Raw::Int(42), Raw::Float(42.0), Raw::Text(b"42")] {
        assert_eq!(raw.key(), Ok(42), "{raw:?}");
    }
    for text in ["42.0", "42.", " 42", "42 ", "\t42.00 "] {
        assert_eq!(Raw::text(text.as_bytes()).key(), Ok(42), "{text:?}");
        assert_eq!(Raw::Text(text.as_bytes()).key(), Ok(42), "{text:?}");
    }
    assert_eq!(Raw::Text(b"-0.0").key(), Raw::Float(-0.0).key());
    assert_eq!(Raw::Text(b"9007199254740993.0").key(), Ok(9_007_199_254_740_993));
    assert_eq!(Raw::Text(b"True").key(), Raw::Int(1).key());
    assert_eq!(Raw::Text(b" blue").key(), Raw::Text(b"blue").key());
    assert_eq!(Raw::text(b"  "), Raw::Missing);
    for value in [0.7_f32, -1.5, 1e-3] {
        let text = value.to_string();
        let key = Raw::Text(text.as_bytes()).key();
        assert_eq!(key, Raw::Float(f64::from(value)).key(), "{text} in 32 bits");
        assert_eq!(key, Raw::Float(text.parse().unwrap()).key(), "{text} in 64 bits");
        assert_eq!(Raw::Float(f64::from(value)).wide_number(), Raw::Text(text.as_bytes()).wide_number());
    }
    assert_eq!(Raw::Text(b"27.0").integer(), Ok(Some(27)));
    assert_eq!(Raw::Text(b"27.5").integer(), Err(BadReason::NotAnInteger));
    assert_ne!(Raw::Text(b"1.2.3").key(), Raw::Text(b"1.2").key());
    assert_ne!(Raw::Text(b"042").key(), Ok(42));
    assert_eq!(Raw::Text(b"-7").key(), Ok((-7_i64) as u64));
    assert_eq!(Raw::Text(b"0").key(), Ok(0));
}

#[test]
fn a_number_has_one_key_whatever_wrote_it() {
    let same = |raws: &[Raw<'_>]| {
        let keys: Vec<_> = raws.iter().map(|raw| raw.key()).collect();
        assert!(keys.windows(2).all(|pair| pair[0].is_ok() && pair[0] == pair[1]), "{raws:?}: {keys:?}");
        let names: Vec<_> = raws.iter().map(|raw| raw.name()).collect();
        assert!(names.windows(2).all(|pair| pair[0] == pair[1]), "{names:?}");
    };
    let text = |text: &'static str| Raw::Text(text.as_bytes());
    same(&[
        Raw::Int(0),
        Raw::Float(-0.0),
        text("-0"),
        text("-0.0"),
        text("0."),
        text("False"),
        text("0.0e+00"),
    ]);
    same(&[Raw::Int(1), text("1.0"), text("true"), text("True"), text("TRUE")]);
    // pandas and C write exponents with a sign, Java after a point.
    same(&[Raw::Float(1e-5), text("1e-05"), text("1E-5"), text("1.0E-5"), text("0.00001")]);
    same(&[Raw::Float(1e16), Raw::Int(10_000_000_000_000_000), text("1e+16"), text("10000000000000000.0")]);
    same(&[Raw::Float(1e20), text("1e+20"), text("1.0E20")]);
    // Above 2^63, where pandas goes on by way of floats.
    let large = 1_u64 << 63;
    same(&[
        Raw::unsigned(large),
        Raw::Float(large as f64),
        text("9223372036854775808"),
        text("9223372036854775808.0"),
    ]);
    same(&[Raw::unsigned(u64::MAX), text("18446744073709551615")]);
    assert_ne!(Raw::unsigned(u64::MAX).key(), Raw::Int(-1).key());
    assert_eq!(Raw::unsigned(7), Raw::Int(7));
    // 0.7 in 16 bits: 0x399a of IEEE, 0x3f33 of bfloat.
    same(&[Raw::from_f16(0x399a), Raw::from_bf16(0x3f33), Raw::Float(f64::from(0.7_f32)), text("0.7")]);
    assert_eq!(Raw::Float(f64::NAN).key(), Raw::Missing.key());
}

#[test]
fn names_that_look_like_numbers_stay_names() {
    let names = [
        "12e5", "1e999", "1e+9999", "007", "+7", ".5", "-", "1-2", "0x7", "1.2.3", "e+5", "1e+", "nan", "inf",
    ];
    for name in names {
        assert_eq!(Raw::Text(name.as_bytes()).key(), Ok(hash_bytes(name.as_bytes())), "{name}");
        assert_eq!(Raw::Text(name.as_bytes()).name(), name);
    }
}

#[test]
fn truth_values_are_numbers_and_large_integers_do_not_wrap() {
    assert_eq!(Raw::Text(b"True").number(), Ok(Some(1.0)));
    assert_eq!(Raw::Text(b"false").wide_number(), Ok(Some(0.0)));
    assert_eq!(Raw::Text(b"TRUE").integer(), Ok(Some(1)));
    assert_eq!(Raw::unsigned(u64::MAX).number(), Ok(Some(18_446_744_073_709_551_615.0)));
    assert_eq!(Raw::unsigned(u64::MAX).integer(), Err(BadReason::LargeInteger));
}

#[test]
fn a_terminal_obeys_nothing_that_is_shown() {
    assert_eq!(Raw::Text(b"\x1b[2Jred").shown(), "\\x1b[2Jred");
}

#[test]
fn a_cell_of_a_list_is_cut_into_its_ids() {
    let items = |raw: Raw<'static>| raw.items(b'|').collect::<Vec<_>>();
    assert_eq!(items(Raw::text(b"a|b")), [Raw::Text(b"a"), Raw::Text(b"b")]);
    assert_eq!(items(Raw::text(b" a | b ")), items(Raw::text(b"a|b")));
    assert_eq!(items(Raw::text(b"a||7")), [Raw::Text(b"a"), Raw::Missing, Raw::Text(b"7")]);
    assert_eq!(items(Raw::Int(7)), [Raw::Int(7)]);
    assert_eq!(items(Raw::Missing), []);
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    assert_eq!(Raw::Text(b"nan").number(), Err(BadReason::NotFinite));
    assert_eq!(Raw::Float(f64::INFINITY).number(), Err(BadReason::NotFinite));
    assert_eq!(Raw::Text(b"1e99").number(), Err(BadReason::NotFinite));
    assert_eq!(Raw::Text(b"x").number(), Err(BadReason::NotANumber));
    assert_eq!(Raw::Text(b"-12").number(), Ok(Some(-12.0)));
    assert_eq!(Raw::Text(b" 1.5").number(), Ok(Some(1.5)));
}

#[test]
fn a_wide_number_that_is_not_finite_is_refused() {
    for raw in [Raw::Text(b"nan"), Raw::Text(b"inf"), Raw::Float(f64::NEG_INFINITY)] {
        assert_eq!(raw.wide_number(), Err(BadReason::NotFinite), "{raw:?}");
    }
    assert_eq!(Raw::Missing.wide_number(), Ok(None));
}

#[test]
fn a_long_value_is_shortened_in_messages() {
    let long = "é".repeat(100);
    assert_eq!(Raw::Text(long.as_bytes()).shown(), format!("{}…", "é".repeat(60)));
}

proptest! {
    #[test]
    fn hexadecimal_matches_the_standard_library(value: u32, upper: bool) {
        let text = if upper { format!("{value:08X}") } else { format!("{value:08x}") };
        prop_assert_eq!(parse_hex(text.as_bytes()), Some(value));
    }

    #[test]
    fn eight_bytes_are_hexadecimal_when_each_of_them_is(bytes: [u8; 8]) {
        let text = bytes.iter().all(u8::is_ascii_hexdigit);
        prop_assert_eq!(parse_hex_eight(u64::from_le_bytes(bytes)).is_some(), text);
    }

    #[test]
    fn one_wrong_byte_among_eight_is_noticed(value: u32, place in 0_usize..8, byte: u8) {
        let mut text = format!("{value:08x}").into_bytes();
        text[place] = byte;
        let word = u64::from_le_bytes(text.clone().try_into().unwrap());
        let want = std::str::from_utf8(&text).ok().filter(|text| !text.starts_with('+'));
        prop_assert_eq!(parse_hex_eight(word), want.and_then(|text| u32::from_str_radix(text, 16).ok()));
    }

    #[test]
    fn small_integers_match_the_standard_library(text in "-?[0-9]{0,9}[x.]?") {
        let want = text.parse::<f32>().ok();
        prop_assert_eq!(Raw::text(text.as_bytes()).number().ok().flatten(), want);
    }

    #[test]
    fn a_float_of_32_bits_is_the_decimal_that_it_is_written_as(bits: u32) {
        let single = f32::from_bits(bits);
        // Large whole numbers are what they are, not what few digits would make of them.
        prop_assume!(single.is_finite() && (single.fract() != 0.0 || single.abs() < 16_777_216.0));
        let text = single.to_string();
        let read = Raw::text(text.as_bytes()).wide_number();
        prop_assert_eq!(Raw::Float(f64::from(single)).wide_number(), read);
        prop_assert_eq!(Raw::Float(f64::from(single)).key(), Raw::Text(text.as_bytes()).key());
    }

    #[test]
    fn a_short_decimal_is_itself_in_any_width(digits in 1_u32..100_000, places in 0_i32..9) {
        let text = format!("{}", f64::from(digits) / 10_f64.powi(places));
        let wide: f64 = text.parse().unwrap();
        prop_assert_eq!(Raw::Float(f64::from(wide as f32)).wide_number(), Ok(Some(wide)));
        prop_assert_eq!(Raw::Float(f64::from(wide as f32)).key(), Raw::Text(text.as_bytes()).key());
    }
}
