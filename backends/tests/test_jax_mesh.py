"""Every zoo architecture on a mesh of 8 devices, in one process and in two."""

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves

jax = pytest.importorskip("jax")
import attendre_jax  # noqa: E402

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER.parents[1] / "docs" / "examples" / "jax_mesh.py"


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # for dataclasses, which look their module up
    spec.loader.exec_module(module)
    return module


mesh_program = loaded(FOLDER / "mesh_program.py")
tables = loaded(FOLDER.parents[1] / "docs" / "scaling_tables.py")
#: A decoder, one with fewer K/V heads than devices, an encoder, and one of both; that every matrix
#: of each architecture is split is tested below.
FIRST = ("llama", "qwen2", "bert", "t5")
OTHERS = tuple(name for name in mesh_program.MODELS if name not in FIRST)
DEFAULT = ("LFU", "H2O")


def started(wanted, devices, process=None):
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={devices}"
    more = {} if process is None else {"MESH_PROCESS": process}
    return subprocess.Popen(
        [sys.executable, "-W", "error", FOLDER / "mesh_program.py", *wanted],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", **more},
    )


def result_of(process):
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    results = json.loads(out.splitlines()[-1])
    assert results["devices"] == 8
    return results


def checked(results, name):
    found = results[name]
    assert "error" not in found, found["error"]
    return found


@pytest.fixture(scope="module")
def results():
    wanted = [f"reading:{name}" for name in FIRST] + [f"mapped:{name}" for name in DEFAULT]
    return result_of(started([*wanted, "counting"], 8))


@pytest.fixture(scope="module")
def more_results():
    wanted = [f"reading:{name}" for name in OTHERS]
    wanted += [f"mapped:{name}" for name in mesh_program.LAYERS if name not in DEFAULT]
    return result_of(started([*wanted, "training", "generating"], 8))


@pytest.fixture(scope="module")
def of_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    wanted = ["reading", "mapped:LFA", "mapped:LFU", "training:llama", "training:t5"]
    both = [started(wanted, 4, f"{number},2,{port}") for number in range(2)]
    return [result_of(process) for process in both]


def check_reading(name, found):
    assert found["scale"] > 1
    assert found["difference"] < 1e-5
    assert found["evictions"] > 0
    assert found["same kept"]
    assert found["stays placed"]
    shards = 8 if not found["notes"] else 4
    assert found["keys"] == shards * found["local keys"]
    expected = ["2,8", "2,12", "2,8,32"]  # flags, scores, the residual stream
    if name == "electra":
        expected.append("2,8,16")  # its embeddings are narrower
    for told, _ in found["collectives"].items():
        how, _, shape = told.split(" ")
        # Not only no gathering: XLA can also write a gather as a sum.
        assert how == "all-reduce", f"{told}: memory or weights are moved"
        assert shape in expected, told


@pytest.mark.parametrize("name", FIRST)
def test_a_model_on_a_mesh_keeps_and_computes_the_same(results, name):
    check_reading(name, checked(results, f"reading:{name}"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERS)
def test_other_models_on_a_mesh_keep_and_compute_the_same(more_results, name):
    check_reading(name, checked(more_results, f"reading:{name}"))


def check_mapped(name, found):
    assert found["difference"] < 1e-5
    assert found["same kept"]
    assert found["counters"] == 0
    scores = {"LRU": "s32 2,8,12", "LFU": "s32 2,8,12", "TOVA": "f32 2,20", "H2O": "s32 2"}
    flags = {"all-reduce s32 2,8": 3}  # is the key, the value, the query finite?
    # H2O decides for each head: only the two counters are added up.
    times = 2 if name == "H2O" else 1
    assert found["collectives"] == {
        **flags, f"all-reduce {scores.get(name, 'f32 2,12')}": times
    }  # fmt: skip
    # Heads that decide together must meet: each device alone would keep something else.
    assert found["same kept alone"] == (name == "H2O")


@pytest.mark.parametrize("name", DEFAULT)
def test_shard_map_with_a_head_axis_keeps_the_same(results, name):
    check_mapped(name, checked(results, f"mapped:{name}"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in mesh_program.LAYERS if name not in DEFAULT])
def test_shard_map_keeps_the_same_with_other_policies(more_results, name):
    check_mapped(name, checked(more_results, f"mapped:{name}"))


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_what_crosses_devices_does_not_grow_with_their_number(results, shards):
    found = checked(results, f"counting:{shards}")
    rows, chunk, layers = found["rows"], found["chunk"], found["layers"]
    stream = f"all-reduce f32 {rows},{chunk},{found['dim']}"
    assert found["collectives"] == {
        stream: 2 * layers + 1,  # after attention, after the feed-forward part; the embedding
        f"all-reduce f32 {rows},{found['slots']}": layers,  # scores
        f"all-reduce pred {rows},{chunk}": 3 * layers,  # is key, value, query finite?
    }
    # The formulas of docs/scaling.md.
    model = mesh_program.architecture("llama")
    sizes = tables.Sizes(layers, model.dim, model.heads, 8, model.head_dim, model.hidden, 64)
    formula = tables.collectives(sizes, tables.Memory(found["slots"], 0, chunk), rows, 4)
    assert sum(times for times, _ in formula.values()) == sum(found["collectives"].values())
    assert sum(times * each for times, each in formula.values()) == found["bytes"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", mesh_program.MODELS)
def test_gradients_on_a_mesh_are_the_same(more_results, name):
    found = checked(more_results, f"training:{name}")
    assert found["largest"] > 1e-2
    assert found["difference"] < 1e-5
    assert found["gradients"] < 1e-5


@pytest.mark.thorough
def test_a_model_with_spread_parameters_writes_the_same(more_results):
    found = checked(more_results, "generating:llama")
    assert found["got"] == found["want"]
    assert len({token for row in found["want"] for token in row}) > 3


@pytest.mark.thorough
def test_two_processes_keep_and_compute_what_one_does(of_two_processes):
    for results in of_two_processes:
        assert results["local devices"] == 4
        for name in mesh_program.MODELS:
            check_reading(name, checked(results, f"reading:{name}"))
        for name in ("LFA", "LFU"):
            check_mapped(name, checked(results, f"mapped:{name}"))
        for name in ("llama", "t5"):
            found = checked(results, f"training:{name}")
            assert max(found["difference"], found["gradients"]) < 1e-5


# ---------------------------------------------------------------- in this process


def on_one_device(*names, kind=None):
    kind = jax.sharding.AxisType.Auto if kind is None else kind
    return jax.make_mesh((1,) * len(names), names, axis_types=(kind,) * len(names))


def wide(**axes):
    """Return a mesh of more devices than there are in this process."""
    auto = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=auto)


def rules(mesh, heads):
    from attendre_jax.mesh_rules import Rules, length_of

    return Rules(mesh, heads, length_of(mesh, "heads", heads), True, [])


@pytest.mark.parametrize("name", mesh_program.MODELS)
def test_every_matrix_of_every_architecture_is_split(name):
    model = mesh_program.architecture(name)
    specs = rules(wide(model=2), "model").of_model(model)
    flat = jax.tree_util.tree_leaves_with_path(
        specs, is_leaf=lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec)
    )
    tensors = tree_leaves(jax.tree.map(lambda leaf: leaf, model.parameters()))
    assert len(flat) == len(tensors)
    shapes = attendre_jax.random_parameters(model, jax.random.key(0))
    for path, spec in flat:
        leaf, place = shapes, jax.tree_util.keystr(path)
        for key in path:
            leaf = leaf[key.key if hasattr(key, "key") else key.idx]
        assert len(spec) <= leaf.ndim
        whole = leaf.ndim == 1 or re.search(r"\['(position|type|project|distances)'\]$", place)
        assert whole or "model" in spec, f"{place} {leaf.shape} stays whole"
        if re.search("norm'|norm_bias'|(out|down)_bias'", place) and leaf.ndim == 1:
            assert "model" not in spec, place


def test_what_does_not_divide_is_refused_or_copied():
    llama = mesh_program.architecture("llama")  # 8 heads, 4 K/V heads
    with pytest.raises(at.ConfigError, match="8 heads, expected a multiple of 3"):
        rules(wide(model=3), "model").of_model(llama)
    copied = rules(wide(model=8), "model")
    layer = copied.of_model(llama)["layers"][0]
    assert tuple(layer["k"]) == (None, None)
    assert tuple(layer["q"]) == ("model", None)
    assert copied.notes == [
        "keys and values: 4 heads do not divide by 8; copied along 'model'"
    ]  # fmt: skip
    split = rules(wide(kv=4, group=2), ("kv", "group"))
    layer = split.of_model(llama)["layers"][0]
    assert layer["k"][0] in ("kv", ("kv",))
    assert layer["q"][0] == ("kv", "group")
    assert "'group'" in split.notes[0]
    odd = rules(wide(model=2), "model")
    top = odd.of_model(replace(llama, vocabulary=63))
    assert tuple(top["embedding"]) == ()
    assert "63 rows do not divide by 2" in odd.notes[0]


def test_errors_say_what_to_do():
    llama = mesh_program.architecture("llama")
    mesh = on_one_device("data", "model")
    with pytest.raises(at.ConfigError, match="'tensor', expected axes of the mesh"):
        attendre_jax.shardings(llama, mesh, heads="tensor")
    explicit = on_one_device("data", "model", kind=jax.sharding.AxisType.Explicit)
    with pytest.raises(at.ConfigError, match="of type Explicit, expected Auto"):
        attendre_jax.shardings(llama, explicit)
    with pytest.raises(at.ConfigError, match="state is a dict"):
        attendre_jax.state_shardings({}, mesh)
    layer = at.AttendreLayer(at.KeyValueMemory(8))
    state = layer.init(batch=3, heads=2, head_dim=4, xp="jax")
    with pytest.raises(at.ConfigError, match="3 rows, expected a multiple of 2"):
        attendre_jax.state_shardings(state, wide(data=2, model=1))


def test_an_attention_module_is_placed_like_a_model():
    attention = attendre_jax.AttendreAttention.create(
        jax.random.key(0), 16, 4, kv_heads=2, memory=8, encoding=at.T5Bias()
    )
    where = attendre_jax.shardings(attention, on_one_device("data", "model"))
    assert tuple(where.params.query.spec) == tuple(where.params.table.spec) == (None, "model")
    assert tuple(where.params.out.spec) == ("model",)
    assert where.notes == ()
    placed = attendre_jax.place(attention, where.params)
    assert (placed.query == attention.query).all()


@pytest.mark.thorough
def test_the_example_runs():
    found = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert found.returncode == 0, found.stderr
    assert "8 devices: 2 rows of 4" in found.stdout
    assert "the same tokens as on one device: True" in found.stdout
