use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    body_bytes_max: 1 << 20,
    header_bytes_max: 1 << 12,
    tensors_max: 4,
    elements_max: 1000,
    samples_max: 100,
    id_bytes_max: 16,
};

fn body(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn one(datatype: &str, shape: &str, data: &str) -> Result<Tensor, String> {
    let text =
        format!(r#"{{"inputs":[{{"name":"x","shape":{shape},"data":{data},"datatype":"{datatype}"}}]}}"#);
    let request = parse(&body(&text), None, &LIMITS).map_err(|error| error.to_string())?;
    Ok(request.inputs.into_iter().next().unwrap())
}

#[test]
fn data_may_be_flat_or_nested_and_its_type_may_come_last() {
    let flat = one("INT64", "[2,2]", "[1,2,3,-4]").unwrap();
    assert_eq!(flat.integers().unwrap(), [1, 2, 3, -4]);
    assert_eq!(one("INT64", "[2,2]", "[[1,2],[3,-4]]").unwrap(), flat);
    assert_eq!(one("FP32", "[3]", "[1,2.5,-1e3]").unwrap().floats().unwrap(), [1.0, 2.5, -1000.0]);
    assert_eq!(one("BYTES", "[2]", r#"["a",""]"#).unwrap().strings().unwrap(), [&b"a"[..], b""]);
    assert_eq!(one("BOOL", "[3]", "[true,false,1]").unwrap().integers().unwrap(), [1, 0, 1]);
    assert_eq!(one("UINT8", "[0]", "[]").unwrap().element_count(), 0);
}

#[test]
fn null_is_a_missing_value_where_a_type_can_say_so() {
    assert!(one("FP32", "[1]", "[null]").unwrap().floats().unwrap()[0].is_nan());
    assert_eq!(one("BYTES", "[1]", "[null]").unwrap().strings().unwrap(), [b""]);
    let whole = one("INT64", "[3]", "[7,null,-9]").unwrap();
    assert_eq!(whole.strings().unwrap(), [&b"7"[..], b"", b"-9"]);
    assert!(one("UINT8", "[2]", "[null,300]").unwrap_err().contains("300 is no UINT8"));
    assert!(one("BOOL", "[1]", "[null]").unwrap_err().contains("null is no BOOL"));
}

#[test]
fn what_is_wrong_is_named() {
    for (datatype, shape, data, wanted) in [
        ("FP31", "[1]", "[1]", "there is no datatype `FP31`"),
        ("INT8", "[1]", "[128]", "128 is no INT8"),
        ("UINT32", "[1]", "[-1]", "-1 is no UINT32"),
        ("INT64", "[1]", "[1.5]", "1.5 is no INT64"),
        ("INT64", "[1]", "[\"7\"]", "\"7\" is no INT64"),
        ("BYTES", "[1]", "[7]", "7 is no BYTES"),
        ("FP16", "[1]", "[7]", "7 is no FP16"),
        ("FP32", "[2]", "[1]", "needs 2 elements, but 1 elements came"),
        ("FP32", "[1]", "[1,2]", "more elements than the shape says"),
        ("FP32", "[1]", "1", "the data is not an array"),
        ("FP32", "[-1]", "[1]", "no shape"),
        ("FP32", "[1,1,1,1,1,1,1,1,1]", "[1]", "no shape"),
        ("FP32", "[2000]", "[1]", "2000 is more than the limit of 1000"),
        ("FP32", "[0,9223372036854775807,9223372036854775807]", "[]", "more than the limit of 1000"),
        ("FP32", "[1]", "[[[[[[[[[1]]]]]]]]]", "too deep"),
    ] {
        let error = one(datatype, shape, data).unwrap_err();
        assert!(error.contains(wanted) && error.contains("`x`"), "{datatype} {shape} {data}: {error}");
    }
}

#[test]
fn a_request_as_a_whole_has_limits_too() {
    let input = |name: &str| format!(r#"{{"name":"{name}","datatype":"FP32","shape":[1],"data":[1]}}"#);
    for (text, wanted) in [
        (String::new(), "not valid"),
        ("{}".to_owned(), "missing field `inputs`"),
        (format!(r#"{{"inputs":[{},{}]}}"#, input("a"), input("a")), "`a` stands in the request twice"),
        (format!(r#"{{"inputs":[{}]}}"#, vec![input("a"); 5].join(",")), "5 is more than the limit of 4"),
        (format!(r#"{{"id":"{}","inputs":[]}}"#, "x".repeat(17)), "17 is more than the limit of 16"),
        (r#"{"inputs":[{"name":"a","datatype":"FP32","shape":[1]}]}"#.to_owned(), "`a` has no data"),
    ] {
        let error = parse(&body(&text), None, &LIMITS).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

/// A request with two binary tensors of these sizes by the header, and these bytes after it.
fn binary(sizes: [usize; 2], bytes: &[u8]) -> (Bytes, String) {
    let input = |name: &str, size| {
        format!(
            r#"{{"name":"{name}","datatype":"FP32","shape":[1],"parameters":{{"binary_data_size":{size}}}}}"#
        )
    };
    let head = format!(r#"{{"inputs":[{},{}]}}"#, input("a", sizes[0]), input("b", sizes[1]));
    let length = head.len().to_string();
    ([head.as_bytes(), bytes].concat().into(), length)
}

#[test]
fn binary_tensors_follow_the_json_part_in_order() {
    let bytes: Vec<u8> = [1.5f32, 2.5].iter().flat_map(|value| value.to_le_bytes()).collect();
    let (message, length) = binary([4, 4], &bytes);
    let request = parse(&message, Some(&length), &LIMITS).unwrap();
    assert_eq!(request.inputs[0].floats().unwrap(), [1.5]);
    assert_eq!(request.inputs[1].floats().unwrap(), [2.5]);
    for (sizes, bytes, wanted) in [
        ([4, 4], &bytes[..7], "more than the limit of 3"),
        ([4, usize::MAX], &bytes[..], "more than the limit of 4"),
        ([4, 2], &bytes[..6], "needs 4 bytes, but 2 bytes came"),
        ([4, 4], &[0; 9][..], "1 bytes are left"),
    ] {
        let (message, length) = binary(sizes, bytes);
        let error = parse(&message, Some(&length), &LIMITS).unwrap_err().to_string();
        assert!(error.contains(wanted), "{sizes:?}: {error}");
    }
    for length in ["", "x", "-1", "99999", "18446744073709551616"] {
        assert!(matches!(parse(&message, Some(length), &LIMITS), Err(ProtocolError::HeaderLength { .. })));
    }
}

#[test]
fn strings_of_binary_tensors_stay_inside() {
    let tensor = |bytes: &'static [u8]| {
        Tensor::new("s".to_owned(), Datatype::Bytes, &[2], Bytes::from_static(bytes), &LIMITS)
    };
    assert_eq!(tensor(b"\x01\0\0\0a\0\0\0\0").unwrap().strings().unwrap(), [&b"a"[..], b""]);
    assert!(tensor(b"\x01\0\0\0a\x02\0\0\0b").unwrap_err().to_string().contains("beyond the tensor's end"));
    assert!(tensor(b"\x01\0\0\0a").unwrap_err().to_string().contains("2 strings, but 1 strings"));
    assert!(tensor(b"\xff\xff\xff\xff").is_err());
}

#[test]
fn an_answer_reads_back_as_its_floats() {
    let values = [0.1f32, f32::MIN_POSITIVE, 0.333_333_34];
    let outputs = vec![("p", &values[..], false), ("q", &values[..], true)];
    let answer = Answer { model: "m", version: "7", id: "i", outputs };
    let (body, split) = answer.write().unwrap();
    let split = split.unwrap();
    let head: serde_json::Value = serde_json::from_slice(&body[..split]).unwrap();
    let back: Vec<f32> = serde_json::from_value(head["outputs"][0]["data"].clone()).unwrap();
    assert_eq!(back, values);
    assert_eq!(head["outputs"][1]["parameters"]["binary_data_size"], 12);
    let floats: Vec<f32> = body[split..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(floats, values);
}

/// Mostly valid pieces, so that a random string gets far into the reader.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"inputs\"",
        "\"name\"",
        "\"x\"",
        "\"datatype\"",
        "\"FP32\"",
        "\"BYTES\"",
        "\"INT8\"",
        "\"shape\"",
        "\"data\"",
        "\"parameters\"",
        "\"binary_data_size\"",
        "\"id\"",
        "\"outputs\"",
        "1",
        "-1",
        "0",
        "1e400",
        "null",
        "true",
        "9223372036854775807",
        "18446744073709551616",
        "\"\\ud800\"",
        "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1],\"data\":[",
        "\"parameters\":{\"binary_data_size\":4}}",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Nothing that a client can send makes the reader panic, and what it takes is whole.
    #[test]
    fn any_bytes_are_read_or_refused(
        text in pieces(), tail in prop::collection::vec(any::<u8>(), 0..40), length in 0usize..80,
    ) {
        let message = Bytes::from([text.as_bytes(), &tail].concat());
        for header in [None, Some(text.len().to_string()), Some(length.to_string())] {
            if let Ok(request) = parse(&message, header.as_deref(), &LIMITS) {
                for tensor in &request.inputs {
                    let count = tensor.element_count();
                    prop_assert!(count <= LIMITS.elements_max);
                    prop_assert!(tensor.floats().map_or(true, |values| values.len() == count));
                    prop_assert!(tensor.integers().map_or(true, |values| values.len() == count));
                    prop_assert!(tensor.strings().map_or(true, |values| values.len() == count));
                }
            }
        }
    }

    /// JSON and binary say the same.
    #[test]
    fn both_forms_give_the_same_tensor(values in prop::collection::vec(-1e30f32..1e30, 0..30)) {
        let data = serde_json::to_string(&values).unwrap();
        let written = one("FP32", &format!("[{}]", values.len()), &data).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        prop_assert_eq!(&written.data()[..], &bytes[..]);
    }
}
