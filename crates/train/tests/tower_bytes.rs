//! What crosses groups of ranks, counted: the ways of towers alone send the flat exchange's vectors in fewer messages, modules
//! send fewer bytes by their compression ratio, and no gradient of a module's weights leaves its group.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use campanile_comm::{Buffer, CommError, Communicator, Pending, threads};
use campanile_kernels::Isa;
use campanile_spec::{Bags, Batch, Plan, Seating, TowerVariant, config::Job};
use campanile_train::{
    loader::LocalBatch,
    rank::{RankState, Seat},
    step::{Carry, Turn, step},
};

const SAMPLES: usize = 512;
const DIM: usize = 64;
const FEATURES: usize = 8;

/// Counts messages between ranks of different groups, and their bytes.
struct Counting {
    inner: Box<dyn Communicator>,
    /// The numbers that the ranks here have among all.
    numbers: Vec<usize>,
    members: usize,
    across: Arc<Across>,
}

#[derive(Default)]
struct Across {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Communicator for Counting {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn rank_count(&self) -> usize {
        self.inner.rank_count()
    }

    fn number(&self, place: usize) -> usize {
        self.inner.number(place)
    }

    fn crosses_processes(&self) -> bool {
        false
    }

    fn start_all_to_all(&self, send: Vec<Buffer>) -> Result<Pending<'_>, CommError> {
        let own = self.numbers[self.rank()] / self.members;
        let parts = send.iter().zip(&self.numbers);
        let across = parts.filter(|(part, number)| *number / self.members != own && !part.is_empty());
        for (part, _) in across {
            self.across.messages.fetch_add(1, Ordering::Relaxed);
            self.across.bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
        self.inner.start_all_to_all(send)
    }

    fn split(&self, color: u32) -> Result<Box<dyn Communicator>, CommError> {
        let inner = self.inner.split(color)?;
        let colors = self.inner.all_gather(Buffer::of(&[color]))?;
        let same = self.numbers.iter().zip(&colors).filter(|(_, other)| other.values::<u32>()[0] == color);
        let numbers = same.map(|(number, _)| *number).collect();
        let (members, across) = (self.members, Arc::clone(&self.across));
        Ok(Box::new(Counting { inner, numbers, members, across }))
    }
}

fn job(variant: &str, width: usize) -> Job {
    let features: Vec<String> = (1..=FEATURES).map(|f| format!("\"sparse_{f}\"")).collect();
    let module = format!("{{ kind = \"ensemble\", per_feature = 1, mixed = 0, width = {width} }}");
    let mut text = format!(
        "[run]\nbatch_size = {SAMPLES}\ngrains = 8\n[run.data]\nkind = \"synthetic\"\n[run.data.world]\nsparse_count = {FEATURES}\n\
         hidden_groups = 2\nvocabulary = 50\n[run.tables]\ndim = {DIM}\n[run.model]\nkind = \"mlp\"\nhidden = [8]\n\
         [run.sparse]\nlearning_rate = 0.1\n[run.dense]\nlearning_rate = 0.1\n\
         [run.towers]\nvariant = \"{variant}\"\nmodule = {module}\n"
    );
    for (number, own) in features.chunks(FEATURES / 4).enumerate() {
        text.push_str(&format!(
            "[[run.towers.tower]]\nname = \"t{number}\"\nfeatures = [{}]\n",
            own.join(", ")
        ));
    }
    Job::parse(&text).unwrap()
}

/// Bytes and messages that cross groups in one step, of all ranks together.
fn across(job: &Job, (groups, members): (usize, usize), by_towers: bool) -> (u64, u64) {
    let run = &job.run;
    let ranks = groups * members;
    let seating = Seating::new(&run.model, ranks, groups).unwrap();
    let plan = if by_towers { seating.plan(&run.model) } else { Plan::balanced(&run.model, ranks) };
    let count = Arc::new(Across::default());
    let rows: Vec<u32> = (0..SAMPLES * FEATURES).map(|i| (i * 7 % 50) as u32).collect();
    let batch = Batch {
        sample_count: SAMPLES,
        dense: vec![0.5; SAMPLES * run.model.dense_count],
        bags: Bags::one_row_each(FEATURES, SAMPLES, rows),
        labels: (0..SAMPLES).map(|i| (i % 2) as f32).collect(),
        ..Batch::default()
    };
    std::thread::scope(|scope| {
        for rank in threads::group(ranks) {
            let (count, seating, plan, batch) = (&count, &seating, &plan, &batch);
            scope.spawn(move || {
                let numbers = (0..ranks).collect();
                let comm = Counting { inner: Box::new(rank), numbers, members, across: Arc::clone(count) };
                let seat = Seat { plan, rank: comm.rank(), chunks: 1, isa: Isa::detect() };
                let mut state = RankState::new(run, seat).unwrap();
                if by_towers {
                    state.sit_by_towers(&comm, seating).unwrap();
                }
                let own = run.grains().samples_of_rank(SAMPLES, comm.rank(), ranks);
                let first = own.start;
                let local =
                    LocalBatch { samples: batch.slice(own), global_count: SAMPLES, first, mark: None };
                let turn = Turn { number: 0, batch: &local, next: None };
                step(&comm, &mut state, &mut Carry::default(), turn).unwrap();
            });
        }
    });
    (count.bytes.load(Ordering::Relaxed), count.messages.load(Ordering::Relaxed))
}

/// Bytes of vectors and their gradients: what is left of a step when everything that does not grow with the floats of a
/// vector is taken away. Ids, heads and dense weights of the network above are the same for two widths but for the weights
/// of its first layer, which are told apart here.
#[test]
fn modules_send_as_many_bytes_fewer_as_their_ratio_says() {
    for shape in [(2, 2), (4, 2), (2, 1), (4, 1)] {
        let vectors = |width: usize| (SAMPLES * FEATURES * width * 4 * 2 * (shape.0 - 1) / shape.0) as u64;
        let mut rest = Vec::new();
        for width in [32, 16, 8, 4] {
            let job = job("towers", width);
            assert_eq!(job.run.model.compression_ratio(), (DIM / width) as f64);
            let (bytes, _) = across(&job, shape, true);
            // The first layer above has 8 outputs; its gradients go out, and its weights come back.
            assert!(bytes > vectors(width), "{bytes} with {width} floats a vector");
            rest.push((bytes - vectors(width), width));
        }
        // What is left grows with the first layer's weights alone: half the width, half of that part.
        let growth: Vec<f64> =
            rest.windows(2).map(|w| (w[0].0 - w[1].0) as f64 / (w[0].1 - w[1].1) as f64).collect();
        assert!(growth.iter().all(|g| (g - growth[0]).abs() < 1e-9), "{shape:?}: {rest:?}");
        assert!(growth[0] <= (8 * FEATURES * 4 * 2 * shape.0 * shape.1) as f64, "{shape:?}: {growth:?}");
    }
}

/// The ways of towers alone save no vector's bytes, but messages: ids, vectors and gradients go once to every other host, and
/// not to each of its ranks.
#[test]
fn ways_alone_send_what_the_flat_exchange_sends() {
    for shape in [(2, 2), (4, 2)] {
        let job = job("sptt", 16);
        assert_eq!(job.run.model.towers.variant, TowerVariant::Sptt);
        let ((flat, flat_messages), (ways, messages)) =
            (across(&job, shape, false), across(&job, shape, true));
        let vectors = (SAMPLES * FEATURES * DIM * 4 * 2 * (shape.0 - 1) / shape.0) as f64;
        let apart = (flat as f64 - ways as f64).abs() / vectors;
        assert!(apart < 0.05, "{shape:?}: {flat} flat, {ways} by towers");
        let (hosts, ranks) = (shape.0, shape.0 * shape.1);
        let saved = ranks * (ranks - shape.1 - (hosts - 1));
        assert_eq!(flat_messages - messages, 3 * saved as u64, "{shape:?}: {flat_messages} and {messages}");
    }
}
