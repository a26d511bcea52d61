//! Throws damaged requests at everything between the network and the scorer.
//!
//! Run with `cargo run --release --package campanile-server --example fuzz -- CHECKPOINT COUNT [SEED]`
//!
//! Good requests are made for the checkpoint's model, then spoilt: bytes changed, cut, doubled, numbers replaced by
//! awkward ones, pieces of two requests joined. Each goes through the JSON or the gRPC reader, and what is taken goes
//! on through the transforms to the scorer. Nothing may panic, and whoever gets scores gets one for each sample. A
//! failure leaves the request in a new file `fuzz-failure.bin` and ends the program.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use bytes::Bytes;
use campanile_serve::{Input, Inputs, Options, Request, Scorer, Scores, Snapshot};
use campanile_server::{
    features, grpc,
    proto::{ModelInferRequest, model_infer_request::InferInputTensor},
    protocol::{InferRequest, Limits, json},
};
use prost::Message;
use serde_json::{Value, json};

/// A small generator of numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

/// One way in: bytes, and for JSON the length of its first part.
#[derive(Clone)]
enum Sent {
    Json { body: Vec<u8>, split: Option<usize> },
    Grpc(Vec<u8>),
}

/// Pieces that have broken readers before.
const AWKWARD: &[&str] = &[
    "-1",
    "0",
    "1e999",
    "NaN",
    "null",
    "18446744073709551615",
    "9223372036854775807",
    "-9223372036854775808",
    "[]",
    "{}",
    "\"\"",
    "[[[[",
    "]]]]",
    "\"BYTES\"",
    "\"FP32\"",
    "\"INT64\"",
    "\"BOOL\"",
    "4294967296",
    "\\u0000",
    ".lengths",
    ".rows",
    "\"prepared_rows\"",
    "\"ids\"",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [checkpoint, count, rest @ ..] = &arguments[..] else {
        eprintln!("usage: fuzz CHECKPOINT COUNT [SEED]");
        std::process::exit(2);
    };
    let count: u64 = count.parse().expect("COUNT is a number");
    let seed: u64 = rest.first().map_or(1, |seed| seed.parse().expect("SEED is a number"));
    let snapshot = Snapshot::open(Path::new(checkpoint), "fuzz", &Options::default()).expect("a checkpoint");
    let mut random = Random(seed);
    let seeds = seeds(snapshot.inputs(), &mut random);
    let limits = Limits { elements_max: 1 << 16, samples_max: 256, ..Limits::default() };
    let mut tried =
        Tried { snapshot, scorer: Scorer::new(), scores: Scores::default(), request: Request::new() };
    let (mut read, mut scored) = (0u64, 0u64);
    for number in 0..count {
        let sent = spoilt(&seeds, &mut random);
        match catch_unwind(AssertUnwindSafe(|| tried.all_the_way(&sent, &limits))) {
            Ok((was_read, was_scored)) => {
                read += u64::from(was_read);
                scored += u64::from(was_scored);
            }
            Err(_) => {
                let (Sent::Json { body, .. } | Sent::Grpc(body)) = &sent;
                std::fs::write("fuzz-failure.bin", body).expect("the failure can be written");
                eprintln!("request {number} of seed {seed} broke something; it is in fuzz-failure.bin");
                std::process::exit(1);
            }
        }
        if (number + 1).is_power_of_two() || number + 1 == count {
            println!("{} requests: {read} could be read, {scored} were scored", number + 1);
        }
    }
}

struct Tried {
    snapshot: Snapshot,
    scorer: Scorer,
    scores: Scores,
    request: Request,
}

impl Tried {
    /// Whether the request could be read, and whether it was scored.
    fn all_the_way(&mut self, sent: &Sent, limits: &Limits) -> (bool, bool) {
        let read: Option<InferRequest> = match sent {
            Sent::Json { body, split } => {
                let split = split.map(|split| split.to_string());
                json::parse(&Bytes::copy_from_slice(body), split.as_deref(), limits).ok()
            }
            Sent::Grpc(bytes) => {
                let message = ModelInferRequest::decode(Bytes::copy_from_slice(bytes)).ok();
                message.and_then(|message| grpc::read(message, limits).ok())
            }
        };
        let Some(read) = read else { return (false, false) };
        if features::fill(&mut self.request, &self.snapshot, &read.inputs, limits).is_err() {
            return (true, false);
        }
        self.scorer.score(&self.snapshot, &[&self.request], &mut self.scores).expect("its own inputs");
        let wanted = self.request.sample_count() * self.scores.task_count;
        assert_eq!(self.scores.probabilities.len(), wanted, "one score a sample and task");
        (true, true)
    }
}

/// Good requests in every form.
fn seeds(inputs: &Inputs, random: &mut Random) -> Vec<Sent> {
    let mut seeds = Vec::new();
    for samples in [1usize, 2, 5] {
        let named: Vec<Value> = inputs
            .all()
            .map(|(name, input)| {
                let data: Vec<u64> = (0..samples).map(|_| random.next() % 5).collect();
                let datatype = if matches!(input, Input::Sparse(_)) { "INT64" } else { "FP32" };
                json!({ "name": name, "datatype": datatype, "shape": [samples], "data": data })
            })
            .collect();
        seeds.push(Sent::Json {
            body: json!({ "id": "a", "inputs": named }).to_string().into_bytes(),
            split: None,
        });
        let (dense, features) = (inputs.dense_count(), inputs.feature_count());
        let (floats, rows) = (vec![0u8; 4 * samples * dense], vec![0u8; 4 * samples * features]);
        let head = json!({ "inputs": [
            { "name": "dense", "datatype": "FP32", "shape": [samples, dense],
              "parameters": { "binary_data_size": floats.len() } },
            { "name": "prepared_rows", "datatype": "UINT32", "shape": [samples, features],
              "parameters": { "binary_data_size": rows.len() } }],
            "parameters": { "binary_data_output": true } });
        let head = head.to_string().into_bytes();
        seeds.push(Sent::Json { split: Some(head.len()), body: [&head[..], &floats, &rows].concat() });
        let input = |name: &str, datatype: &str, width: usize| InferInputTensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![samples as i64, width as i64],
            ..InferInputTensor::default()
        };
        let message = ModelInferRequest {
            model_name: "fuzz".to_owned(),
            inputs: vec![input("dense", "FP32", dense), input("prepared_rows", "UINT32", features)],
            raw_input_contents: vec![floats.into(), rows.into()],
            ..ModelInferRequest::default()
        };
        seeds.push(Sent::Grpc(message.encode_to_vec()));
    }
    seeds
}

/// A good request with something done to it.
fn spoilt(seeds: &[Sent], random: &mut Random) -> Sent {
    let mut sent = seeds[random.below(seeds.len())].clone();
    let (Sent::Json { body: other, .. } | Sent::Grpc(other)) = &seeds[random.below(seeds.len())];
    let (Sent::Json { body, .. } | Sent::Grpc(body)) = &mut sent;
    for _ in 0..random.below(4) {
        let place = random.below(body.len());
        match random.below(7) {
            0 if !body.is_empty() => body[place] ^= 1 << random.below(8),
            1 if !body.is_empty() => body[place] = random.next() as u8,
            2 => body.truncate(place),
            3 => {
                let end = place + random.below(body.len() - place);
                body.drain(place..end);
            }
            4 => {
                let piece = other[random.below(other.len())..].to_vec();
                body.splice(place.min(body.len())..place.min(body.len()), piece);
            }
            5 => {
                let piece = AWKWARD[random.below(AWKWARD.len())].bytes();
                let end = (place + random.below(6)).min(body.len());
                body.splice(place.min(end)..end, piece);
            }
            _ => replace_number(body, place, random),
        }
    }
    if let Sent::Json { split: Some(split), body } = &mut sent
        && random.below(4) == 0
    {
        *split = random.below(body.len() + 10);
    }
    sent
}

/// Puts another number where one stands.
fn replace_number(body: &mut Vec<u8>, from: usize, random: &mut Random) {
    let Some(start) = body.iter().skip(from).position(u8::is_ascii_digit).map(|offset| from + offset) else {
        return;
    };
    let end = body[start..]
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .map_or(body.len(), |length| start + length);
    let number =
        [random.next() % 10, random.next() % 1000, random.next(), 1 << random.below(64)][random.below(4)];
    body.splice(start..end, number.to_string().into_bytes());
}
