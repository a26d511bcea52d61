"""Scores samples with onnxruntime: MODEL INPUTS.json, logits as JSON on stdout."""

import json
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
inputs = json.load(open(sys.argv[2]))
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
feeds = {one.name: np.array(inputs[one.name], dtype=kinds[one.type]) for one in session.get_inputs()}
logits, probabilities = session.run(["logits", "probabilities"], feeds)
print(json.dumps([logits.flatten().tolist(), probabilities.flatten().tolist()]))
