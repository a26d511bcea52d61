//! What this cluster can do, measured: every rate that a plan is priced with.
//!
//! All ranks work at once, on the same thing at the same time, for that is how they train; a machine whose cores share
//! a memory bus or a clock gives each of them less than one alone would get. Rows go through the tables' own code and
//! layers through the kernels' own, in the layout of a training step.
//!
//! A *reading* is one value of every rate. Readings are taken in rounds and the median of each rate counts, so that
//! what disturbs one round does not decide.

mod clock;
mod codecs;
mod exchange;
mod input;
mod processors;
mod products;
mod rows;

use campanile_comm::{Buffer, Communicator};
use campanile_spec::topology::{CodecRates, Compute, Link, ProductRates, RowRates, Topology};
use campanile_tables::memory_available;
use campanile_train::{
    TrainError,
    metrics::{Scored, TaskMetrics},
    ranks,
};

use self::clock::seconds_each;

/// Floats of the rows that are measured.
const ROW_FLOATS: [usize; 6] = [4, 16, 32, 64, 128, 256];

/// Widths of the layers that are measured.
const PRODUCT_WIDTHS: [usize; 9] = [4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Bytes that are copied from memory to memory.
const COPY_BYTES: usize = 32 << 20;

/// Samples whose metrics are formed.
const JUDGED_SAMPLES: usize = 4096;

/// Steps of their window, as jobs have by default.
const WINDOW_STEPS: u64 = 100;

/// The part of a host's free memory that its ranks may fill.
const MEMORY_SHARE: f64 = 0.9;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Samples in a pass through a layer: those of a grain.
    pub grain_samples: usize,
    /// Bytes of the table whose rows count as far; several times what the caches hold.
    pub far_bytes: usize,
    /// Bytes that a rank sends to the ranks of its host, itself included: more than caches hold, as the messages of large
    /// models are. To each rank of other hosts it sends an eighth.
    pub message_bytes: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { grain_samples: 256, far_bytes: 128 << 20, message_bytes: 32 << 20 }
    }
}

/// The hosts and ranks that take part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Machines.
    pub hosts: usize,
    /// Ranks on each.
    pub ranks_per_host: usize,
    /// Free memory of a host over its ranks, in MiB.
    pub memory_mib_per_rank: u64,
}

/// One value of every rate, in a fixed order: the mean over all ranks.
pub type Reading = Vec<f64>;

/// Finds out how ranks lie on hosts.
///
/// # Errors
/// When hosts have different numbers of ranks, or ranks of one host do not follow each other.
pub fn shape(comm: &dyn Communicator) -> Result<Shape, TrainError> {
    let here = comm.split_by_host()?;
    let mine = [here.rank_count() as u64, memory_available().unwrap_or(0) >> 20];
    let all = comm.all_gather(Buffer::of(&mine))?;
    let counts: Vec<u64> = all.iter().map(|rank| rank.values::<u64>()[0]).collect();
    let (least, most) =
        (counts.iter().min().copied().unwrap_or(1), counts.iter().max().copied().unwrap_or(1));
    let in_turn = comm.rank() % here.rank_count() == here.rank();
    let problem = match (least == most, in_turn) {
        (false, _) => {
            Some(format!("hosts have between {least} and {most} ranks; give every host the same number"))
        }
        (_, false) => Some(
            "ranks of a host do not follow each other; map them by slot (mpirun --map-by slot)".to_owned(),
        ),
        _ => None,
    };
    comm.agree(problem.map_or(Ok(()), Err))?;
    let free = all.iter().map(|rank| rank.values::<u64>()[1]).min().unwrap_or(0);
    let ranks_per_host = most as usize;
    Ok(Shape {
        hosts: comm.rank_count() / ranks_per_host,
        ranks_per_host,
        memory_mib_per_rank: ((free as f64 * MEMORY_SHARE) as u64 / most).max(1),
    })
}

/// Takes a reading. Collective: all ranks measure together, and all get the same.
///
/// # Errors
/// When memory cannot be had, or a rank has left.
pub fn reading(comm: &dyn Communicator, settings: Settings) -> Result<Reading, TrainError> {
    let mut values = vec![copy_rate(comm)?, judge_ns(), processors::per_rank(comm)?];
    values.extend(ranks::together(comm, input::read_ns())?);
    values.push(ranks::together(comm, rows::cache_bytes(settings))?);
    for floats in ROW_FLOATS {
        comm.barrier()?;
        let rates = ranks::together(comm, rows::rates(floats, settings))?;
        values.extend([
            rates.pool_near_ns,
            rates.pool_far_ns,
            rates.merge_ns,
            rates.update_near_ns,
            rates.update_far_ns,
        ]);
    }
    for width in PRODUCT_WIDTHS {
        comm.barrier()?;
        let rates = products::rates(width, settings.grain_samples);
        values.extend([rates.f32_flops_per_second, rates.bf16_flops_per_second, rates.dots_flops_per_second]);
        values.push(rates.narrow_flops_per_second);
    }
    for format in codecs::FORMATS {
        comm.barrier()?;
        let rates = codecs::rates(format, settings.message_bytes);
        values.extend([rates.encode_ns, rates.decode_ns]);
    }
    for link in exchange::links(comm, settings.message_bytes)? {
        values.extend([link.latency_seconds, link.bytes_per_second, link.hidden_share, link.message_seconds]);
    }
    let all = comm.all_gather(Buffer::of(&values))?;
    let mean =
        |place: usize| all.iter().map(|rank| rank.values::<f64>()[place]).sum::<f64>() / all.len() as f64;
    Ok((0..values.len()).map(mean).collect())
}

/// The topology that some readings tell of: the median of every rate.
///
/// # Panics
/// If there is no reading.
pub fn topology(shape: Shape, readings: &[Reading]) -> Topology {
    let mut values = (0..readings[0].len()).map(|place| median(readings.iter().map(|r| r[place]).collect()));
    let mut next = || values.next().unwrap_or_default();
    let (copy_bytes_per_second, judge_ns, processors_per_rank) = (next(), next(), next());
    let (read_column_ns, read_id_ns, cache_bytes) = (next(), next(), next() as u64);
    let row = ROW_FLOATS.map(|floats| RowRates {
        floats,
        pool_near_ns: next(),
        pool_far_ns: next(),
        merge_ns: next(),
        update_near_ns: next(),
        update_far_ns: next(),
    });
    let product = PRODUCT_WIDTHS.map(|width| ProductRates {
        width,
        f32_flops_per_second: next(),
        bf16_flops_per_second: next(),
        dots_flops_per_second: next(),
        narrow_flops_per_second: next(),
    });
    let codec = codecs::FORMATS.map(|format| CodecRates { format, encode_ns: next(), decode_ns: next() });
    let mut link = || Link {
        latency_seconds: next(),
        bytes_per_second: next(),
        hidden_share: next().clamp(0.0, 1.0),
        message_seconds: next(),
    };
    let (in_host, cross_host) = (link(), (shape.hosts > 1).then(&mut link));
    Topology {
        hosts: shape.hosts,
        ranks_per_host: shape.ranks_per_host,
        memory_mib_per_rank: shape.memory_mib_per_rank,
        compute: Compute {
            cache_bytes,
            copy_bytes_per_second,
            judge_ns,
            processors_per_rank,
            read_column_ns,
            read_id_ns,
            row: row.into(),
            product: product.into(),
            codec: codec.into(),
        },
        in_host,
        cross_host,
    }
}

/// Bytes a second from memory to memory.
fn copy_rate(comm: &dyn Communicator) -> Result<f64, TrainError> {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![0u8; COPY_BYTES];
    comm.barrier()?;
    Ok(COPY_BYTES as f64 / seconds_each(|| to.copy_from_slice(std::hint::black_box(&from))))
}

/// Nanoseconds for the metrics of a sample.
fn judge_ns() -> f64 {
    let logits: Vec<f32> = (0..JUDGED_SAMPLES).map(|n| (n * 37 % 101) as f32 / 25.0 - 3.0).collect();
    let labels: Vec<f32> = (0..JUDGED_SAMPLES).map(|n| f32::from(u8::from(n % 4 == 0))).collect();
    let mut metrics = TaskMetrics::for_training(WINDOW_STEPS);
    let scored = Scored { logits: &logits, labels: &labels, ..Scored::default() };
    seconds_each(|| metrics.add(&scored)) / JUDGED_SAMPLES as f64 * 1e9
}

/// The one in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use campanile_comm::threads;

    use super::*;

    #[test]
    fn two_ranks_come_to_one_topology_that_can_be_written_and_read() {
        let settings = Settings { grain_samples: 1, far_bytes: 1 << 20, message_bytes: 1 << 16 };
        let answers =
            threads::run(2, |comm| -> Result<_, TrainError> { Ok((shape(comm)?, reading(comm, settings)?)) });
        let answers = answers.unwrap();
        assert_eq!(answers[0].1, answers[1].1);
        let (shape, reading) = answers[0].clone();
        assert_eq!((shape.hosts, shape.ranks_per_host), (1, 2));
        let topology = topology(shape, &[reading]);
        assert_eq!(Topology::parse(&topology.to_toml()), Ok(topology));
    }

    #[test]
    fn the_median_of_three_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
