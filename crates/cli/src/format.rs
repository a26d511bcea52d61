//! Numbers as people read them.

use campanile_spec::{ModelSpec, TowerVariant};

/// What a person wants to know of a model's towers, if it has any.
pub fn towers(model: &ModelSpec) -> Option<String> {
    let count = model.towers.list.len();
    let what = match model.towers.variant {
        TowerVariant::Flat => "not used".to_owned(),
        TowerVariant::Sptt => "without modules: the flat model".to_owned(),
        TowerVariant::Towers => format!(
            "{} floats of a sample in, {} handed on, compression ratio {:.2}",
            model.pooled_width(),
            model.vector_widths().iter().sum::<usize>(),
            model.compression_ratio()
        ),
    };
    (count > 0).then(|| format!("{count} tower(s), {what}"))
}

/// `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `12.3 k` or `4.56 M`: three digits and a unit.
pub fn rate(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 1e9 => (v / 1e9, " G"),
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e3 => (v / 1e3, " k"),
        v => (v, ""),
    };
    let digits = if scaled >= 100.0 {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$}{unit}")
}

/// `1 h 02 m`, `3 m 04 s`, `5.6 s`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "?".to_owned();
    }
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} m {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} m", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(rate(0.5), "0.50");
        assert_eq!(rate(45_678.0), "45.7 k");
        assert_eq!(rate(123_456_789.0), "123 M");
        assert_eq!(duration(5.62), "5.6 s");
        assert_eq!(duration(184.0), "3 m 04 s");
        assert_eq!(duration(3725.0), "1 h 02 m");
    }
}
