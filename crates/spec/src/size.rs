//! Numbers of bytes as people read them: one way for errors, tables and progress.

use std::fmt;

/// A number of bytes, shown in the largest unit that leaves it at least one: `3.4 MiB`, `1.25 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = self.0.checked_ilog2().unwrap_or(0) / 10;
        let unit = UNITS[power as usize];
        let shown = match power {
            0 => format!("{} {unit}", self.0),
            _ => {
                let digits = if power < 3 { 1 } else { 2 };
                format!("{:.digits$} {unit}", self.0 as f64 / (1u64 << (10 * power)) as f64)
            }
        };
        f.pad(&shown)
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn a_size_has_the_largest_unit_that_leaves_it_at_least_one() {
        let shown = |count| Bytes(count).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1024), "1.0 KiB");
        assert_eq!(shown(1536 << 10), "1.5 MiB");
        assert_eq!(shown(64 << 30), "64.00 GiB");
        assert_eq!(shown(u64::MAX), "16.00 EiB");
        assert_eq!(format!("[{:>10}]", Bytes(5 << 10)), "[   5.0 KiB]");
    }
}
