//! Experiments with a simulated teacher, whose errors, bias and age are known.

use anyhow::Result;
use campanile_spec::{
    Distil, DistilMethod,
    config::Job,
    data::SourceSpec,
    world::{Drift, SimulatedTeacher},
};

use super::{
    lab::{Lab, listening, taught_by},
    table::{Row, Table},
};

use DistilMethod::{Adapter, Auxiliary, None, OneHead};

/// A named way to listen.
type Way = (String, Distil);

fn way(name: &str, method: DistilMethod, scales: [f32; 3]) -> Way {
    (name.to_owned(), listening(method, scales))
}

/// Trains every way on every seed and prints the table.
fn compare(lab: &Lab, title: &str, ways: &[Way], world: &dyn Fn(&mut Job)) -> Result<Table> {
    let mut rows = Vec::new();
    for (name, distil) in ways {
        let mut measured = Vec::new();
        for &seed in &lab.seeds {
            let job = lab.job(seed, |job| {
                world(job);
                job.run.distil = *distil;
            })?;
            measured.push(lab.train(&job)?);
        }
        rows.push(Row { name: name.clone(), measured });
    }
    let table = Table { title: title.to_owned(), rows };
    table.print();
    Ok(table)
}

fn drifting(job: &mut Job, drift: Drift) {
    if let SourceSpec::Synthetic(world) = &mut job.run.data.source {
        world.drift = drift;
    }
}

/// Head against head, with teachers of no, some and much bias.
pub fn heads(lab: &Lab) -> Result<Vec<Table>> {
    let ways = [
        way("none", None, [1.0; 3]),
        way("one head, w 1", OneHead, [1.0; 3]),
        way("one head, w 5", OneHead, [5.0, 1.0, 1.0]),
        way("one head, w 10", OneHead, [10.0, 1.0, 1.0]),
        way("auxiliary, w 1", Auxiliary, [1.0; 3]),
        way("auxiliary, w 5", Auxiliary, [5.0, 1.0, 1.0]),
        way("auxiliary, beta 5", Auxiliary, [1.0, 1.0, 5.0]),
        way("auxiliary, alpha 5", Auxiliary, [1.0, 5.0, 1.0]),
        way("auxiliary, w 5, alpha 5, beta 5", Auxiliary, [5.0; 3]),
        way("adapter, w 1", Adapter, [1.0; 3]),
        way("adapter, w 5", Adapter, [5.0, 1.0, 1.0]),
    ];
    let biases = [0.0, 0.5, 1.0];
    biases
        .iter()
        .map(|&bias| {
            let teacher = SimulatedTeacher { bias, ..SimulatedTeacher::default() };
            compare(lab, &format!("bias {bias}, fresh"), &ways, &|job| taught_by(job, teacher))
        })
        .collect()
}

/// The three amplifiers, two at a time, with a fresh and a late teacher.
pub fn scales(lab: &Lab) -> Result<Vec<Table>> {
    let steps = [1.0, 5.0, 10.0, 20.0];
    let mut ways = vec![way("none", None, [1.0; 3])];
    for w in steps {
        for other in steps {
            ways.push(way(&format!("w {w}, alpha {other}"), Auxiliary, [w, other, 1.0]));
            if other > 1.0 {
                ways.push(way(&format!("w {w}, beta {other}"), Auxiliary, [w, 1.0, other]));
            }
        }
    }
    let late = SimulatedTeacher { delay_seconds: lab.stream_seconds() / 4.0, ..SimulatedTeacher::default() };
    [("fresh", SimulatedTeacher::default()), ("a quarter of the stream late", late)]
        .into_iter()
        .map(|(name, teacher)| {
            compare(lab, &format!("item drift 1, teacher {name}"), &ways, &|job| {
                drifting(job, Drift { item: 1.0, ..Drift::default() });
                taught_by(job, teacher);
            })
        })
        .collect()
}

/// Adapters under each kind of drift apart, with a late teacher that is renewed now and then.
pub fn drift(lab: &Lab) -> Result<Vec<Table>> {
    let auxiliary = listening(Auxiliary, [1.0; 3]);
    let plain = listening(Adapter, [1.0; 3]);
    let by_segment = |freshness| {
        let mut distil = plain;
        distil.adapter.segments = 3;
        distil.adapter.freshness = freshness;
        distil
    };
    let ways = [
        way("none", None, [1.0; 3]),
        ("one head".to_owned(), listening(OneHead, [1.0; 3])),
        ("auxiliary, w 1".to_owned(), auxiliary),
        ("auxiliary, w 2".to_owned(), listening(Auxiliary, [2.0, 1.0, 1.0])),
        ("adapter".to_owned(), plain),
        ("adapter by segment".to_owned(), by_segment(false)),
        ("adapter by segment, with age".to_owned(), by_segment(true)),
    ];
    let stream = lab.stream_seconds();
    let teacher = SimulatedTeacher {
        delay_seconds: stream / 16.0,
        refresh_seconds: stream / 8.0,
        ..SimulatedTeacher::default()
    };
    let kinds = [
        ("no", Drift::default()),
        ("global", Drift { global: 1.5, ..Drift::default() }),
        ("segment", Drift { segment: 1.5, ..Drift::default() }),
        ("item", Drift { item: 1.5, ..Drift::default() }),
    ];
    kinds
        .into_iter()
        .map(|(name, drift)| {
            let title = format!("{name} drift, teacher 1/16 to 3/16 of the stream old");
            compare(lab, &title, &ways, &|job| {
                drifting(job, drift);
                taught_by(job, teacher);
            })
        })
        .collect()
}

/// Teachers of rising age under item drift, with and without fading.
pub fn freshness(lab: &Lab) -> Result<Vec<Table>> {
    let stream = lab.stream_seconds();
    let fading = |mut distil: Distil| {
        distil.fade_seconds = (stream / 16.0) as f32;
        distil
    };
    let strong = listening(Auxiliary, [5.0, 5.0, 5.0]);
    let ways = [
        way("none", None, [1.0; 3]),
        way("auxiliary, w 1", Auxiliary, [1.0; 3]),
        ("auxiliary, w 1, fading".to_owned(), fading(listening(Auxiliary, [1.0; 3]))),
        ("auxiliary, w 5, alpha 5, beta 5".to_owned(), strong),
        ("auxiliary, w 5, alpha 5, beta 5, fading".to_owned(), fading(strong)),
        way("adapter, w 1", Adapter, [1.0; 3]),
        ("adapter, w 1, fading".to_owned(), fading(listening(Adapter, [1.0; 3]))),
    ];
    let ages = [("0", 0.0), ("1/16", 0.0625), ("1/8", 0.125), ("1/4", 0.25), ("1/2", 0.5), ("1", 1.0)];
    ages.into_iter()
        .map(|(name, share)| {
            let teacher = SimulatedTeacher { delay_seconds: share * stream, ..SimulatedTeacher::default() };
            compare(lab, &format!("item drift 2, teacher {name} of the stream old"), &ways, &|job| {
                drifting(job, Drift { item: 2.0, ..Drift::default() });
                taught_by(job, teacher);
            })
        })
        .collect()
}
