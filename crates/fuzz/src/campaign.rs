//! One reader, many cases.

use std::{
    any::Any,
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use crate::{allocator, random::Random};

/// A case that takes so long hangs. No case takes a hundredth of it, so a busy machine does not matter.
const HANG: Duration = Duration::from_secs(60);

/// Something that reads foreign bytes.
pub trait Reader {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Good input, each kind of it once.
    fn seeds(&self) -> &[Vec<u8>];

    /// Spoils the input that was made from a seed; `other` is another one.
    fn spoil(&self, seed: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random);

    /// Reads it and uses what was read, or says why not.
    ///
    /// # Errors
    /// With the words that a user would see.
    fn read(&mut self, seed: usize, bytes: &[u8]) -> Result<(), String>;

    /// What every refusal must say somewhere: the file, for readers of files.
    fn told(&self) -> &str {
        ""
    }

    /// The longest refusal. Who prints one cuts it; who sends it to a client must have cut it.
    fn words_max(&self) -> usize {
        usize::MAX
    }

    /// The most bytes that reading may take for an input of so many.
    fn memory_max(&self, input: usize) -> usize {
        (4 << 20) + 100 * input
    }
}

/// What a reader did with its cases.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// How many there were.
    pub cases: u64,
    /// Of these it took so many.
    pub taken: u64,
    /// The most memory that one took, in bytes.
    pub memory: usize,
}

/// A case that broke something.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The reader.
    pub reader: &'static str,
    /// The seed.
    pub seed: u64,
    /// The case.
    pub case: u64,
    /// What went wrong.
    pub problem: String,
    /// What was read.
    pub input: Vec<u8>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { reader, seed, case, problem, input } = self;
        writeln!(f, "{reader}: {problem}")?;
        let shown: String = String::from_utf8_lossy(input).chars().take(600).collect();
        writeln!(f, "input of {} bytes: {shown:?}", input.len())?;
        write!(
            f,
            "again, with the input in a file: cargo run --package campanile-fuzz -- {reader} --seed {seed} --case {case} \
             --keep input.bin"
        )
    }
}

/// Cases of one reader.
pub struct Campaign<'a> {
    reader: &'a mut dyn Reader,
    seed: u64,
    tally: Tally,
    /// The case under way, for the watch.
    now: Arc<AtomicU64>,
    /// Ends the watch when it goes.
    _watch: SyncSender<()>,
}

impl<'a> Campaign<'a> {
    /// Reads the good input first, which must all be taken.
    ///
    /// # Errors
    /// With what is not.
    pub fn begin(reader: &'a mut dyn Reader, seed: u64) -> Result<Campaign<'a>, Finding> {
        let now = Arc::new(AtomicU64::new(0));
        let watch = watch(reader.name(), seed, Arc::clone(&now));
        let mut campaign = Campaign { reader, seed, tally: Tally::default(), now, _watch: watch };
        for place in 0..campaign.reader.seeds().len() {
            let input = campaign.reader.seeds()[place].clone();
            let problem = match campaign.try_one(0, place, &input) {
                Ok(Ok(())) => continue,
                Ok(Err(refusal)) => format!("the good input {place} is refused: {refusal}"),
                Err(problem) => format!("the good input {place}: {problem}"),
            };
            return Err(Finding { reader: campaign.reader.name(), seed, case: 0, problem, input });
        }
        Ok(campaign)
    }

    /// What was done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Runs some cases.
    ///
    /// # Errors
    /// With the first that breaks something.
    pub fn run(&mut self, cases: Range<u64>) -> Result<Tally, Finding> {
        for case in cases {
            let (place, input) = self.input(case);
            let read = self.try_one(case, place, &input);
            self.tally.cases += 1;
            match read {
                Ok(read) => self.tally.taken += u64::from(read.is_ok()),
                Err(problem) => {
                    let reader = self.reader.name();
                    return Err(Finding { reader, seed: self.seed, case, problem, input });
                }
            }
        }
        Ok(self.tally)
    }

    /// The input of a case, and the seed that it was made from.
    pub fn input(&self, case: u64) -> (usize, Vec<u8>) {
        let mut random = Random::of_case(self.seed, case);
        let seeds = self.reader.seeds();
        let place = random.below(seeds.len());
        let other = &seeds[random.below(seeds.len())];
        let mut input = seeds[place].clone();
        self.reader.spoil(place, &mut input, other, &mut random);
        (place, input)
    }

    /// Whether the reader took it; or what it broke.
    fn try_one(&mut self, case: u64, place: usize, input: &[u8]) -> Result<Result<(), String>, String> {
        self.now.fetch_add(1, Ordering::Relaxed);
        allocator::begin(self.reader.name(), self.seed, case);
        let read = catch_unwind(AssertUnwindSafe(|| self.reader.read(place, input)));
        let memory = allocator::end();
        self.tally.memory = self.tally.memory.max(memory);
        let read = read.map_err(|panic| format!("panic: {}", words_of(&*panic)))?;
        let most = self.reader.memory_max(input.len());
        if memory > most {
            return Err(format!(
                "{memory} bytes of memory for an input of {}, more than {most}",
                input.len()
            ));
        }
        match &read {
            Err(refusal) => match problem_of(refusal, self.reader.told(), self.reader.words_max()) {
                Some(problem) => Err(problem),
                None => Ok(read),
            },
            Ok(()) => Ok(read),
        }
    }
}

/// Ends the program when one case goes on and on, for a thread that hangs cannot be stopped.
fn watch(reader: &'static str, seed: u64, now: Arc<AtomicU64>) -> SyncSender<()> {
    let (alive, gone) = sync_channel::<()>(1);
    thread::spawn(move || {
        let mut before = u64::MAX;
        while gone.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            let now = now.load(Ordering::Relaxed);
            if now == before {
                eprintln!("{reader} --seed {seed}: input {now} hangs");
                std::process::abort();
            }
            before = now;
        }
    });
    alive
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words").to_owned()
}

/// What is wrong with the words of a refusal.
fn problem_of(refusal: &str, told: &str, bytes_max: usize) -> Option<String> {
    let shown = || refusal.chars().take(300).collect::<String>();
    if refusal.len() > bytes_max {
        return Some(format!("a refusal of {} bytes: {:?}", refusal.len(), shown()));
    }
    (refusal.is_empty() || !refusal.contains(told))
        .then(|| format!("a refusal that does not say `{told}`: {:?}", shown()))
}
