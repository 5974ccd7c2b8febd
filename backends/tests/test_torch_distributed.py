"""Several processes on this machine, connected by gloo, against one process.

The checks are in ``processes/``. Starting processes takes longer than most checks, so all checks
of one number of processes share them.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parent / "processes"))

from running import run_checks  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "torchrun_heads.py"
CHECKS = [
    "head_checks:same_entries_as_one_process",
    "head_checks:gradients_as_in_one_process",
    "head_checks:plans_of_the_caller",
    "head_checks:one_small_all_reduce_per_step",
    "head_checks:without_the_all_reduce_processes_disagree",
    "head_checks:policies_that_see_one_process_are_refused",
    "head_checks:plain_layers_in_a_group",
    "head_checks:states_are_saved_by_process",
    "head_checks:what_cannot_be_spread",
    "model_checks:models_with_spread_heads",
    "model_checks:an_optimiser_on_spread_heads",
    "model_checks:models_that_cannot_be_spread",
    "model_checks:sharded_parameters",
    "model_checks:sharded_attention",
    "model_checks:data_parallel",
]
TRANSFORMERS = ["model_checks:caches_of_transformers"]
LONG = [
    "head_checks:compiled",
    "head_checks:compiled_layers_in_a_group",
    "model_checks:more_sharded_parameters",
    "model_checks:mixed_precision",
]
FOUR = ["model_checks:heads_and_parameters"]


def found_of(names: list[str], world: int, factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return run_checks(factory.mktemp(f"processes-{world}"), world, names)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return found_of(LONG, 2, tmp_path_factory)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return found_of([*CHECKS, *LONG, *FOUR], 4, tmp_path_factory)


def agreed(name: str, said: list[str]) -> None:
    wrong = [f"{name}, process {rank}:\n{one}" for rank, one in enumerate(said) if one != "ok"]
    if wrong:  # those that the others waited for say why
        pytest.fail("\n".join(wrong), pytrace=False)


def test_two_processes(tmp_path_factory):
    """One test, not one for each check: workers that share tests would each start processes."""
    for name, said in found_of(CHECKS, 2, tmp_path_factory).items():
        agreed(name, said)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LONG)
def test_two_processes_for_longer(two, name):
    agreed(name, two[name])


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*CHECKS, *LONG, *FOUR])
def test_four_processes(four, name):
    agreed(name, four[name])


@pytest.mark.thorough
@pytest.mark.parametrize("world", [2, 4])
def test_models_of_transformers(world, tmp_path_factory):
    pytest.importorskip("transformers", "5.23")
    (said,) = found_of(TRANSFORMERS, world, tmp_path_factory).values()
    agreed(TRANSFORMERS[0], said)


@pytest.mark.thorough
def test_generated_code(needs_compiler, tmp_path_factory):
    name = "head_checks:compiled_by_inductor"
    agreed(name, found_of([name], 2, tmp_path_factory)[name])


@pytest.mark.thorough
def test_a_failing_check_is_reported(tmp_path_factory):
    """What a process raises reaches the test; what comes after it is not reached."""
    names = ["head_checks:missing", "head_checks:compiled"]
    found = found_of(names, 1, tmp_path_factory)
    assert "has no attribute 'missing'" in found[names[0]][0]
    assert "not reached" in found[names[1]][0]


@pytest.mark.thorough
def test_the_example_for_torchrun(capsys):
    """Two processes print what one does, up to rounding, and learn."""
    # --standalone chooses a free port.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ran = subprocess.run(
        [*command, "--nproc-per-node", "2", str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    alone = capsys.readouterr().out
    assert "processes: 2, with 4 of 8 heads each" in ran.stdout
    assert "processes: 1, with 8 of 8 heads each" in alone
    losses = [[float(x) for x in re.findall(r"\d\.\d+", text)] for text in (ran.stdout, alone)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert losses[0][-1] < losses[0][0] - 0.5


def test_layers_that_are_fetched_when_they_are_needed(tmp_path):
    """A model whose layers are on several devices: here in memory and in files."""
    accelerate = pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    from attendre_torch import AttendreCache

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(40)[None] * 7 % 32

    def written() -> list[int]:
        cache = AttendreCache(model, "LRA-sum+softmax:16")
        options = {"max_new_tokens": 8, "do_sample": False, "past_key_values": cache}
        return model.generate(tokens, **options)[0].tolist()

    want = written()
    places = {"model.layers.1": "disk", "model.layers.0": "cpu", "model.embed_tokens": "cpu"}
    places |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}
    model = accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=tmp_path)
    assert model.model.layers[1].self_attn.q_proj.weight.device.type == "meta"
    assert written() == want
