//! What an example does that a job cannot take, and what a cursor says of another log.

use campanile_data::Raw;
use campanile_stream::{
    log::{DirectoryLog, Record, TopicOptions},
    records::declare,
    topics,
};

use super::*;

const COLUMNS: [&str; 2] = ["user", "price"];

/// A log with an example of one impression for each of the cells of `price`.
fn log_of(home: &std::path::Path, prices: &[Raw<'_>]) -> Arc<dyn Log> {
    let log = DirectoryLog::open(home).unwrap();
    topics::create(&log, TopicOptions::default()).unwrap();
    declare(&log, EXAMPLES, 0, &Schema::new(["click"])).unwrap();
    for (number, price) in prices.iter().enumerate() {
        let number = number as u64;
        // Every third client leaves a column out.
        let names = &COLUMNS[usize::from(number % 3 == 2)..];
        let schema = Schema::new(names.iter().copied());
        declare(&log, IMPRESSIONS, 0, &schema).unwrap();
        let mut features = schema.number().to_le_bytes().to_vec();
        if names.len() == 2 {
            logged::put(&mut features, Raw::Int(7));
        }
        logged::put(&mut features, *price);
        let example = Example { id: number, tasks: 1, labels: 1, known: 1, word: None, features: &features };
        let mut payload = Vec::new();
        example.encode(&mut payload);
        log.append(EXAMPLES, 0, &[Record { time_ms: number, payload: &payload }]).unwrap();
    }
    Arc::new(log)
}

fn run_of(on_bad_row: &str) -> Run {
    let text = format!(
        "[run]\nbatch_size = 4\ngrains = 4\n[run.data]\nkind = \"parquet\"\non_bad_row = {on_bad_row}\n\
         [[run.data.label]]\nname = \"click\"\n[[run.data.dense]]\nname = \"price\"\n\
         [[run.data.sparse]]\nname = \"user\"\nrows = 50\n[run.model]\nkind = \"mlp\"\nhidden = [4]\n\
         [run.sparse]\nlearning_rate = 0.1\n[run.dense]\nlearning_rate = 0.1\n\
         [process.data]\ntrain = [\"none.parquet\"]\n"
    );
    campanile_spec::config::Job::parse(&text).unwrap().run
}

/// The prices of the first batch as the ranks have them, and how many examples were left out.
fn first_batch(log: &Arc<dyn Log>, on_bad_row: &str, rank_count: usize) -> Result<(Vec<f32>, u64), String> {
    let run = run_of(on_bad_row);
    let transforms = Transforms::unmeasured_of(&run.data).unwrap().unwrap();
    let examples = Examples::new(Arc::clone(log), &run, &transforms, Arc::new(Stop::new(End::AtEnd)));
    let mut prices = Vec::new();
    for rank in 0..rank_count {
        let grains = campanile_spec::Grains::new(run.grain_count);
        let feed = Feed { row_count: 0, batch_size: run.batch_size, grains, rank, rank_count };
        let mut source = examples.source(feed, 0, Mark::default()).unwrap();
        let mut out = LocalBatch::default();
        let nobody_waits = AtomicBool::new(false);
        let there = source.read(0, &mut out, &nobody_waits).map_err(|error| error.to_string())?;
        assert!(there);
        prices.extend(out.samples.dense);
    }
    Ok((prices, examples.skipped().told().0))
}

#[test]
fn one_odd_request_does_not_end_training_for_ever() {
    let home = tempfile::tempdir().unwrap();
    let prices =
        [Raw::Int(1), Raw::Text(b"cheap"), Raw::Int(3), Raw::Float(4.0), Raw::Text(b"5"), Raw::Text(b"x")];
    let log = log_of(home.path(), &prices);
    for ranks in [1, 2, 4] {
        let taken = first_batch(&log, "{ kind = \"skip\", rows_max = 1 }", ranks);
        assert_eq!(taken, Ok((vec![1.0, 3.0, 4.0, 5.0], 1)), "{ranks} ranks");
    }
    let said = first_batch(&log, "\"fail\"", 1).unwrap_err();
    assert!(
        said.contains("record 1: column `price`, value `cheap`: not a number; with on_bad_row"),
        "{said}"
    );
    let home = tempfile::tempdir().unwrap();
    let log = log_of(home.path(), &[Raw::Text(b"a"), Raw::Text(b"b"), Raw::Int(1)]);
    let said = first_batch(&log, "{ kind = \"skip\", rows_max = 1 }", 1).unwrap_err();
    assert!(said.contains("more than 1 examples cannot be taken"), "{said}");
}

#[test]
fn a_log_that_is_not_the_one_of_the_checkpoint_is_told() {
    let home = tempfile::tempdir().unwrap();
    let log = DirectoryLog::open(home.path()).unwrap();
    topics::create(&log, TopicOptions::default()).unwrap();
    let identity = check_cursor(&log, Mark::default()).unwrap();
    let said = |mark| check_cursor(&log, mark).unwrap_err().to_string();
    let mark = Mark { next: 5, ..Mark::default() };
    assert!(said(mark).contains("ends at record 0, and it was read up to record 5"), "{}", said(mark));
    for n in 0..5u8 {
        log.append(EXAMPLES, 0, &[Record { time_ms: 7, payload: &[n] }]).unwrap();
    }
    assert_eq!(check_cursor(&log, mark).unwrap(), identity);
    let words = said(Mark { sum: 77, ..mark });
    assert!(words.contains("record 4 of topic `examples` is another"), "{words}");
    let words = said(Mark { identity: identity ^ 1, ..mark });
    assert!(words.contains("not the one that was read up to record 5"), "{words}");
    assert!(words.contains("name the log that the run began with"), "{words}");
}
