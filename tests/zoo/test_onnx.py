"""Weights in ONNX files: under their names, transposed under numbers, and what is refused."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import attendre_core as at

onnx = pytest.importorskip("onnx", reason="needs pip install 'attendre-core[onnx]'")
ROW = np.random.default_rng(0).integers(5, 97, size=20).tolist()
SIZES = {
    "vocab_size": 97, "hidden_size": 24, "intermediate_size": 35, "num_hidden_layers": 2,
    "num_attention_heads": 3, "max_position_embeddings": 45, "attn_implementation": "eager",
}  # fmt: skip


#: On JAX most of the time is compiling.
pytestmark = pytest.mark.thorough("jax")


def exported(model, file):
    """Write a model of transformers as the exporter of PyTorch writes it."""
    import torch

    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (torch.ones(1, 5, dtype=torch.int64),), str(file), dynamo=False,
            input_names=["input_ids"], opset_version=14,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("family", "place"), [("Bert", "model.onnx"), ("DistilBert", "onnx/model.onnx")]
)
def test_an_exported_model_is_the_model(
    family, place, library, randomised, saved, difference, tolerance
):
    transformers = pytest.importorskip("transformers")
    names = {"hidden_size": "dim", "intermediate_size": "hidden_dim"}
    sizes = {names.get(n, n) if family == "DistilBert" else n: v for n, v in SIZES.items()}
    config = getattr(transformers, f"{family}Config")(**sizes)
    theirs = randomised(getattr(transformers, f"{family}ForTokenClassification")(config))
    folder = saved(theirs)
    want = at.load(folder).classify(ROW)
    exported(theirs, folder / place)
    held = [tensor.name for tensor in onnx.load(str(folder / place)).graph.initializer]
    assert sum(name.startswith("onnx::MatMul") for name in held) == 13  # what is hard about it
    (folder / "model.safetensors").unlink()
    for path in (folder, folder / place):
        model = at.load(path, backend=library)
        assert difference(model, model.classify(ROW), want) < tolerance


# ------------------------------------------------------------------ made-up and hostile files

CONFIG = {
    "model_type": "bert", "vocab_size": 30, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def written(made_up):
    """Write the weights of a made-up model as ONNX; ``change`` may alter tensors and nodes."""
    from safetensors.numpy import load_file

    def write(change=None):
        folder = made_up(CONFIG)
        arrays = load_file(folder / "model.safetensors")
        tensors = {name: onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()}
        nodes = []
        if change is not None:
            change(tensors, nodes)
        graph = onnx.helper.make_graph(nodes, "g", [], [], list(tensors.values()))
        (folder / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
        want = at.load(folder).encode([3, 4, 5])
        (folder / "model.safetensors").unlink()
        return folder, want

    return write


def test_numbers_may_be_listed_shared_transposed_and_of_other_dtypes(written):
    def change(tensors, nodes):
        name = "encoder.layer.0.output.dense.bias"
        values = onnx.numpy_helper.to_array(tensors[name])
        tensors[name] = onnx.helper.make_tensor(name, 1, values.shape, values.tolist())
        same = "encoder.layer.0.intermediate.dense.weight"  # under another name
        tensors["shared"] = onnx.numpy_helper.from_array(
            onnx.numpy_helper.to_array(tensors.pop(same)), "shared"
        )
        nodes.append(onnx.helper.make_node("Identity", ["shared"], [same]))
        bias = "encoder.layer.0.attention.self.query.bias"
        array = onnx.numpy_helper.to_array(tensors.pop(bias.replace("bias", "weight")))
        tensors["7"] = onnx.numpy_helper.from_array(np.ascontiguousarray(array.T), "7")
        nodes.append(onnx.helper.make_node("MatMul", ["x", "7"], ["y"], name="MatMul_1"))
        nodes.append(onnx.helper.make_node("Add", [bias, "y"], ["z"]))
        key = "encoder.layer.0.attention.self.key.weight"
        array = onnx.numpy_helper.to_array(tensors.pop(key))
        tensors["8"] = onnx.numpy_helper.from_array(np.ascontiguousarray(array.T), "8")
        path = "/encoder/layer.0/attention/self/key/MatMul"
        nodes.append(onnx.helper.make_node("MatMul", ["x", "8"], ["k"], name=path))

    folder, want = written(change)
    assert np.abs(at.load(folder).encode([3, 4, 5]) - want).max() < 1e-5


def lying(name, **fields):
    def change(tensors, nodes):
        for field, value in fields.items():
            if field == "dims":
                del tensors[name].dims[:]
                tensors[name].dims.extend(value)
            elif field == "external":
                tensors[name].external_data.add(key="location", value=value)
                tensors[name].data_location = 1
            else:
                setattr(tensors[name], field, value)

    return change


BIAS = "encoder.layer.0.output.dense.bias"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lying(BIAS, external="../../etc/passwd"), "lies in another file, which is not read"),
        (lying(BIAS, raw_data=b"\0" * 7), "has 7 bytes, expected 16 numbers of float32"),
        (lying(BIAS, dims=[2**40, 2**40]), "bytes, expected .* numbers"),
        (lying(BIAS, dims=[-4]), r"has shape \(-4,\). The file is damaged"),
        (lying(BIAS, dims=[8, 2]), r"has shape \(8, 2\), expected \(16,\)"),
        (lying(BIAS, data_type=3), "output.dense.bias is missing"),
        (
            lambda tensors, nodes: nodes.append(
                onnx.helper.make_node("DequantizeLinear", ["a", "b", "c"], ["d"])
            ),
            "is quantised",
        ),
        (
            lambda tensors, nodes: nodes.append(onnx.helper.make_node("MatMul", ["x"], [])),
            None,
        ),
    ],
)
def test_hostile_files(change, match, written, refused):
    folder, _ = written(change)
    if match is None:
        assert at.load(folder).architecture.dim == 16
    else:
        refused(folder, match)


@pytest.mark.parametrize("content", [b"", b"\xff" * 50, b"not onnx"])
def test_what_is_no_onnx_file(content, tmp_path, refused):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.onnx").write_bytes(content)
    refused(tmp_path, "model.onnx|tensors do not fit")
