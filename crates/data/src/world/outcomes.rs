//! What came of an impression: a click, perhaps a conversion, and when.

use campanile_spec::world::{Conversion, ConversionLabel};

use super::calibrate::Calibration;
use super::impressions::Impressions;
use super::maths::{exp, ln, sigmoid};
use super::random::{draw, unit};
use super::truth::Parts;

/// Draws of an impression, after its domain's.
const DRAW_CLICK: u64 = 1;
const DRAW_CLICK_DELAY: u64 = 2;
const DRAW_CONVERSION: u64 = 3;
const DRAW_CONVERSION_DELAY: u64 = 4;

/// What came of one impression, whenever it came.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// True probability of a click.
    pub click_probability: f32,
    /// Whether it was clicked.
    pub click: bool,
    /// From impression to click; what it would be where there is none.
    pub click_delay_ms: i64,
    /// True probability of a conversion, given a click; 0 in a world without conversions.
    pub conversion_probability: f32,
    /// Whether the click converted, however late.
    pub conversion: bool,
    /// From click to conversion; what it would be where there is none.
    pub conversion_delay_ms: i64,
}

/// The outcome of impression `sample`.
pub fn outcome(
    conversion: Option<&Conversion>,
    calibration: &Calibration,
    seen: &Impressions,
    parts: &Parts,
    sample: usize,
) -> Outcome {
    let (key, domain) = (seen.keys[sample], seen.domains[sample] as usize);
    let click_probability = sigmoid(f64::from(calibration.click(parts, domain))) as f32;
    let click = unit(draw(key, DRAW_CLICK)) < f64::from(click_probability);
    let Some(knobs) = conversion else {
        return Outcome {
            click_probability,
            click,
            click_delay_ms: 0,
            conversion_probability: 0.0,
            conversion: false,
            conversion_delay_ms: 0,
        };
    };
    let conversion_probability = sigmoid(f64::from(calibration.conversion(parts, domain))) as f32;
    Outcome {
        click_probability,
        click,
        click_delay_ms: exponential_ms(draw(key, DRAW_CLICK_DELAY), knobs.click_delay_seconds),
        conversion_probability,
        conversion: click && unit(draw(key, DRAW_CONVERSION)) < f64::from(conversion_probability),
        conversion_delay_ms: exponential_ms(draw(key, DRAW_CONVERSION_DELAY), knobs.delay_seconds),
    }
}

/// The conversion label and its true probability, as a trainer sees them after the window has closed.
pub fn conversion_label(outcome: &Outcome, knobs: &Conversion) -> (f32, f32) {
    let seen = outcome.conversion
        && (knobs.window_seconds == 0.0 || outcome.conversion_delay_ms <= window_ms(knobs));
    let probability = f64::from(outcome.conversion_probability) * share_in_window(knobs);
    match (knobs.label, outcome.click) {
        (ConversionLabel::GivenClick, false) => (f32::NAN, probability as f32),
        (ConversionLabel::GivenClick, true) => (f32::from(seen), probability as f32),
        (ConversionLabel::PerImpression, _) => {
            (f32::from(seen), (f64::from(outcome.click_probability) * probability) as f32)
        }
    }
}

fn window_ms(knobs: &Conversion) -> i64 {
    (knobs.window_seconds * 1000.0) as i64
}

/// The share of conversions that come within the window.
fn share_in_window(knobs: &Conversion) -> f64 {
    if knobs.window_seconds == 0.0 || knobs.delay_seconds == 0.0 {
        return 1.0;
    }
    // Delays are cut down to whole milliseconds, so the last one of the window counts in full.
    let window = (window_ms(knobs) + 1) as f64 / 1000.0;
    1.0 - exp((-window / knobs.delay_seconds).max(-700.0))
}

fn exponential_ms(bits: u64, mean_seconds: f64) -> i64 {
    // 1 - u is never zero.
    (-ln(1.0 - unit(bits)) * mean_seconds * 1000.0) as i64
}
