//! Making the knobs mean what they say: a probe of the stream measures the raw parts of the logit.
//!
//! Deviations of sums over Zipf ids have no handy formula (a few hot ids decide), and neither has the bias that
//! gives a click rate. Both are measured once on impressions spread evenly over the whole stream, the same for
//! every rank. A rate of one per cent is then met within about a fiftieth of itself, larger rates more closely.

use campanile_spec::world::WorldSpec;

use super::impressions::{Audience, From};
use super::maths::sigmoid;
use super::truth::{ACROSS, DENSE, INSIDE, MAIN, PART_COUNT, Parts, Truth};

/// Impressions probed in all; every domain gets an equal part.
const PROBE: usize = 32_768;
/// The fewest impressions probed of one domain.
const PROBE_DOMAIN_MIN: usize = 4096;

/// Scales and biases found by the probe.
#[derive(Debug, Clone)]
pub struct Calibration {
    scales: [f32; PART_COUNT],
    /// Click bias of each domain.
    biases: Vec<f32>,
    conversion_scale: f32,
    follows_click: f32,
    /// Conversion bias of each domain; empty without conversions.
    conversion_biases: Vec<f32>,
}

impl Calibration {
    /// Measures a checked world.
    pub fn new(spec: &WorldSpec, audience: &Audience, truth: &Truth) -> Calibration {
        let domains = spec.domains_or_one();
        let each = (PROBE / domains.len()).max(PROBE_DOMAIN_MIN);
        let indices = || spread(spec.sample_count(), each);
        let probe =
            |domain: usize| truth.parts(&audience.impressions(indices(), From::Domain(domain as u32)));
        let probes: Vec<Vec<Parts>> = (0..domains.len()).map(probe).collect();
        let shares: Vec<f64> = domains.iter().map(|domain| domain.share).collect();

        let signal = spec.signal;
        let mut found = Calibration {
            scales: [0.0; PART_COUNT],
            biases: vec![0.0; domains.len()],
            conversion_scale: 0.0,
            follows_click: spec.conversion.as_ref().map_or(0.0, |conversion| conversion.follows_click as f32),
            conversion_biases: Vec::new(),
        };
        let wanted =
            [(MAIN, signal.main), (INSIDE, signal.inside), (ACROSS, signal.across), (DENSE, signal.dense)];
        for (part, wanted) in wanted {
            found.scales[part] = scale(wanted, deviation(&probes, &shares, |parts| parts.scaled[part]));
        }
        for (d, domain) in domains.iter().enumerate() {
            let logits: Vec<f64> = probes[d].iter().map(|parts| f64::from(found.signal(parts))).collect();
            let even = vec![1.0; logits.len()];
            found.biases[d] = bias_for(domain.click_rate.unwrap_or(spec.click_rate), &logits, &even) as f32;
        }
        let Some(conversion) = &spec.conversion else {
            return found;
        };
        let own = deviation(&probes, &shares, |parts| parts.conversion);
        found.conversion_scale = scale(conversion.signal, own);
        for (d, domain) in domains.iter().enumerate() {
            let rate = domain.conversion_rate.unwrap_or(conversion.rate);
            let logits: Vec<f64> =
                probes[d].iter().map(|parts| f64::from(found.conversion_signal(parts))).collect();
            // A conversion needs a click, so impressions count as they are likely to be clicked.
            let clicks: Vec<f64> = probes[d].iter().map(|p| sigmoid(f64::from(found.click(p, d)))).collect();
            found.conversion_biases.push(bias_for(rate, &logits, &clicks) as f32);
        }
        found
    }

    /// The click logit of an impression in a domain.
    #[inline]
    pub fn click(&self, parts: &Parts, domain: usize) -> f32 {
        self.signal(parts) + self.biases[domain]
    }

    /// The logit of a conversion, given the click.
    #[inline]
    pub fn conversion(&self, parts: &Parts, domain: usize) -> f32 {
        self.conversion_signal(parts) + self.conversion_biases[domain]
    }

    #[inline]
    fn signal(&self, parts: &Parts) -> f32 {
        parts.scaled.iter().zip(&self.scales).fold(parts.plain, |sum, (part, scale)| sum + part * scale)
    }

    #[inline]
    fn conversion_signal(&self, parts: &Parts) -> f32 {
        self.conversion_scale * parts.conversion + self.follows_click * self.signal(parts)
    }
}

/// `wanted` places of a stream, evenly spread; a short stream is taken more than once.
fn spread(stream: u64, wanted: usize) -> impl Iterator<Item = u64> {
    (0..wanted as u64).map(move |n| (u128::from(n) * u128::from(stream) / wanted as u128) as u64)
}

fn scale(wanted: f64, found: f64) -> f32 {
    if found > 0.0 { (wanted / found) as f32 } else { 0.0 }
}

/// The standard deviation of a part over the traffic: domains count with their shares.
fn deviation(probes: &[Vec<Parts>], shares: &[f64], part: impl Fn(&Parts) -> f32) -> f64 {
    let (mut weight, mut sum, mut square) = (0.0, 0.0, 0.0);
    for (probe, share) in probes.iter().zip(shares) {
        for value in probe.iter().map(|parts| f64::from(part(parts))) {
            weight += share;
            sum += share * value;
            square += share * value * value;
        }
    }
    let mean = sum / weight;
    (square / weight - mean * mean).max(0.0).sqrt()
}

/// The bias with which the weighted mean of the probabilities is `rate`, by halving.
fn bias_for(rate: f64, logits: &[f64], weights: &[f64]) -> f64 {
    let total: f64 = weights.iter().sum();
    let (mut low, mut high) = (-30.0, 30.0);
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        let sum: f64 = logits.iter().zip(weights).map(|(z, w)| w * sigmoid(z + middle)).sum();
        if sum < rate * total { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}
