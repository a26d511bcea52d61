//! Some thousand cases of every reader, the same ones every time. For more, and for others:
//! `cargo run --release --package campanile-fuzz -- all --seconds 3600`.

use campanile_fuzz::{Campaign, Random, Reader, readers};

/// The cases follow from it; whoever changes it gets others.
const SEED: u64 = 1;

/// Runs the cases of a reader; some must be taken and some refused, or nothing was tried.
fn hold(name: &str, cases: u64) {
    let (_, open) = readers::ALL.iter().find(|(own, _)| *own == name).expect("a reader of this name");
    let folder = tempfile::tempdir().unwrap();
    let mut reader = open(folder.path());
    let mut campaign = Campaign::begin(&mut *reader, SEED).unwrap_or_else(|finding| panic!("{finding}"));
    let tally = campaign.run(1..1 + cases).unwrap_or_else(|finding| panic!("{finding}"));
    println!("{name}: {tally:?}");
    assert!(tally.taken > 0 && tally.taken < tally.cases, "{name}: {tally:?}");
}

macro_rules! readers {
    ($($test:ident: $name:literal, $cases:literal;)*) => {
        $(#[test]
        fn $test() {
            hold($name, $cases);
        })*

        #[test]
        fn every_reader_is_held() {
            let held = [$($name),*];
            let all: Vec<&str> = readers::ALL.iter().map(|(name, _)| *name).collect();
            assert_eq!(held[..], all[..]);
        }
    };
}

readers! {
    job_files: "job", 2000;
    live_files: "live-file", 1000;
    manifests: "manifest", 2000;
    tables_of_safetensors: "safetensors", 2000;
    releases: "release", 1000;
    deltas: "delta", 1000;
    transforms: "transforms", 4000;
    packed_rows: "packed", 2000;
    segments_of_the_event_log: "segment", 2000;
    records_of_the_event_log: "records", 20000;
    rest_bodies: "rest", 10000;
    binary_tensors: "tensors", 10000;
    grpc_messages: "grpc", 10000;
    csv_files: "csv", 200;
    parquet_files: "parquet", 200;
}

/// A reader that believes its input.
struct Careless {
    seeds: Vec<Vec<u8>>,
    sin: &'static str,
}

impl Reader for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        campanile_fuzz::mutate::bytes(bytes, other, random);
    }

    fn read(&mut self, _: usize, bytes: &[u8]) -> Result<(), String> {
        let whole = <[u8; 8]>::try_from(&bytes[..bytes.len().min(8)]);
        let length = whole.map_or(4, u64::from_le_bytes);
        match self.sin {
            "panic" => assert!(length < 1 << 30, "too long"),
            "memory" => drop(std::hint::black_box(vec![1u8; (length as usize).min(1 << 25)])),
            "words" if length != 4 => return Err("nothing named".to_owned()),
            "length" if length != 4 => return Err("file".repeat(10_000)),
            _ => {}
        }
        Ok(())
    }

    fn told(&self) -> &str {
        "file"
    }

    fn words_max(&self) -> usize {
        1000
    }
}

/// What a campaign finds, and that the line it prints finds it again.
#[test]
fn a_careless_reader_is_found_out_and_the_case_can_be_had_again() {
    for (sin, words) in [
        ("panic", "panic: too long"),
        ("memory", "bytes of memory for an input of"),
        ("words", "does not say `file`"),
        ("length", "a refusal of 40000 bytes"),
    ] {
        let mut reader = Careless { seeds: vec![4u64.to_le_bytes().repeat(4)], sin };
        let found = Campaign::begin(&mut reader, 5).unwrap().run(1..2000).unwrap_err();
        assert!(found.problem.contains(words), "{sin}: {found}");
        let line = format!("careless --seed 5 --case {} --keep input.bin", found.case);
        assert!(found.to_string().ends_with(&line), "{found}");
        let again = Campaign::begin(&mut reader, 5).unwrap().run(found.case..found.case + 1).unwrap_err();
        assert_eq!((again.problem, again.input), (found.problem, found.input));
    }
}
