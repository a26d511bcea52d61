//! What a user reads when a job is wrong: the place, the key, the value, and what to do.

use campanile_spec::config::Job;
use expect_test::{Expect, expect};

/// A job that is right; each case breaks one line of it.
const JOB: &str = r#"
[run]
batch_size = 64

[run.data]
kind = "csv"

[[run.data.label]]
name = "click"

[[run.data.dense]]
name = "price"
transforms = ["log1p", { kind = "clip", min = 0, max = 10 }]

[[run.data.sparse]]
name = "user"
rows = 1000

[[run.data.sparse]]
name = "item"
rows = 500

[run.tables]
dim = 8

[run.model]
kind = "dlrm"
bottom = [16, 8]
top = [16]

[run.sparse]
learning_rate = 0.1

[run.dense]
optimizer = { kind = "sgd", momentum = 0.9 }
learning_rate = 0.1

[process.data]
train = ["log.csv"]
"#;

/// Towers behind the job above.
const TOWERS: &str = r#"
[run.towers]
module = { kind = "ensemble", per_feature = 1, mixed = 1, width = 8 }

[[run.towers.tower]]
name = "a"
features = ["user"]

[[run.towers.tower]]
name = "b"
features = ["item"]
"#;

/// The model of the whole job, for jobs with another.
const DLRM: &str = "kind = \"dlrm\"\nbottom = [16, 8]\ntop = [16]";

#[test]
fn towers() {
    let mut messages = String::new();
    let whole = format!("{JOB}{TOWERS}");
    assert_eq!(message(&whole), "no error\n");
    for (old, new) in [
        ("features = [\"item\"]", "features = [\"itme\"]"),
        ("features = [\"item\"]", "features = [\"item\", \"user\"]"),
        ("features = [\"item\"]", "features = [\"item\", \"item\"]"),
        ("features = [\"user\"]", "features = []"),
        ("name = \"b\"\nfeatures = [\"item\"]", "name = \"a\"\nfeatures = [\"item\"]"),
        ("\n[[run.towers.tower]]\nname = \"b\"\nfeatures = [\"item\"]\n", ""),
        ("width = 8 }", "width = 4 }"),
        ("per_feature = 1, mixed = 1", "per_feature = 0, mixed = 0"),
        ("name = \"b\"", "name = \"b\"\nmodule = { kind = \"cross\", layers = 0, width = 8 }"),
        ("features = [\"user\"]", "features = [\"user\"]\nvariant = \"sptt\""),
        ("module = { kind", "variant = \"tower\"\nmodule = { kind"),
        ("module = { kind", "module_rate = 0.0\nmodule = { kind"),
    ] {
        assert!(whole.contains(old), "{old}");
        messages.push_str(&message(&whole.replacen(old, new, 1)));
    }
    let unequal = whole.replace("[run.model]", "[[run.table]]\nname = \"item\"\ndim = 4\n[run.model]");
    let one = unequal.replace("[\"user\"]", "[\"user\", \"item\"]");
    let end = one.rfind("[[run.towers.tower]]").unwrap();
    messages.push_str(&message(&one[..end]));
    expect![[r#"
        `features[0]` in [[run.towers.tower]] number 2 at line 50, column 13 is "itme": there is no such feature; did you mean `item`?
        `features[1]` in [[run.towers.tower]] number 2 at line 50, column 21 is "user": tower `a` has this feature already, and a feature is in one tower only
        `features[1]` in [[run.towers.tower]] number 2 at line 50, column 21 is "item": it stands before in this list
        `features` in [[run.towers.tower]] number 1 at line 46, column 12 is []: a tower has at least one feature
        `name` in [[run.towers.tower]] number 2 at line 49, column 8 is "a": a tower of this name stands above
        `features` in [[run.towers.tower]] number 1 at line 46, column 12 is ["user"]: `item` is in no tower; every feature must be in one
        `width` in [run.towers.module] at line 42, column 67 is 4: in "dlrm" all vectors meet, so it must be 8, the width that run.model.bottom ends with
        `per_feature` in [run.towers.module] at line 42, column 45 is 0: with `mixed` = 0 too the tower hands on nothing; one must be at least 1
        `layers` in `module` of [[run.towers.tower]] number 2 at line 50, column 37 is 0: it must be from 1 to 64
        unknown key `variant` in [[run.towers.tower]] number 1 at line 47, column 1: known are `name`, `features`, `module`
        `variant` in [run.towers] at line 42, column 11 is "tower": it must be "flat", "sptt" or "towers"; did you mean "towers"?
        `module_rate` in [run.towers] at line 42, column 15 is 0: modules move at a share of the learning rate of [run.dense], above 0 and up to 100; 1 is the rate of all others
        `per_feature` in [run.towers.module] at line 45, column 45 is 1: tower `a` projects its features by one matrix, and `user` has rows of 8 floats, `item` of 4; give their tables one dim, or set per_feature = 0
    "#]].assert_eq(&messages);
}

/// The messages of the jobs in which `old` is replaced by `new`, a line each.
fn check(cases: &[(&str, &str)], expect: Expect) {
    let mut messages = String::new();
    for (old, new) in cases {
        assert!(JOB.contains(old), "{old}");
        messages.push_str(&message(&JOB.replacen(old, new, 1)));
    }
    expect.assert_eq(&messages);
}

fn message(job: &str) -> String {
    match Job::parse(job) {
        Ok(_) => "no error\n".to_owned(),
        Err(error) => format!("{error}\n"),
    }
}

#[test]
fn the_job_is_right_before_it_is_broken() {
    let cases = [("", "")];
    check(
        &cases,
        expect![[r#"
        no error
    "#]],
    );
}

#[test]
fn text_that_is_not_toml() {
    let cases = [
        ("batch_size = 64", "batch_size = "),
        ("[run.tables]", "[run.tables"),
        ("batch_size = 64", "batch_size = 64\nbatch_size = 65"),
    ];
    check(
        &cases,
        expect![[r#"
        the job is not valid TOML at line 3, column 14: string values must be quoted, expected literal string
        the job is not valid TOML at line 23, column 12: unclosed table, expected `]`
        the job is not valid TOML at line 4, column 1: duplicate key
    "#]],
    );
}

#[test]
fn unknown_keys_name_the_nearest() {
    let cases = [
        ("batch_size", "bach_size"),
        ("[run.tables]", "[run.tabels]"),
        ("[process.data]", "[proces.data]"),
        ("name = \"item\"", "name = \"item\"\npoling = \"mean\""),
        ("momentum = 0.9", "momentun = 0.9"),
        ("min = 0, max", "mim = 0, max"),
        ("top = [16]", "top = [16]\ncross_layers = 3"),
        ("dim = 8", "colour = 8"),
    ];
    check(
        &cases,
        expect![[r#"
        unknown key `bach_size` in [run] at line 3, column 1: did you mean `batch_size`?
        unknown key `tabels` in [run] at line 23, column 6: did you mean `tables`?
        unknown key `proces` in the job at line 38, column 2: did you mean `process`?
        unknown key `poling` in [[run.data.sparse]] number 2 at line 21, column 1: did you mean `pooling`?
        unknown key `momentun` in [run.dense.optimizer] at line 35, column 29: did you mean `momentum`?
        unknown key `mim` in `transforms[1]` of [[run.data.dense]] number 1 at line 13, column 41: did you mean `min`?
        unknown key `cross_layers` in [run.model] at line 30, column 1: it belongs to kind = "dcn", and the kind here is "dlrm"
        unknown key `colour` in [run.tables] at line 24, column 1: known are `rows`, `dim`, `format`, `init`
    "#]],
    );
}

#[test]
fn missing_keys_say_what_they_mean() {
    let cases = [
        ("learning_rate = 0.1", ""),
        ("kind = \"dlrm\"", ""),
        ("name = \"item\"", ""),
        ("train = [\"log.csv\"]", ""),
        ("[[run.data.label]]\nname = \"click\"", ""),
        ("rows = 500", ""),
        ("learning_rate = 0.1", "learning_rate = 0.1\nschedule = \"cosine\""),
    ];
    check(
        &cases,
        expect![[r#"
        missing key `learning_rate` in [run.sparse] at line 31, column 1: it says the peak learning rate
        missing key `kind` in [run.model] at line 26, column 1: it says which: "dlrm", "dcn", "mlp", "two_tower", "logistic_regression" or "factorization_machine"
        missing key `name` in [[run.data.sparse]] number 2 at line 19, column 1: it says column name, and the feature's name
        missing key `train` in [process.data] at line 38, column 1: it says which files to train on, such as ["logs/*.gz"]
        missing key `label` in [run.data] at line 5, column 1: it says what is predicted; list at least one [[run.data.label]]
        missing key `rows` in [[run.data.sparse]] number 2 at line 19, column 1: table `item` needs a number of rows: here, or for all tables in [run.tables]
        missing key `total_steps` in [run.sparse.schedule] at line 33, column 12: it says where the cosine ends; write { kind = "cosine", total_steps = ... }
    "#]],
    );
}

#[test]
fn wrong_types_and_words() {
    let cases = [
        ("batch_size = 64", "batch_size = \"many\""),
        ("batch_size = 64", "batch_size = -1"),
        ("batch_size = 64", "batch_size = 64.5"),
        ("kind = \"csv\"", "kind = \"cvs\""),
        ("kind = \"sgd\"", "kind = \"adagard\""),
        ("\"log1p\"", "\"log\""),
        ("\"log1p\"", "3"),
        ("learning_rate = 0.1", "learning_rate = nan"),
        ("bottom = [16, 8]", "bottom = [16, 0.5]"),
        ("kind = \"csv\"", "kind = \"csv\"\ndelimiter = \"::\""),
        ("batch_size = 64", "batch_size = 64\nevaluate = 8"),
    ];
    check(
        &cases,
        expect![[r#"
        `batch_size` in [run] at line 3, column 14 is "many": it must be a whole number from 0 to 2^63 - 1
        `batch_size` in [run] at line 3, column 14 is -1: it must be a whole number from 0 to 2^63 - 1
        `batch_size` in [run] at line 3, column 14 is 64.5: it must be a whole number from 0 to 2^63 - 1
        `kind` in [run.data] at line 6, column 8 is "cvs": it must be "synthetic", "criteo", "csv" or "parquet"; did you mean "csv"?
        `kind` in [run.dense.optimizer] at line 35, column 22 is "adagard": it must be "sgd", "adagrad", "adam" or "adamw"; did you mean "adagrad"?
        `transforms[0]` in [[run.data.dense]] number 1 at line 13, column 15 is "log": it must be "log1p", "clip" or "standardise"; did you mean "log1p"?
        `transforms[0]` in [[run.data.dense]] number 1 at line 13, column 15 is 3: it must be a word, or a table with `kind`
        `learning_rate` in [run.sparse] at line 32, column 17 is nan: it must be a finite number
        `bottom[1]` in [run.model] at line 28, column 15 is 0.5: it must be a whole number from 0 to 2^63 - 1
        `delimiter` in [run.data] at line 7, column 13 is "::": it must be one ASCII character in quotes
        `evaluate` in [run] at line 4, column 12 is 8: it must be a table
    "#]],
    );
}

#[test]
fn numbers_that_cannot_work() {
    let cases = [
        ("batch_size = 64", "batch_size = 0"),
        ("batch_size = 64", "batch_size = 68_719_476_736"),
        ("batch_size = 64", "batch_size = 4_611_686_018_427_387_904"),
        ("batch_size = 64", "batch_size = 64\ngrains = 12"),
        ("batch_size = 64", "batch_size = 64\nepochs = 0"),
        ("rows = 500", "rows = 0"),
        ("rows = 500", "rows = 5_000_000_000"),
        ("dim = 8", "dim = 0"),
        ("bottom = [16, 8]", "bottom = [16, 0]"),
        ("bottom = [16, 8]", "bottom = []"),
        (DLRM, "kind = \"two_tower\"\nitem_features = [\"itm\"]\nuser = [8]\nitem = []"),
        (DLRM, "kind = \"two_tower\"\nitem_features = []\nuser = [8]\nitem = []"),
        (
            DLRM,
            "kind = \"two_tower\"\nitem_features = [\"item\", \"user\"]\nitem_dense = [0]\nuser = []\nitem = []",
        ),
        (DLRM, "kind = \"two_tower\"\nitem_features = [\"item\"]\nitem_dense = [1]\nuser = []\nitem = []"),
        (DLRM, "kind = \"two_tower\"\nitem_features = [\"item\"]\nuser = []\nitem = []\nwidth = 0"),
        ("learning_rate = 0.1", "learning_rate = 0"),
        ("momentum = 0.9", "momentum = 1.5"),
        ("min = 0, max = 10", "min = 20, max = 10"),
        ("train = [\"log.csv\"]", "train = [\"log.csv\"]\n[process]\nthreads = 3"),
        ("train = [\"log.csv\"]", "train = [\"\"]"),
    ];
    check(
        &cases,
        expect![[r#"
            `batch_size` in [run] at line 3, column 14 is 0: it must be from 1 to 16777216
            `batch_size` in [run] at line 3, column 14 is 68719476736: it must be from 1 to 16777216
            `batch_size` in [run] at line 3, column 14 is 4611686018427387904: it must be from 1 to 16777216
            `grains` in [run] at line 4, column 10 is 12: it must be a power of two up to 65536; leave it out for 4
            `epochs` in [run] at line 4, column 10 is 0: it must be at least 1
            `rows` in [[run.data.sparse]] number 2 at line 21, column 8 is 0: it must be from 1 to 4294967295
            `rows` in [[run.data.sparse]] number 2 at line 21, column 8 is 5000000000: it must be from 1 to 4294967295
            `dim` in [run.tables] at line 24, column 7 is 0: it must be from 1 to 4096
            `bottom[1]` in [run.model] at line 28, column 15 is 0: it must be from 1 to 65536
            `bottom` in [run.model] at line 28, column 10 is []: the dense columns need at least one width; the last is the one in which vectors meet
            `item_features[0]` in [run.model] at line 28, column 18 is "itm": there is no feature of this name; did you mean `item`?
            `item_features` in [run.model] at line 28, column 17 is []: the item is left without inputs; name here the features of the item and no others
            `item_features` in [run.model] at line 28, column 17 is ["item", "user"]: the user is left without inputs; name here the features of the item and no others
            `item_dense[0]` in [run.model] at line 29, column 15 is 1: places are counted from 0, and the dense inputs are 1
            `width` in [run.model] at line 31, column 9 is 0: it must be from 1 to 65536
            `learning_rate` in [run.sparse] at line 32, column 17 is 0: it must be above 0; 0.01 to 0.1 is a usual start
            `momentum` in [run.dense.optimizer] at line 35, column 40 is 1.5: it must be at least 0 and below 1
            `min` in `transforms[1]` of [[run.data.dense]] number 1 at line 13, column 47 is 20: it must not be above max, 10
            `threads` in [process] at line 41, column 11 is 3: it must divide the 4 grains of a batch (run.grains), as 1, 2, 4 would
            `train[0]` in [process.data] at line 39, column 10 is "": name a file
        "#]],
    );
}

#[test]
fn keys_that_do_not_fit_together() {
    let cases = [
        ("name = \"item\"", "name = \"user\""),
        ("name = \"item\"", "name = \"click\""),
        ("name = \"item\"", "name = \"item\"\ntable = \"usr\""),
        ("name = \"item\"", "name = \"item\"\ntable = \"user\""),
        ("[run.model]", "[[run.table]]\nname = \"itme\"\n[run.model]"),
        ("[run.model]", "[[run.table]]\nname = \"item\"\nrows = 20\n[run.model]"),
        ("rows = 500", "map = { kind = \"bucketise\", boundaries = [1, 3, 2] }"),
        ("rows = 500", "map = { kind = \"bucketise\", boundaries = [1, 2, 3] }\nrows = 2"),
        ("rows = 500", "rows = 1000\nmap = \"vocabulary\"\ntable = \"user\""),
        ("rows = 500", "rows = 500\nweights = \"w\""),
        ("rows = 500", "rows = 500\npooling = \"weighted\""),
        ("rows = 500", "rows = 500\nseparator = \";\""),
        ("rows = 500", "rows = 500\nbag_max = 5"),
        ("kind = \"csv\"", "kind = \"parquet\"\ndelimiter = \";\""),
        ("kind = \"csv\"", "kind = \"csv\"\n[run.data.world]\ntrain_samples = 5"),
        ("kind = \"csv\"", "kind = \"csv\"\nsplit = { kind = \"by_row\", valid = 0.6, test = 0.5 }"),
        ("kind = \"csv\"", "kind = \"csv\"\nsplit = { kind = \"by_time\", valid_from = 5, test_from = 9 }"),
        ("train = [\"log.csv\"]", "train = [\"a\"]\nvalid = [\"b\"]"),
        ("kind = \"dlrm\"\nbottom = [16, 8]\ntop = [16]", "kind = \"logistic_regression\""),
        (
            "kind = \"dlrm\"\nbottom = [16, 8]\ntop = [16]",
            "kind = \"factorization_machine\"\n[[run.table]]\nname = \"item\"\ndim = 4",
        ),
        ("learning_rate = 0.1", "learning_rate = 0.1\nl2 = 0.1\noptimizer = \"ftrl\""),
    ];
    check(
        &cases,
        expect![[r#"
            `name` in [[run.data.sparse]] number 2 at line 20, column 8 is "user": number 1 of the list has this name already; names must differ
            `name` in [[run.data.sparse]] number 2 at line 20, column 8 is "click": this column is a label, and a model that sees it learns nothing else; take it out
            `table` in [[run.data.sparse]] number 2 at line 21, column 9 is "usr": there is no such [[run.table]], and no feature of this name; did you mean `user`?
            `rows` in [[run.data.sparse]] number 2 at line 22, column 8 is 500: table `user` has 1000 rows elsewhere; say it once
            `name` in [[run.table]] number 1 at line 27, column 8 is "itme": no feature has its rows in this table; did you mean `item`?
            `rows` in [[run.data.sparse]] number 2 at line 21, column 8 is 500: table `item` has 20 rows elsewhere; say it once
            `boundaries` in `map` of [[run.data.sparse]] number 2 at line 21, column 42 is [1.0, 3.0, 2.0]: it must rise, but 2 follows 3
            `rows` in [[run.data.sparse]] number 2 at line 22, column 8 is 2: the features of table `item` name 4 rows
            `table` in [[run.data.sparse]] number 2 at line 23, column 9 is shared: `user` has rows in the same table, and a vocabulary numbers the ids of one column only; use "hash" for both
            `weights` in [[run.data.sparse]] number 2 at line 22, column 11 is "w": weights need pooling = "weighted"
            missing key `weights` in [[run.data.sparse]] number 2 at line 19, column 1: pooling = "weighted" needs the column with the weights
            `separator` in [[run.data.sparse]] number 2 at line 22, column 13 is ";": it has a meaning with list = true only; leave it out
            `bag_max` in [[run.data.sparse]] number 2 at line 22, column 11 is 5: a cell holds one id unless list = true
            `delimiter` in [run.data] at line 7, column 13 is ";": it has a meaning for kind = "csv" only; leave it out
            `world` in [run.data] at line 7, column 1 is given: it has a meaning for kind = "synthetic" only; leave it out
            `valid` in [run.data.split] at line 7, column 36 is 0.6: with test = 0.5 it leaves no rows to train on; both together must be below 1
            `kind` in [run.data.split] at line 7, column 18 is "by_time": it needs a time column; set run.data.time
            no error
            `dim` in [run.tables] at line 24, column 7 is 8: "logistic_regression" has one weight per row for each task; leave it out
            `dim` in [[run.table]] number 1 at line 30, column 7 is 4: the rows of "factorization_machine" meet, so all dims must be equal, and `user` has 8
            `l2` in [run.sparse] at line 33, column 6 is 0.1: "ftrl" has an l2 of its own; write it in run.sparse.optimizer
        "#]],
    );
}

const WORLD: &str = "
[run.data]
kind = \"synthetic\"
[run.model]
kind = \"dlrm\"
bottom = [8]
top = [8]
[run.sparse]
learning_rate = 0.1
[run.dense]
learning_rate = 0.1
";

#[test]
fn a_world_brings_its_columns() {
    let cases = [
        "",
        "[run.data.world]\nclick_rate = 2",
        "[run.data.world]\nvocabulary = [1, 2]",
        "[run.data.world.signal]\nmian = 2",
        "[[run.data.sparse]]\nname = \"sparse_99\"",
        "[[run.data.sparse]]\nname = \"sparse_1\"\nrows = 5",
        "[[run.data.label]]\nname = \"conversion\"",
        "[[run.data.dense]]\nname = \"dense_1\"",
        "[process.data]\ntrain = [\"a\"]",
    ];
    let messages: String = cases.iter().map(|more| message(&format!("{WORLD}{more}"))).collect();
    expect![[r#"
        no error
        `click_rate` in [run.data.world] at line 13, column 14 is 2: it must be from 0.0001 to 0.9999
        `world` in [run.data] at line 12, column 1 is not possible: synthetic world: `vocabulary` lists 2 values for 26 sparse features; give one per feature or a single number
        unknown key `mian` in [run.data.world.signal] at line 13, column 1: did you mean `main`?
        `name` in [[run.data.sparse]] number 1 at line 13, column 8 is "sparse_99": the data has no such column; did you mean `sparse_9`?
        `rows` in [[run.data.sparse]] number 1 at line 14, column 8 is given: the world says it; only `table` and `pooling` may be changed here
        `name` in [[run.data.label]] number 1 at line 13, column 8 is "conversion": the data has no such column; known are `click`
        `dense` in [run.data] at line 12, column 1 is given: the world has its own dense columns; leave it out
        `train` in [process.data] at line 13, column 9 is ["a"]: a synthetic world needs no files; leave it out
    "#]].assert_eq(&messages);
}

#[test]
fn criteo_brings_its_columns() {
    let criteo = WORLD.replace("synthetic", "criteo") + "[process.data]\ntrain = [\"a\"]\n";
    let cases =
        ["", "[run.tables]\nrows = 1000", "[run.tables]\nrows = 1000\n[[run.data.sparse]]\nname = \"C27\""];
    let messages: String = cases.iter().map(|more| message(&format!("{criteo}{more}"))).collect();
    expect![[r#"
        missing key `rows` in [run.tables] at line 2, column 2: table `C1` needs a number of rows: here for all tables, such as rows = 100_000
        no error
        `name` in [[run.data.sparse]] number 1 at line 17, column 8 is "C27": the data has no such column; did you mean `C2`?
    "#]].assert_eq(&messages);
}

/// Whatever a text is cut or changed into, reading it ends with a job or an error.
#[test]
fn no_text_makes_the_reader_panic() {
    for (index, _) in JOB.char_indices() {
        message(&JOB[..index]);
        for replacement in ["\u{e9}", "[", "\"", "\n", "-1", "1e400"] {
            message(&format!("{}{replacement}{}", &JOB[..index], &JOB[index + 1..]));
        }
    }
}

#[test]
fn keys_of_own_data_that_cannot_work() {
    let csv = "kind = \"csv\"";
    let timed = |rest: &str| format!("{csv}\ntime = \"at\"\n{rest}");
    let cases = [
        (csv, timed("split = { kind = \"by_time\", valid_from = \"2026-11-18\", test_from = 9 }")),
        (csv, timed("split = { kind = \"by_time\", valid_from = \"2026-11-18T00:00:00Z\", test_from = 9 }")),
        (csv, timed("split = { kind = \"by_time\", valid_from = 10, test_from = 9 }")),
        (csv, format!("{csv}\ntime_unit = \"seconds\"")),
        (csv, format!("{csv}\noptional = [\"usr\"]")),
        (csv, timed("optional = [\"at\"]")),
        (csv, format!("{csv}\nmissing_values = [\" NA\"]")),
        (csv, "kind = \"parquet\"\nquotes = false".to_owned()),
        ("rows = 500", "rows = 500\nkeep = \"last\"".to_owned()),
        ("rows = 500", "rows = 500\nseparator = \";\"".to_owned()),
        ("learning_rate = 0.1", "learning_rate = 1e38".to_owned()),
        ("[run.sparse]\nlearning_rate = 0.1\n", String::new()),
    ];
    let cases: Vec<(&str, &str)> = cases.iter().map(|(from, to)| (*from, &**to)).collect();
    check(
        &cases,
        expect![[r#"
        `valid_from` in [run.data.split] at line 8, column 42 is "2026-11-18": it must be a whole number as in the time column, or a date with its zone such as "2026-11-18T00:00:00Z"
        `valid_from` in [run.data.split] at line 8, column 42 is "2026-11-18T00:00:00Z": a date needs run.data.time_unit, which says what the time column counts, such as time_unit = "seconds"
        `test_from` in [run.data.split] at line 8, column 58 is 9: it must not be before valid_from, 10
        `time_unit` in [run.data] at line 7, column 13 is given: it says what run.data.time counts; leave it out, or name the column
        `optional[0]` in [run.data] at line 7, column 13 is "usr": the job reads no such column; did you mean `user`?
        `optional[0]` in [run.data] at line 8, column 13 is "at": it is run.data.time, which every row must have
        `missing_values[0]` in [run.data] at line 7, column 19 is " NA": write the word without blanks around it; an empty cell is missing anyway
        `quotes` in [run.data] at line 7, column 10 is false: it has a meaning for kind = "csv" only; leave it out
        `keep` in [[run.data.sparse]] number 2 at line 22, column 8 is given: a cell holds one id unless list = true
        `separator` in [[run.data.sparse]] number 2 at line 22, column 13 is ";": it has a meaning with list = true only; leave it out
        `learning_rate` in [run.sparse] at line 32, column 17 is 100000000000000000000000000000000000000: it must be at most 1000000; 0.01 to 0.1 is a usual start
        missing key `learning_rate` in [run.sparse], which the file does not have: it says the peak learning rate
    "#]],
    );
}
