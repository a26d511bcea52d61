//! Every latency of a measurement, so that a percentile is exact: the server's own histogram is right to 3 % only,
//! which is as much as the difference that is looked for here.

/// Microseconds, in any order.
#[derive(Debug, Clone, Default)]
pub struct Latencies(Vec<u32>);

impl Latencies {
    /// Notes one.
    pub fn add(&mut self, us: u64) {
        self.0.push(u32::try_from(us).unwrap_or(u32::MAX));
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.extend_from_slice(&other.0);
    }

    /// The latency that a share of all does not exceed; 0 when there are none.
    pub fn percentile(&self, share: f64) -> u64 {
        let mut sorted = self.0.clone();
        let place = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
        if sorted.is_empty() {
            return 0;
        }
        u64::from(*sorted.select_nth_unstable(place).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_latencies() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(0.5), 0);
        (0..100).rev().for_each(|us| latencies.add(us));
        let found = [0.0, 0.01, 0.5, 0.99, 1.0].map(|share| latencies.percentile(share));
        assert_eq!(found, [0, 0, 49, 98, 99]);
    }
}
