"""Every call of the protocol with NVIDIA's own clients. Run with `python tritonclient_calls.py HTTP GRPC MODEL`."""

import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

http_address, grpc_address, model = sys.argv[1:]
clients = {"http": (http, http.InferenceServerClient(http_address)), "grpc": (grpc, grpc.InferenceServerClient(grpc_address))}
scores = {}


def check(way, what, holds):
    assert holds, f"{way} {what}"
    print(f"{way} {what} ok")


def tensor(kind, name, values, datatype, **how):
    one = kind.InferInput(name, list(values.shape), datatype)
    one.set_data_from_numpy(values, **how)
    return one


def inputs(kind, **how):
    dense = np.array([[0.5, -1.0], [0.25, 2.0], [0.0, 0.0]], dtype=np.float32)
    first, third = np.array([1, 2, 3], dtype=np.int64), np.array([b"4", b"5", b"6"], dtype=np.object_)
    return [
        tensor(kind, "dense", dense, "FP32", **how),
        tensor(kind, "sparse_1", first, "INT64", **how),
        tensor(kind, "sparse_2", np.array([1, 2, 3], dtype=np.int64), "INT64", **how),
        tensor(kind, "sparse_2.lengths", np.array([0, 2, 1], dtype=np.int32), "INT32", **how),
        tensor(kind, "sparse_3", third, "BYTES", **how),
        tensor(kind, "sparse_4", np.array([[1]], dtype=np.int64), "INT64", **how),
    ]


for way, (kind, client) in clients.items():
    check(way, "live", client.is_server_live())
    check(way, "ready", client.is_server_ready())
    check(way, "model ready", client.is_model_ready(model))
    server = client.get_server_metadata(**({"as_json": True} if way == "grpc" else {}))
    check(way, "server metadata", server["name"] == "campanile" and "binary_tensor_data" in server["extensions"])
    about = client.get_model_metadata(model, **({"as_json": True} if way == "grpc" else {}))
    names = [one["name"] for one in about["inputs"]]
    check(way, "model metadata", about["name"] == model and {"dense_1", "sparse_1"} <= set(names))
    version = about["versions"][0]
    output = about["outputs"][0]["name"]
    result = client.infer(model, inputs(kind))
    scores[way] = result.as_numpy(output)
    head = result.get_response(**({"as_json": True} if way == "grpc" else {}))
    check(way, "infer", scores[way].shape == (3,) and head["model_version"] == version)
    wanted = kind.InferRequestedOutput(output)
    named = client.infer(model, inputs(kind), outputs=[wanted], model_version=version, request_id="mine")
    head = named.get_response(**({"as_json": True} if way == "grpc" else {}))
    check(way, "infer named output", np.array_equal(named.as_numpy(output), scores[way]) and head["id"] == "mine" and len(head["outputs"]) == 1)
    try:
        client.infer("nobody", inputs(kind))
        check(way, "unknown model", False)
    except InferenceServerException as error:
        check(way, "unknown model", "there is no model `nobody`" in str(error))
    index = client.get_model_repository_index(**({"as_json": True} if way == "grpc" else {}))
    entry = (index["models"] if way == "grpc" else index)[0]
    check(way, "repository index", entry["name"] == model and entry["state"] == "READY")
    client.unload_model(model)
    gone = client.is_model_ready(model)
    client.load_model(model)
    check(way, "unload and load", not gone and client.is_model_ready(model))

kind, client = clients["http"]
as_json = client.infer(model, inputs(kind, binary_data=False), outputs=[kind.InferRequestedOutput(output, binary_data=False)])
check("http", "json tensors", np.array_equal(as_json.as_numpy(output), scores["http"]))
check("both", "same scores", np.array_equal(scores["http"], scores["grpc"]))
