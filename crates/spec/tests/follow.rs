//! `[run.follow]`: what it adds to a model, that a job with it is written and read back, and what a user reads when it is
//! wrong.

use campanile_spec::{Bags, config::Job};
use expect_test::expect;

const JOB: &str = r#"
[run]
batch_size = 64

[run.data]
kind = "csv"
label = [{ name = "click" }]
dense = [{ name = "price" }]
sparse = [
    { name = "user", rows = 1000 },
    { name = "tags", rows = 50, list = true },
    { name = "item", rows = 500 },
]

[run.tables]
dim = 8

[run.model]
kind = "mlp"
hidden = [16]

[run.follow]
features = ["item", "user"]
floats = 12

[run.sparse]
learning_rate = 0.1

[run.dense]
learning_rate = 0.1

[process.data]
train = ["log.csv"]
"#;

#[test]
fn a_table_and_a_vector_come_behind_those_of_the_data() {
    let job = Job::parse(JOB).unwrap();
    let model = &job.run.model;
    let tables: Vec<(&str, u64, usize)> =
        model.tables.iter().map(|table| (&*table.name, table.row_count, table.dim)).collect();
    assert_eq!(tables[3..], [("teacher.item", 500, 12), ("teacher.user", 1000, 12)]);
    assert_eq!((model.data_features(), model.features.len(), &*model.followers), (3, 5, &[2, 0][..]));
    assert_eq!([3, 4].map(|feature| model.ids_of(feature)), [2, 0]);
    assert_eq!((model.ids_name("teacher.user"), model.ids_name("user")), ("user", "user"));
    assert_eq!(model.followed_columns(), 24..48);
    assert_eq!([2, 3].map(|table| model.follows(table)), [false, true]);
    // The columns of the data are what they were, so that packed data and words serve with and without.
    let alone = Job::parse(&without(JOB)).unwrap();
    assert_eq!(job.run.data, alone.run.data);
    assert_ne!(job.run.hash(), alone.run.hash());
    for job in [&job, &alone] {
        assert_eq!(Job::parse(&job.effective_toml()).unwrap(), *job);
    }
    // A run from before has no such key in its text.
    assert!(!alone.effective_toml().contains("follow"));
}

fn without(job: &str) -> String {
    job.replace("[run.follow]\nfeatures = [\"item\", \"user\"]\nfloats = 12\n", "")
}

#[test]
fn bags_are_repeated_behind_the_others() {
    let mut bags = Bags::new(2, 3, vec![0, 1, 1, 3, 4, 5, 6], vec![4, 9, 1, 7, 7, 2], vec![0.5; 6]).unwrap();
    bags.repeat(&[1, 0]);
    let (offsets, rows, weights) = bags.clone().into_parts();
    assert_eq!(bags, Bags::new(4, 3, offsets, rows, weights).unwrap());
    for sample in 0..3 {
        assert_eq!(bags.feature(2).bag(sample), bags.feature(1).bag(sample));
        assert_eq!(bags.feature(3).bag(sample), bags.feature(0).bag(sample));
    }
    assert_eq!(bags.weights().len(), 12);
    assert_eq!(bags.slice(1..3).feature(3).rows, [9, 1]);
}

#[test]
fn mistakes_name_the_key_and_say_what_to_do() {
    let mut messages = String::new();
    for (old, new) in [
        ("\"user\"]", "\"usr\"]"),
        ("\"user\"]", "\"item\"]"),
        ("\"user\"]", "\"tags\"]"),
        ("[\"item\", \"user\"]", "[]"),
        ("features = [\"item\", \"user\"]\n", ""),
        ("floats = 12", "floats = 0"),
        ("floats = 12", "learning_rate = 0"),
        ("floats = 12", "optimizer = { kind = \"rowwise_adam\", beta1 = 1.0 }"),
        ("floats = 12", "floats = 12\nweight = 2"),
        ("kind = \"mlp\"\nhidden = [16]", "kind = \"factorization_machine\""),
        (
            "{ name = \"user\", rows = 1000 }",
            "{ name = \"user\", rows = 9 }, { name = \"teacher.user\", rows = 9 }",
        ),
        (
            "[run.follow]",
            "[run.towers]\ntower = [{ name = \"a\", features = [\"user\", \"tags\", \"item\"] }]\n[run.follow]",
        ),
    ] {
        assert!(JOB.contains(old), "{old}");
        match Job::parse(&JOB.replacen(old, new, 1)) {
            Ok(_) => panic!("{new}"),
            Err(error) => messages.push_str(&format!("{error}\n")),
        }
    }
    expect![[r#"
        `features[1]` in [run.follow] at line 23, column 21 is "usr": there is no feature of this name; did you mean `user`?
        `features[1]` in [run.follow] at line 23, column 21 is "item": it stands there already
        `features[1]` in [run.follow] at line 23, column 21 is "tags": it has up to 256 ids a sample, and what the teacher says of a sample is said of one; name a feature with one id
        `features` in [run.follow] at line 23, column 12 is []: name at least one feature, or leave [run.follow] out
        missing key `features` in [run.follow] at line 22, column 1: it says features with one id a sample, such as the user and the item
        `floats` in [run.follow] at line 24, column 10 is 0: it must be from 1 to 256
        `learning_rate` in [run.follow] at line 24, column 17 is 0: it must be above 0; 0.01 to 0.1 is a usual start
        `beta1` in [run.follow.optimizer] at line 24, column 46 is 1: it must be at least 0 and below 1
        unknown key `weight` in [run.follow] at line 25, column 1: known are `features`, `floats`, `optimizer`, `learning_rate`, `format`
        `features` in [run.follow] at line 22, column 12 is ["item", "user"]: the rows of this model are its weights, and it has no layer to take another vector; use another [run.model]
        `features[1]` in [run.follow] at line 23, column 21 is "user": its table would be called `teacher.user`, and the job has that already; rename that one
        `follow` in [run] at line 24, column 1 is given beside [run.towers]: tables that follow a teacher cannot live in towers yet; leave out one of the two
    "#]]
    .assert_eq(&messages);
}
