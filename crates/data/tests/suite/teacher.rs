//! A teacher's words: as columns of the data, from a file beside it, and from a world's simulated teacher.

use campanile_data::{
    DataError, Dataset, prepare,
    teacher::{TeacherHeader, TeacherVersion, TeacherWriter, inspect},
    world::{World, WorldSpec},
};
use campanile_spec::{
    Batch,
    config::DataFiles,
    data::{Columns, DataSpec, IdMap, LabelColumn, Split, SplitSpec},
    world::{Drift, SimulatedTeacher},
};

use crate::fixture::{Place, csv, label, read_all, sparse, train_files};

const ROWS: &str = "click,buy,item,seconds,clicks_teacher\n1,0,a,5,-0.5\n0,0,b,,\n1,1,c,7.5,3\n";

fn columns() -> Columns {
    let clicks = LabelColumn { teacher: Some("clicks_teacher".into()), ..label("click") };
    Columns {
        labels: vec![label("buy"), clicks],
        sparse: vec![sparse("item", IdMap::Hash { salt: 1 }, 50)],
        teacher_delay: Some("seconds".into()),
        ..Columns::default()
    }
}

fn shown(values: &[f32]) -> String {
    format!("{values:?}")
}

#[test]
fn columns_of_the_data_become_a_teachers_words() {
    let place = Place::new();
    let batch = read_all(&place.prepare(&csv(columns()), &[place.write("a.csv", ROWS)]).unwrap().train);
    assert_eq!(shown(&batch.teacher_logits), "[NaN, NaN, NaN, -0.5, NaN, 3.0]");
    assert_eq!(shown(&batch.teacher_delays), "[5.0, NaN, 7.5]");
    let bad = ROWS.replace("-0.5", "inf");
    let error = place.error(&csv(columns()), &[place.write("b.csv", bad)]);
    assert!(error.contains("clicks_teacher"), "{error}");
}

fn numbered_rows(count: usize) -> String {
    let row = |n: usize| format!("{},{n},{}\n", n % 2, 1000 + n);
    format!("click,item,time\n{}", (0..count).map(row).collect::<String>())
}

/// Items are rows as they are, so a sample's item is its place in the file.
fn numbered(shuffle: bool) -> DataSpec {
    let columns = Columns {
        labels: vec![label("click")],
        sparse: vec![sparse("item", IdMap::Direct, 100_000)],
        time: Some("time".into()),
        ..Columns::default()
    };
    DataSpec { shuffle, split: SplitSpec::ByRow { valid: 0.1, test: 0.0 }, ..csv(columns) }
}

fn header(rows: u64, data: &str) -> TeacherHeader {
    let version =
        |number, data_time| TeacherVersion { model: "teacher".into(), number, id: String::new(), data_time };
    TeacherHeader {
        version: 0,
        tasks: vec!["buy".into(), "click".into()],
        embedding: 0,
        rows,
        data: data.into(),
        seconds_per_time_unit: 60.0,
        teachers: vec![version(1, Some(900)), version(2, None)],
    }
}

/// A word on every row but some: the logit is a hundredth of the row, which a half keeps well enough to tell rows apart.
fn write(place: &Place, rows: u64, data: &str) -> DataFiles {
    let path = place.path("words");
    let mut writer = TeacherWriter::create(&path, header(rows, data)).unwrap();
    for row in 0..rows {
        let teacher = [Some(0), Some(1), None][row as usize % 3];
        writer.add(&[f32::NAN, row as f32 * 0.01], teacher).unwrap();
    }
    writer.finish().unwrap();
    DataFiles { teacher: Some(path), ..train_files(&[place.path("rows.csv").display().to_string()]) }
}

fn check(batch: &Batch, rows_before: usize) {
    for sample in 0..batch.sample_count {
        let row = batch.bags.feature(0).bag(sample)[0] as usize - rows_before;
        let (logit, delay) = (batch.teacher_logits[sample], batch.teacher_delays[sample]);
        if row % 3 == 2 {
            assert!(logit.is_nan() && delay.is_nan(), "row {row} has {logit}, {delay}");
        } else {
            assert!((logit - row as f32 * 0.01).abs() <= logit.abs() * 0.0006, "row {row} has {logit}");
            let age = (100 + row as i32 + rows_before as i32) as f32 * 60.0;
            assert!(
                if row.is_multiple_of(3) { delay == age } else { delay.is_nan() },
                "row {row} has age {delay}"
            );
        }
    }
}

#[test]
fn a_file_of_words_follows_its_rows_through_shuffling_and_ranges() {
    let place = Place::new();
    place.write("rows.csv", numbered_rows(80_000));
    let files = train_files(&[place.path("rows.csv").display().to_string()]);
    let bare = prepare(&numbered(true), &files, &place.options(), &mut |_| ()).unwrap();
    let files = write(&place, bare.train.row_count(), &bare.fingerprint);
    assert_eq!(inspect(files.teacher.as_ref().unwrap()).unwrap().rows, 72_000);
    let taught = |shuffle| prepare(&numbered(shuffle), &files, &place.options(), &mut |_| ()).unwrap();
    for shuffle in [true, false] {
        let train: Dataset = taught(shuffle).train;
        let mut reader = train.reader().unwrap();
        let mut batch = Batch::default();
        for (epoch, start) in [(0, 0), (0, 3000), (1, 65_000), (3, 71_000), (0, 0)] {
            reader.read(epoch, start..start + 1000, &mut batch).unwrap();
            check(&batch, 0);
        }
    }
    assert_ne!(taught(true).fingerprint, bare.fingerprint, "a teacher changes what is trained");
    assert!(read_all(taught(true).valid.as_ref().unwrap()).teacher_logits.is_empty());
}

#[test]
fn an_embedding_follows_its_rows_and_must_be_the_one_that_is_asked_for() {
    let place = Place::new();
    place.write("rows.csv", numbered_rows(80_000));
    let bare = train_files(&[place.path("rows.csv").display().to_string()]);
    let prepared = prepare(&numbered(true), &bare, &place.options(), &mut |_| ()).unwrap();
    let (rows, path) = (prepared.train.row_count(), place.path("words"));
    let of_two = TeacherHeader { embedding: 2, ..header(rows, &prepared.fingerprint) };
    let mut writer = TeacherWriter::create(&path, of_two).unwrap();
    for row in 0..rows {
        let logits = [f32::NAN, row as f32 * 0.01];
        match row % 3 {
            0 => writer.add_embedded(&logits, &[row as f32 * 0.001, -1.0], Some(0)).unwrap(),
            1 => writer.add(&logits, Some(1)).unwrap(),
            _ => writer.add(&logits, None).unwrap(),
        }
    }
    writer.finish().unwrap();
    assert_eq!(inspect(&path).unwrap().version, 2);
    let files = DataFiles { teacher: Some(path), ..bare };
    let taught = |embedding_floats| {
        let options = campanile_data::PrepOptions { embedding_floats, ..place.options() };
        prepare(&numbered(true), &files, &options, &mut |_| ())
    };
    let (train, mut batch) = (taught(2).unwrap().train, Batch::default());
    assert_eq!(train.embedding_floats(), 2);
    for start in [0, 65_000, 71_000] {
        train.reader().unwrap().read(1, start..start + 1000, &mut batch).unwrap();
        check(&batch, 0);
        for sample in 0..batch.sample_count {
            let row = batch.bags.feature(0).bag(sample)[0];
            let said = batch.teacher_embedding(sample);
            assert_eq!(said.is_some(), row % 3 == 0, "row {row}");
            if let Some([first, second]) = said {
                assert!((first - row as f32 * 0.001).abs() <= first * 0.0006, "row {row} has {first}");
                assert_eq!(*second, -1.0);
            }
        }
    }
    // Who does not ask for it reads the words without it, and who asks for another is told.
    let train = taught(0).unwrap().train;
    train.reader().unwrap().read(0, 0..1000, &mut batch).unwrap();
    check(&batch, 0);
    assert!(batch.teacher_embeddings.is_empty());
    let error = taught(3).unwrap_err().to_string();
    assert!(error.contains("an embedding of 2 floats") && error.contains("run.follow.floats"), "{error}");
    write(&place, rows, &prepared.fingerprint);
    assert_eq!(inspect(files.teacher.as_ref().unwrap()).unwrap().version, 1);
    let error = taught(2).unwrap_err().to_string();
    assert!(error.contains("no embedding of the teacher"), "{error}");
}

#[test]
fn words_on_other_rows_or_tasks_and_damaged_ones_are_refused() {
    let place = Place::new();
    place.write("rows.csv", numbered_rows(50));
    let files = write(&place, 45, "other");
    let message = |files: &DataFiles, data: &DataSpec| {
        let error = prepare(data, files, &place.options(), &mut |_| ()).and_then(|prepared| {
            let mut batch = Batch::default();
            prepared.train.reader()?.read(0, 0..10, &mut batch)
        });
        error.unwrap_err().to_string().replace(&format!("{}/", place.dir.path().display()), "")
    };
    assert_eq!(
        message(&files, &numbered(true)),
        "words has a teacher's words on 45 rows of other data, and this job trains on 45 rows: run `campanile augment` \
         for this job"
    );
    let bare = train_files(&files.train);
    let fingerprint = prepare(&numbered(true), &bare, &place.options(), &mut |_| ()).unwrap().fingerprint;
    let files = write(&place, 45, &fingerprint);
    let path = files.teacher.clone().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    let end = damaged.len();
    damaged[end - 30] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    assert_eq!(
        message(&files, &numbered(true)),
        "words: block 0 of the teacher's words does not match its checksum; run `campanile augment` again"
    );
    std::fs::write(&path, &whole[..end - 8]).unwrap();
    assert!(message(&files, &numbered(true)).contains("bytes instead of"));
    std::fs::write(&path, "nothing of the kind").unwrap();
    assert!(message(&files, &numbered(true)).contains("campanile augment"));
    std::fs::write(&path, &whole).unwrap();
    let renamed = TeacherHeader { tasks: vec!["like".into()], ..header(45, &fingerprint) };
    let mut writer = TeacherWriter::create(&path, renamed).unwrap();
    writer.add(&[0.0; 45], None).unwrap();
    writer.finish().unwrap();
    let error = prepare(&numbered(true), &files, &place.options(), &mut |_| ()).unwrap_err();
    assert!(matches!(error, DataError::NoTeacherTask { .. }), "{error}");
}

fn world(teacher: SimulatedTeacher) -> Batch {
    let spec = WorldSpec {
        train_samples: 20_000,
        valid_samples: 0,
        test_samples: 0,
        samples_per_second: 100.0,
        drift: Drift { global: 1.0, segment: 0.0, item: 0.0 },
        teacher: Some(teacher),
        ..WorldSpec::default()
    };
    let mut batch = Batch::default();
    World::new(&spec, 3).unwrap().read(Split::Train, 0, 10_000..14_000, &mut batch);
    batch
}

/// How far the teacher's logits are from the truth: mean and deviation.
fn errors(batch: &Batch) -> (f64, f64) {
    let logit = |p: f32| (f64::from(p) / (1.0 - f64::from(p))).ln();
    let pairs = batch.teacher_logits.iter().zip(&batch.true_probabilities);
    let errors: Vec<f64> = pairs.map(|(z, p)| f64::from(*z) - logit(*p)).filter(|e| !e.is_nan()).collect();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    (mean, (errors.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / errors.len() as f64).sqrt())
}

#[test]
fn a_simulated_teacher_has_the_errors_asked_for() {
    let exact = SimulatedTeacher { noise: 0.0, ..SimulatedTeacher::default() };
    let (mean, deviation) = errors(&world(exact));
    assert!(mean.abs() < 1e-3 && deviation < 1e-3, "{mean} {deviation}");
    let off = SimulatedTeacher { noise: 0.3, bias: 0.5, coverage: 0.5, ..SimulatedTeacher::default() };
    let batch = world(off);
    let (mean, deviation) = errors(&batch);
    assert!((mean - 0.5).abs() < 0.03 && (deviation - 0.3).abs() < 0.03, "{mean} {deviation}");
    let silent = batch.teacher_logits.iter().filter(|z| z.is_nan()).count();
    assert!((1800..2200).contains(&silent), "{silent} of 4000");
}

#[test]
fn a_late_teacher_knows_old_drift_and_says_how_old() {
    let late = SimulatedTeacher {
        noise: 0.0,
        delay_seconds: 30.0,
        refresh_seconds: 20.0,
        ..SimulatedTeacher::default()
    };
    let batch = world(late);
    let ages = &batch.teacher_delays;
    assert!(ages.iter().all(|age| (30.0..50.01).contains(age)), "{ages:?}");
    assert!(ages.iter().any(|age| *age < 31.0) && ages.iter().any(|age| *age > 49.0));
    let (_, deviation) = errors(&batch);
    assert!(deviation > 0.01, "the drift since then is missing: {deviation}");
}

#[test]
fn a_job_lists_some_of_a_worlds_labels_in_its_own_order() {
    let read = |labels: &str| {
        let text = format!(
            "[run]\nseed = 3\nbatch_size = 64\n{labels}\n[run.data]\nkind = \"synthetic\"\n\
             [run.data.world]\ntrain_samples = 500\nvalid_samples = 0\ntest_samples = 0\nsparse_count = 3\nhidden_groups = 2\nacross_pairs = 1\n\
             conversion = {{}}\nteacher = {{ coverage = 0.5 }}\n\
             [run.model]\nkind = \"logistic_regression\"\n[run.sparse]\noptimizer = \"sgd\"\nlearning_rate = 0.1\n\
             [run.dense]\noptimizer = \"sgd\"\nlearning_rate = 0.1\n"
        );
        let job = campanile_spec::config::Job::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        let place = Place::new();
        read_all(&place.prepare(&job.run.data, &[]).unwrap().train)
    };
    let listed = |name: &str| format!("[[run.data.label]]\nname = \"{name}\"");
    let all = read("");
    let conversion = read(&listed("conversion"));
    let turned = read(&format!("{}\n{}", listed("conversion"), listed("click")));
    let columns = |batch: Batch| [batch.labels, batch.true_probabilities, batch.teacher_logits];
    let (all, conversion, turned) = (columns(all), columns(conversion), columns(turned));
    for column in 0..3 {
        let (clicks, conversions) = all[column].split_at(500);
        assert_eq!(shown(&conversion[column]), shown(conversions));
        assert_eq!(shown(&turned[column]), shown(&[conversions, clicks].concat()));
    }
}
