//! Every way of sending features gives the bits of the bare scorer.

use campanile_serve::{Options, Snapshot};
use campanile_server::{
    client::{GrpcClient, RestClient, floats},
    proto::{InferTensorContents, ModelInferRequest, model_infer_request::InferInputTensor},
};
use serde_json::{Value, json};

use crate::fixture::{
    Column, Settings, Trained, ask, binary_request, bits, columns, lengths, offline, read_binary, task,
};

fn json_value(column: &Column) -> Value {
    let words = column.bytes.as_chunks::<4>().0.iter();
    let data: Vec<Value> = match column.datatype {
        "FP32" => words.map(|bytes| json!(f32::from_le_bytes(*bytes))).collect(),
        _ => words.map(|bytes| json!(u32::from_le_bytes(*bytes))).collect(),
    };
    json!({ "name": column.name, "datatype": column.datatype, "shape": column.shape, "data": data })
}

fn grpc_request(columns: &[Column], typed: bool) -> ModelInferRequest {
    let input = |column: &Column| {
        let words = column.bytes.as_chunks::<4>().0.iter();
        let contents = match column.datatype {
            "FP32" => InferTensorContents {
                fp32_contents: words.map(|bytes| f32::from_le_bytes(*bytes)).collect(),
                ..InferTensorContents::default()
            },
            _ => InferTensorContents {
                uint_contents: words.map(|bytes| u32::from_le_bytes(*bytes)).collect(),
                ..InferTensorContents::default()
            },
        };
        InferInputTensor {
            name: column.name.clone(),
            datatype: column.datatype.to_owned(),
            shape: column.shape.iter().map(|length| *length as i64).collect(),
            contents: typed.then_some(contents),
            ..InferInputTensor::default()
        }
    };
    ModelInferRequest {
        model_name: "tiny".to_owned(),
        inputs: columns.iter().map(input).collect(),
        raw_input_contents: if typed {
            Vec::new()
        } else {
            columns.iter().map(|column| column.bytes.clone()).collect()
        },
        ..ModelInferRequest::default()
    }
}

#[test]
fn json_binary_and_grpc_give_the_bits_of_the_bare_scorer() {
    let trained = Trained::tiny();
    let server = Settings::new().start();
    let snapshot = Snapshot::open(trained.newest(), "tiny", &Options::default()).unwrap();
    let tasks: Vec<&str> = snapshot.tasks().collect();
    let version = snapshot.version().number.to_string();
    let mut rest = RestClient::connect(server.http).unwrap();
    let mut grpc = GrpcClient::connect(server.grpc.unwrap()).unwrap();
    for count in [1, 2, 63, 300] {
        let batch = trained.samples(count);
        let wanted = offline(trained.newest(), &batch);
        let check = |name: &str, values: &[f32], how: &str| {
            let (place, all) = match name.strip_suffix(".logit") {
                Some(task) => (tasks.iter().position(|known| *known == task), &wanted.logits),
                None => (tasks.iter().position(|known| *known == name), &wanted.probabilities),
            };
            let wanted = task(all, place.unwrap(), tasks.len());
            assert_eq!(bits(values), bits(&wanted), "{how}, {count} samples, {name}");
        };
        let columns = columns(&batch, snapshot.inputs());
        let answer = rest.send(&binary_request("/v2/models/tiny/infer", &columns)).unwrap();
        let (named, outputs) = read_binary(&answer);
        assert_eq!((named, outputs.len()), (version.clone(), 2 * tasks.len()));
        outputs.iter().for_each(|(name, values)| check(name, values, "binary"));
        let body = json!({ "inputs": columns.iter().map(json_value).collect::<Vec<_>>() }).to_string();
        let (status, answer) =
            ask(&server, "POST", &format!("/v2/models/tiny/versions/{version}/infer"), &body);
        assert_eq!(status, 200, "{answer}");
        for output in answer["outputs"].as_array().unwrap() {
            let values: Vec<f32> = serde_json::from_value(output["data"].clone()).unwrap();
            check(output["name"].as_str().unwrap(), &values, "json");
        }
        for typed in [false, true] {
            let answer = grpc.infer(&grpc_request(&columns, typed), None).unwrap();
            assert_eq!(answer.model_version, version);
            for (output, raw) in answer.outputs.iter().zip(&answer.raw_output_contents) {
                check(&output.name, &floats(raw), "grpc");
            }
        }
    }
    // Who never reads hears no goodbye, and would be waited for.
    drop(grpc);
    assert!(server.stop());
}

/// The ids and rows of a synthetic world are the same numbers, so raw features can be checked against prepared ones.
#[test]
fn raw_features_by_name_and_the_users_side_once() {
    let trained = Trained::tiny();
    let server = Settings::new().start();
    let snapshot = Snapshot::open(trained.newest(), "tiny", &Options::default()).unwrap();
    let inputs = snapshot.inputs();
    let batch = trained.samples(5);
    let wanted = offline(trained.newest(), &batch);
    let first_task = snapshot.tasks().next().unwrap().to_owned();
    let mut named = Vec::new();
    for column in 0..inputs.dense_count() {
        let values: Vec<f32> =
            batch.dense.iter().skip(column).step_by(inputs.dense_count()).copied().collect();
        named.push(json!({ "name": inputs.name(campanile_serve::Input::Dense(column)), "datatype": "FP32",
            "shape": [5, 1], "data": values }));
    }
    for feature in 0..inputs.feature_count() {
        let name = inputs.name(campanile_serve::Input::Sparse(feature));
        let rows = batch.bags.feature(feature).rows;
        let ids: Vec<String> = rows.iter().map(u32::to_string).collect();
        named.push(json!({ "name": name, "datatype": "BYTES", "shape": [ids.len()], "data": ids }));
        named.push(json!({ "name": format!("{name}.lengths"), "datatype": "INT32", "shape": [5],
            "data": lengths(&batch, feature) }));
    }
    let body = json!({ "id": "my-id", "inputs": named, "outputs": [{ "name": first_task }] }).to_string();
    let (status, answer) = ask(&server, "POST", "/v2/models/tiny/infer", &body);
    assert_eq!((status, &answer["id"]), (200, &json!("my-id")), "{answer}");
    assert_eq!(answer["outputs"].as_array().unwrap().len(), 1);
    let values: Vec<f32> = serde_json::from_value(answer["outputs"][0]["data"].clone()).unwrap();
    assert_eq!(bits(&values), bits(&task(&wanted.probabilities, 0, wanted.task_count)));

    // One user, three candidates: what is given once counts for all.
    let dense = json!({ "name": "prepared_dense", "datatype": "FP32", "shape": [1, inputs.dense_count()],
        "data": vec![0.5; inputs.dense_count()] });
    let feature = |place: usize, ids: Value, shape: Value| {
        let name = inputs.name(campanile_serve::Input::Sparse(place));
        json!({ "name": name, "datatype": "INT64", "shape": shape, "data": ids })
    };
    let others = [feature(1, json!([3, 4]), json!([1, 2])), feature(2, json!([1]), json!([1]))];
    let last = feature(3, json!([2]), json!([1]));
    let scores = |candidates: &[i64]| {
        let own = feature(0, json!(candidates), json!([candidates.len()]));
        let body = json!({ "inputs": [dense, own, others[0], others[1], last] }).to_string();
        let (status, answer) = ask(&server, "POST", "/v2/models/tiny/infer", &body);
        assert_eq!(status, 200, "{answer}");
        serde_json::from_value::<Vec<f32>>(answer["outputs"][0]["data"].clone()).unwrap()
    };
    // A missing id among whole numbers is null, as an empty text is.
    let given = |datatype: &str, ids: Value| {
        let own = json!({ "name": inputs.name(campanile_serve::Input::Sparse(0)), "datatype": datatype,
            "shape": [2], "data": ids });
        let body = json!({ "inputs": [dense, own, others[0], others[1], last] }).to_string();
        let (status, answer) = ask(&server, "POST", "/v2/models/tiny/infer", &body);
        assert_eq!(status, 200, "{answer}");
        answer["outputs"][0]["data"].clone()
    };
    assert_eq!(given("INT64", json!([7, null])), given("BYTES", json!(["7", ""])));
    let together = scores(&[1, 2, 3]);
    let alone: Vec<f32> = [1, 2, 3].iter().flat_map(|id| scores(&[*id])).collect();
    assert_eq!(bits(&together), bits(&alone));
    assert!(server.stop());
}

#[test]
fn what_is_wrong_with_a_request_is_told() {
    let server = Settings::new().start();
    let input = |name: &str, datatype: &str, shape: Value, data: Value| {
        json!({ "inputs": [{ "name": name, "datatype": datatype, "shape": shape, "data": data }] })
            .to_string()
    };
    let cases = [
        ("/v2/models/other/infer", "{\"inputs\":[]}".to_owned(), 404, "there is no model `other`"),
        ("/v2/models/tiny/versions/1/infer", "{\"inputs\":[]}".to_owned(), 404, "not in version `1`"),
        ("/v2/models/tiny/infer", "{\"inputs\":[]}".to_owned(), 400, "is missing"),
        ("/v2/models/tiny/infer", "nonsense".to_owned(), 400, "not valid"),
        (
            "/v2/models/tiny/infer",
            input("who", "FP32", json!([1]), json!([1])),
            400,
            "the model has no input `who`",
        ),
        (
            "/v2/models/tiny/infer",
            input("dense_1", "BYTES", json!([1]), json!(["x"])),
            400,
            "`x`: not a number",
        ),
        (
            "/v2/models/tiny/infer",
            input("dense_1", "FP32", json!([1, 2]), json!([1, 2])),
            400,
            "[samples] or [samples, 1]",
        ),
        ("/v2/models/tiny/infer", input("sparse_1", "INT64", json!([1]), json!([40000])), 400, "is missing"),
        (
            "/v2/models/tiny/infer",
            input("sparse_1.lengths", "INT64", json!([1]), json!([1])),
            400,
            "which is not there",
        ),
        (
            "/v2/models/tiny/infer",
            input("sparse_1.rows", "INT64", json!([1]), json!([-1])),
            400,
            "element 0 is -1",
        ),
        (
            "/v2/models/tiny/infer",
            input("dense", "FP32", json!([9000, 2]), json!(vec![0; 18000])),
            400,
            "9000 is more than the limit of 8192",
        ),
        ("/v2/nothing", String::new(), 404, "nothing here"),
    ];
    for (path, body, wanted, words) in cases {
        let (status, answer) = ask(&server, "POST", path, &body);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == wanted && error.contains(words), "{path} {body:.200}: {status} {error}");
    }
    let two = json!({ "inputs": [
        { "name": "dense_1", "datatype": "FP32", "shape": [3], "data": [1, 2, 3] },
        { "name": "dense_2", "datatype": "FP32", "shape": [2], "data": [1, 2] } ] });
    let (_, answer) = ask(&server, "POST", "/v2/models/tiny/infer", &two.to_string());
    assert!(answer["error"].as_str().unwrap().contains("`dense_2` is for 2 samples, but `dense_1` for 3"));
    let (status, answer) = ask(
        &server,
        "POST",
        "/v2/models/tiny/infer",
        &json!({ "inputs": [], "outputs": [{ "name": "y" }] }).to_string(),
    );
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("has no output `y`"), "{answer}");
    assert_eq!(ask(&server, "POST", "/v2/repository/models/tiny/unload", "").0, 403);
    assert!(server.stop());
}
