//! What a job becomes: defaults filled in, columns brought by the data, the text written back, the hash.

use campanile_spec::{
    NetworkSpec, RowInit, TableId,
    config::Job,
    data::{BagShape, DenseTransform, IdMap, Keep, SourceSpec, SplitSpec},
    world::WorldSpec,
};
use expect_test::expect;

const REST: &str = "
[run.sparse]
learning_rate = 0.1
[run.dense]
learning_rate = 0.1
";

fn job(text: &str) -> Job {
    Job::parse(&format!("{text}{REST}")).unwrap_or_else(|error| panic!("{error}"))
}

const CRITEO: &str = "
[run.data]
kind = \"criteo\"
[run.tables]
rows = 1000
[process.data]
train = [\"day_0.gz\"]
";

#[test]
fn criteo_needs_no_columns() {
    let job = job(&format!("{CRITEO}[run.model]\nkind = \"dlrm\"\nbottom = [16]\ntop = [16]"));
    let columns = &job.run.data.columns;
    assert_eq!(job.run.data.source, SourceSpec::CriteoTsv);
    assert_eq!(columns.labels[0].name, "label");
    assert_eq!((columns.dense.len(), columns.sparse.len()), (13, 26));
    assert!(columns.dense.iter().all(|column| column.transforms == [DenseTransform::Log1p]));
    assert!(columns.sparse.iter().all(|column| column.row_count == 1000));
    assert_eq!(job.run.model.tables.len(), 26);
    assert_eq!(job.run.model.tables[25].name, "C26");
    assert_eq!(job.run.model.tables[0].dim, 16);
    assert_eq!(job.run.grain_count, 8);
}

#[test]
fn a_listed_criteo_column_replaces_the_one_of_its_name() {
    let more = "
[[run.data.sparse]]
name = \"C3\"
map = { kind = \"vocabulary\", min_count = 4 }
rows = 50
[run.model]
kind = \"mlp\"
hidden = [8]";
    let job = job(&format!("{CRITEO}{more}"));
    assert_eq!(job.run.data.columns.sparse[2].map, IdMap::Vocabulary { min_count: 4 });
    let rows: Vec<u64> = job.run.model.tables.iter().map(|table| table.row_count).collect();
    assert_eq!(rows.iter().filter(|&&rows| rows == 50).count(), 1);
    assert_eq!(rows[2], 50);
}

#[test]
fn logistic_regression_has_one_weight_per_row() {
    let job = job(&format!("{CRITEO}[run.model]\nkind = \"logistic_regression\""));
    assert_eq!(job.run.model.network, NetworkSpec::LogisticRegression);
    assert!(job.run.model.tables.iter().all(|table| table.dim == 1 && table.init == RowInit::Zeros));
}

#[test]
fn two_tasks_need_no_word_on_the_width_of_rows() {
    for (kind, dim) in [("logistic_regression", 2), ("factorization_machine", 16)] {
        let text = SHARED.replace("kind = \"dcn\"\ndeep = [8]", &format!("kind = \"{kind}\""));
        let text = text.replace("weight = 2", "weight = 2\n[[run.data.label]]\nname = \"sale\"");
        assert!(job(&text).run.model.tables.iter().all(|table| table.dim == dim), "{kind}");
    }
}

#[test]
fn dates_words_for_missing_values_and_other_keys_of_own_data_read_back() {
    let keys = "kind = \"csv\"\nquotes = false\nmissing_values = [\"NA\", \"\\\\N\"]\noptional = [\"age\"]\n\
                time = \"at\"\ntime_unit = \"seconds\"\n\
                split = { kind = \"by_time\", valid_from = 2026-11-18T00:00:00+01:00, test_from = \"2026-11-19T00:00:00Z\" }";
    let text = SHARED.replace("kind = \"parquet\"", keys);
    let text = text.replace("list = true", "list = true\nkeep = \"last\"\nseparator = \";\"");
    let job = job(&text);
    let columns = &job.run.data.columns;
    assert_eq!(job.run.data.source, SourceSpec::Csv { delimiter: ',', quotes: false });
    assert_eq!((columns.missing_values.join(" "), &*columns.optional[0]), ("NA \\N".to_owned(), "age"));
    assert_eq!((columns.sparse[0].keep, columns.sparse[1].keep), (Keep::Last, Keep::First));
    let SplitSpec::ByTime { valid_from, test_from } = &job.run.data.split else { panic!("by time") };
    assert_eq!(
        [valid_from, test_from].map(|moment| moment.count(columns.time_unit)),
        [Some(1_794_956_400), Some(1_795_046_400)]
    );
    let text = job.effective_toml();
    assert!(text.contains("valid_from = \"2026-11-17T23:00:00Z\""), "{text}");
    assert_eq!(Job::parse(&text).as_ref(), Ok(&job));
    // A text cell of Parquet files is cut, too.
    let parquet = SHARED.replace("list = true", "list = true\nseparator = \" \"");
    let job = Job::parse(&format!("{parquet}{REST}")).unwrap();
    assert_eq!(job.run.data.columns.sparse[0].shape, BagShape::List { separator: ' ' });
    assert_eq!(Job::parse(&job.effective_toml()).as_ref(), Ok(&job));
}

const SHARED: &str = "
[run.data]
kind = \"parquet\"
[[run.data.label]]
name = \"click\"
weight = 2
[[run.data.sparse]]
name = \"history\"
table = \"item\"
list = true
pooling = \"mean\"
[[run.data.sparse]]
name = \"item\"
rows = 400
[[run.data.sparse]]
name = \"age\"
map = { kind = \"bucketise\", boundaries = [18, 30.5] }
[run.model]
kind = \"dcn\"
deep = [8]
[process.data]
train = [\"a.parquet\", \"b \\\"c\\\".parquet\"]
";

#[test]
fn features_share_a_table() {
    let job = job(SHARED);
    let model = &job.run.model;
    let tables: Vec<(&str, u64)> = model.tables.iter().map(|table| (&*table.name, table.row_count)).collect();
    assert_eq!(tables, [("item", 400), ("age", 3)]);
    let of_feature: Vec<TableId> = model.features.iter().map(|feature| feature.table).collect();
    assert_eq!(of_feature, [TableId(0), TableId(0), TableId(1)]);
    assert_eq!(job.run.data.columns.sparse[0].bag_max, 256);
    assert_eq!(job.run.data.columns.sparse[0].row_count, 400);
    assert_eq!(model.tables[0].init, RowInit::Uniform { bound: 0.05 });
    assert_eq!(model.tasks[0].weight, 2.0);
}

#[test]
fn the_effective_job_has_every_key_and_reads_back() {
    let job = job(SHARED);
    let text = job.effective_toml();
    assert_eq!(Job::parse(&text).as_ref(), Ok(&job));
    expect![[r#"
        [run]
        seed = 1
        batch_size = 2048
        grains = 8
        epochs = 1
        steps_max = 0
        precision = "f32"
        corrections = "ignore"

        [run.data]
        kind = "parquet"
        split = "by_file"
        on_bad_row = "fail"
        shuffle = true
        unknown_share = 0.01
        dense = []

        [[run.data.label]]
        name = "click"
        weight = 2.0

        [[run.data.sparse]]
        name = "history"
        map = { kind = "hash", salt = 0 }
        table = "item"
        list = true
        bag_max = 256
        pooling = "mean"

        [[run.data.sparse]]
        name = "item"
        map = { kind = "hash", salt = 0 }
        table = "item"
        list = false
        bag_max = 1
        pooling = "sum"

        [[run.data.sparse]]
        name = "age"
        map = { kind = "bucketise", boundaries = [18.0, 30.5] }
        table = "age"
        list = false
        bag_max = 1
        pooling = "sum"

        [run.tables]
        format = "f32"

        [[run.table]]
        name = "item"
        rows = 400
        dim = 16
        format = "f32"
        init = { kind = "uniform", bound = 0.05 }

        [[run.table]]
        name = "age"
        rows = 3
        dim = 16
        format = "f32"
        init = { kind = "uniform", bound = 0.57735026 }

        [run.model]
        kind = "dcn"
        bottom = []
        cross_layers = 3
        cross_rank = "full"
        structure = "parallel"
        deep = [8]
        heads = "shared"

        [run.sparse]
        optimizer = { kind = "rowwise_adagrad", epsilon = 1e-8, initial = 0.0 }
        learning_rate = 0.1
        schedule = "constant"
        l2 = 0.0
        row_norm_max = 0.0

        [run.dense]
        optimizer = { kind = "sgd", momentum = 0.0 }
        learning_rate = 0.1
        schedule = "constant"
        l2 = 0.0
        norm_max = 0.0

        [run.distil]
        method = "none"
        weight = 1.0
        label_scale = 1.0
        gradient_scale = 1.0
        fade_seconds = 0.0

        [run.distil.adapter]
        weight = 1.0
        hidden = 0
        segments = 0
        freshness = false
        optimizer = { kind = "adagrad", epsilon = 1e-8, initial = 0.0 }
        learning_rate = 0.05

        [run.exchange]
        forward = "f32"
        backward = "f32"

        [run.evaluate]
        every_steps = 0
        samples_max = 0
        window_steps = 100

        [process]
        threads = 0
        cache_dir = "runs/cache"
        output_dir = "runs/job"
        checkpoint_every_steps = 0
        checkpoint_every_minutes = 10
        checkpoints_kept = 2
        prep_memory_mib = 512
        table_memory_mib = 0
        batches_ahead = 4
        pipeline = "auto"

        [process.data]
        train = ["a.parquet", "b \"c\".parquet"]
        valid = []
        test = []

        [process.publish]
        model = "model"
        every_steps = 0
        every_minutes = 0
        keep = 5
        deltas = true
        gate_rows = 100000
        ne_margin = 0.002
        calibration_margin = 0.05
    "#]]
    .assert_eq(&text);
}

#[test]
fn the_hash_sees_the_run_and_nothing_else() {
    let first = job(SHARED);
    assert_eq!(first.run.hash().len(), 32);
    let process = SHARED.replace("a.parquet", "elsewhere.parquet") + "[process]\nthreads = 2\n";
    assert_eq!(first.run.hash(), job(&process).run.hash());
    // Writing a default out changes nothing; changing any key does.
    assert_eq!(first.run.hash(), job(&format!("[run]\nseed = 1\n{SHARED}")).run.hash());
    for (old, new) in
        [("= 400", "= 401"), ("30.5", "30.25"), ("\"mean\"", "\"sum\""), ("deep = [8]", "deep = [9]")]
    {
        assert!(SHARED.contains(old), "{old}");
        assert_ne!(first.run.hash(), job(&SHARED.replace(old, new)).run.hash(), "{old} {new}");
    }
    assert_ne!(first.run.hash(), job(&format!("[run]\nseed = 2\n{SHARED}")).run.hash());
}

#[test]
fn towers_without_modules_are_the_same_run() {
    let given = |variant: &str, rate: &str| {
        let list = "[[run.towers.tower]]\nname = \"a\"\nfeatures = [\"sparse_2\", \"sparse_1\", \"sparse_4\", \"sparse_3\"]";
        world(&format!(
            "[run.towers]\nvariant = \"{variant}\"\n{rate}module = {{ kind = \"ensemble\", width = 2 }}\n{list}\n\
             [run.data.world]\nsparse_count = 4\nhidden_groups = 2\nacross_pairs = 1\n"
        ))
    };
    let none = world("[run.data.world]\nsparse_count = 4\nhidden_groups = 2\nacross_pairs = 1\n");
    let towers = |variant: &str| given(variant, "");
    let [flat, sptt, modules] = ["flat", "sptt", "towers"].map(towers);
    assert_eq!([flat.run.hash(), sptt.run.hash()], [none.run.hash(), none.run.hash()]);
    assert_ne!(modules.run.hash(), flat.run.hash());
    // Modules that learn at a rate of their own make another run; at the common rate it need not be said.
    let [slow, flat_slow] = ["towers", "flat"].map(|variant| given(variant, "module_rate = 0.1\n"));
    assert_ne!(slow.run.hash(), modules.run.hash());
    assert_eq!(given("towers", "module_rate = 1.0\n").run.hash(), modules.run.hash());
    assert_eq!(flat_slow.run.hash(), none.run.hash());
    assert_eq!(slow.run.model.rate_shares(100), [(0..8, 0.1), (8..100, 1.0)]);
    for job in [&flat, &sptt, &modules, &slow] {
        assert_eq!(Job::parse(&job.effective_toml()).unwrap(), *job);
    }
    let ratios = [&none, &flat, &sptt, &modules].map(|job| job.run.model.compression_ratio());
    assert_eq!(ratios, [1.0, 1.0, 1.0, 2.0]);
    assert_eq!(modules.run.model.towers.list[0].features, [0, 1, 2, 3]);
}

fn world(section: &str) -> Job {
    job(&format!(
        "[run.data]\nkind = \"synthetic\"\n[run.tables]\ndim = 4\n[run.model]\nkind = \"mlp\"\nhidden = [8]\n{section}"
    ))
}

fn world_of(job: &Job) -> &WorldSpec {
    match &job.run.data.source {
        SourceSpec::Synthetic(world) => world,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_preset_is_a_ready_world() {
    for (name, ready) in [
        ("linear", WorldSpec::linear()),
        ("factorization_machine", WorldSpec::factorization_machine()),
        ("planted_groups", WorldSpec::planted_groups()),
        ("live", WorldSpec::live()),
    ] {
        assert_eq!(*world_of(&world(&format!("[run.data.world]\npreset = \"{name}\""))), ready);
    }
}

#[test]
fn keys_lie_over_a_preset() {
    let job = world(
        "[run.data.world]\npreset = \"live\"\nclick_rate = 0.2\ndomains = [{ name = \"one\" }]\n\
         [run.data.world.signal]\nmain = 2\n[run.data.world.conversion]\nrate = 0.4",
    );
    let (found, live) = (world_of(&job), WorldSpec::live());
    assert_eq!((found.click_rate, found.signal.main), (0.2, 2.0));
    assert_eq!((found.signal.domain, found.drift), (live.signal.domain, live.drift));
    assert_eq!((found.domains.len(), found.domains[0].name.as_str()), (1, "one"));
    assert_eq!(found.conversion.as_ref().map(|conversion| conversion.rate), Some(0.4));
    let saved = job.effective_toml();
    assert!(!saved.contains("preset"), "{saved}");
    assert_eq!(Job::parse(&saved).unwrap(), job);
}

#[test]
fn a_teacher_has_the_inputs_that_students_lack() {
    let columns = |view: &str| {
        let job = world(&format!("[run.data.world]\npreset = \"live\"\n{view}"));
        assert_eq!(job.run.model.features.len(), job.run.data.columns.sparse.len());
        (job.run.data.columns.sparse.len(), job.run.model.dense_count)
    };
    assert_eq!(columns(""), (14, 6));
    assert_eq!(columns("view = \"student\""), (14, 6));
    assert_eq!(columns("view = \"teacher\""), (16, 8));
}

/// What is read back from a checkpoint must be what a run began with, however large its batches.
#[test]
fn the_largest_batch_has_grains_that_a_job_file_can_say() {
    let text = CRITEO.replace("[run.data]", "[run]\nbatch_size = 16_777_216\n[run.data]");
    let job = job(&format!("{text}[run.model]\nkind = \"dlrm\"\nbottom = [16]\ntop = [16]"));
    assert_eq!(job.run.grain_count, 1 << 16);
    assert_eq!(Job::parse(&job.effective_toml()), Ok(job));
}
