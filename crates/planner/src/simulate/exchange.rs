//! What an exchange costs: messages, bytes, and how both get worse when many hosts exchange.
//!
//! `n` ranks, `p` of them on each host, exchange `S` bytes each, in messages of `m = S / n`:
//!
//! ```text
//!   rate(link)   bandwidth · efficiency · m / (m + half) · max(floor, 1 - congestion · log2(hosts))
//!   between      alpha · (n - p)  +  S · (n - p) / n / rate(cross_host)
//!   inside       alpha · (p - 1)  +  S · (p - 1) / n / rate(in_host)
//! ```
//!
//! A sum over `n` ranks sends every byte once out and once back. Where hosts add up first, each rank carries its part of the
//! host's sum only, so that the links of all ranks of a host work on one copy of it.

use campanile_spec::cluster::{Cluster, LinkSheet};

/// What an exchange costs one rank.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Exchange {
    /// Seconds inside hosts, where it is not hidden by what goes on between them.
    pub in_host: f64,
    /// Seconds between hosts.
    pub cross_host: f64,
    /// Bytes that leave the host.
    pub cross_host_bytes: f64,
}

impl Exchange {
    /// Seconds, one after the other.
    pub fn seconds(&self) -> f64 {
        self.in_host + self.cross_host
    }

    fn of(cluster: &Cluster, in_host: f64, cross_host: f64, cross_host_bytes: f64) -> Exchange {
        let in_host = if cluster.overlap.links_at_once { (in_host - cross_host).max(0.0) } else { in_host };
        Exchange { in_host, cross_host, cross_host_bytes }
    }
}

impl std::ops::Add for Exchange {
    type Output = Exchange;

    fn add(self, other: Exchange) -> Exchange {
        Exchange {
            in_host: self.in_host + other.in_host,
            cross_host: self.cross_host + other.cross_host,
            cross_host_bytes: self.cross_host_bytes + other.cross_host_bytes,
        }
    }
}

/// Ranks that exchange: as many on each of several hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circle {
    /// Hosts.
    pub hosts: usize,
    /// Ranks on each.
    pub per_host: usize,
}

impl Circle {
    fn ranks(&self) -> f64 {
        (self.hosts * self.per_host) as f64
    }

    /// The share of a rank's bytes that goes to other hosts.
    pub fn cross_host_share(&self) -> f64 {
        (self.ranks() - self.per_host as f64) / self.ranks()
    }
}

/// Bytes a second of one rank in messages of this size, between so many hosts.
fn rate(link: &LinkSheet, message_bytes: f64, hosts: usize) -> f64 {
    let filled = 1.0 / (1.0 + link.half_message_kb * 1e3 / message_bytes.max(1.0));
    let congestion = 1.0 - link.congestion_per_doubling * (hosts as f64).log2();
    link.gb_per_second * 1e9 * link.efficiency * filled * congestion.max(link.congestion_floor)
}

fn seconds(link: &LinkSheet, messages: f64, bytes: f64, rate: f64) -> f64 {
    let travel = if bytes > 0.0 { bytes / rate } else { 0.0 };
    messages * link.message_us * 1e-6 + travel
}

/// Every rank sends each other rank its part of `bytes`.
pub fn all_to_all(cluster: &Cluster, circle: Circle, bytes: f64) -> Exchange {
    let (ranks, per_host) = (circle.ranks(), circle.per_host as f64);
    let (message, leaving) = (bytes / ranks, bytes * circle.cross_host_share());
    let far = rate(&cluster.cross_host, message, circle.hosts);
    let near = rate(&cluster.in_host, message, 1);
    Exchange::of(
        cluster,
        seconds(&cluster.in_host, per_host - 1.0, bytes * (per_host - 1.0) / ranks, near),
        seconds(&cluster.cross_host, ranks - per_host, leaving, far),
        leaving,
    )
}

/// The sum over ranks of `bytes` that each of them has, of which each keeps its part; or, in reverse, all get all parts.
pub fn half_reduction(cluster: &Cluster, circle: Circle, bytes: f64) -> Exchange {
    let (ranks, per_host, hosts) = (circle.ranks(), circle.per_host as f64, circle.hosts as f64);
    let near = rate(&cluster.in_host, f64::MAX, 1);
    let far = cluster.cross_host.gb_per_second * 1e9 * cluster.reduce.efficiency;
    let leaving = match (circle.hosts, cluster.reduce.in_host_first) {
        (1, _) => 0.0,
        // One copy of the sum leaves a host, over the links of all its ranks.
        (_, true) => bytes * (ranks - 1.0) / ranks / per_host,
        (_, false) => bytes * (hosts - 1.0) / hosts,
    };
    let inside = bytes * (per_host - 1.0) / per_host / near;
    Exchange::of(cluster, inside, leaving / far, leaving)
}

/// The sum over ranks of `bytes` that each of them has, for all; with the messages of its rounds.
pub fn all_reduce(cluster: &Cluster, circle: Circle, bytes: f64) -> Exchange {
    let rounds = 2.0 * cluster.reduce.buckets as f64 * circle.ranks().log2();
    let mut latency = Exchange::default();
    match circle.hosts {
        1 => latency.in_host = rounds * cluster.in_host.message_us * 1e-6,
        _ => latency.cross_host = rounds * cluster.cross_host.message_us * 1e-6,
    }
    let half = half_reduction(cluster, circle, bytes);
    half + half + latency
}
