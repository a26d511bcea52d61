use super::*;

fn parse(text: &str) -> WorldSpec {
    toml::from_str(text).unwrap()
}

fn complaint(text: &str) -> String {
    parse(text).check().unwrap_err().to_string()
}

#[test]
fn every_ready_world_passes_its_own_check_and_survives_toml() {
    for world in [
        WorldSpec::default(),
        WorldSpec::linear(),
        WorldSpec::factorization_machine(),
        WorldSpec::planted_groups(),
        WorldSpec::live(),
    ] {
        world.check().unwrap();
        assert_eq!(parse(&toml::to_string(&world).unwrap()), world);
    }
}

#[test]
fn missing_keys_take_their_defaults() {
    assert_eq!(parse(""), WorldSpec::default());
    let world = parse("vocabulary = [10, 20]\nsparse_count = 2\nhidden_groups = 1\nacross_pairs = 0");
    assert_eq!((world.vocabulary.at(0), world.vocabulary.at(1)), (10, 20));
    assert_eq!(parse("[signal]\nmain = 2").signal.inside, Signal::default().inside);
}

#[test]
fn an_unknown_key_or_a_wrong_type_is_refused() {
    let unknown = toml::from_str::<WorldSpec>("vocabulery = 3").unwrap_err().to_string();
    assert!(unknown.contains("unknown field `vocabulery`"), "{unknown}");
    let wrong = toml::from_str::<WorldSpec>("vocabulary = \"many\"").unwrap_err().to_string();
    assert!(wrong.contains("one number for all features or a list"), "{wrong}");
}

#[test]
fn complaints_name_the_key_the_value_and_the_limit() {
    assert_eq!(
        complaint("click_rate = 1.5"),
        "synthetic world: `click_rate` is 1.5, it must be from 0.0001 to 0.9999"
    );
    assert_eq!(
        complaint("click_rate = nan"),
        "synthetic world: `click_rate` is NaN, it must be from 0.0001 to 0.9999"
    );
    assert_eq!(
        complaint("vocabulary = [10, 20]"),
        "synthetic world: `vocabulary` lists 2 values for 26 sparse features; give one per feature or a single number"
    );
    assert_eq!(
        complaint("teacher_only = [\"sparse_27\"]"),
        "synthetic world: `teacher_only` names `sparse_27`, but the sparse features are `sparse_1` to `sparse_26`"
    );
    assert_eq!(
        complaint("turnover = 3.5\nvocabulary = 4"),
        "synthetic world: `vocabulary of sparse_1` is 4, it must be from 5 to 4294967295"
    );
    assert_eq!(
        complaint("hidden_groups = 26"),
        "synthetic world: `signal.inside` is 0.8, but 26 features in 26 groups leave no pair inside; \
         set it to 0 or lower `hidden_groups`"
    );
    assert_eq!(
        complaint("[[domains]]\nname = \"a\"\n[[domains]]\nname = \"a\""),
        "synthetic world: two domains are named `a`; names must differ"
    );
    assert_eq!(
        complaint("[[domains]]\nname = \"a\"\nabsent = [\"price\"]"),
        "synthetic world: `domains.a.absent` names `price`, but the sparse features are `sparse_1` to `sparse_26`"
    );
    assert_eq!(
        complaint("[conversion]\nrate = 0"),
        "synthetic world: `conversion.rate` is 0, it must be from 0.0001 to 0.9999"
    );
}

#[test]
fn a_student_has_fewer_columns_than_a_teacher() {
    let world = WorldSpec::live();
    let (student, teacher) = (world.columns(View::Student), world.columns(View::Teacher));
    assert_eq!((student.sparse.len(), student.dense.len()), (14, 6));
    assert_eq!((teacher.sparse.len(), teacher.dense.len()), (16, 8));
    assert_eq!(student.labels.len(), 2);
    assert_eq!(teacher.sparse[15].name, "sparse_16");
    assert_eq!(teacher.sparse[15].row_count, 20_000);
}
