"""`AttendreCache` on tiny random models of the types that transformers knows.

Every type is exact in a memory that holds everything and bounded in one that does not, or it is
refused with the reason.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("transformers")

import transformers
from cache_checks import TOLERANCE, outcome_of
from tiny_models import class_of, model_types
from write_page import GOOD, PAGE, Count, counted, is_oldest, row_of

pytestmark = pytest.mark.filterwarnings("ignore")

#: Types that differ in what they ask of a cache, and what each stands for.
SAMPLE = {
    "llama": "grouped queries",
    "gpt2": "positions that are learned",
    "gemma2": "windows and a limit of the logits",
    "gpt_oss": "windows and a sink of the model's own",
    "llama4_text": "chunked attention",
    "deepseek_v3": "latent attention: values narrower than keys",
    "gemma3n_text": "layers that use the keys of others",
    "mixtral": "experts",
    "bart": "the decoder of an encoder-decoder",
    "qwen3_next": "recurrent states beside a memory",
    "mistral": "windows alone",
    "gptj": "attention of its own",
}
#: Types that cannot be bounded, and what the reason must say.
REFUSED = {
    "mamba": "fixed size",
    "rwkv": "fixed size",
    "openai-gpt": "no cache: it reads the whole text again",
    "xlm": "generate gives it no cache: it reads the whole text again",
    "xlnet": "hidden states (mems) in place of keys and values",
    "reformer": "(past_buckets_states) in place of keys and values",
    "minimax": "cache class of its own",
    "prophetnet": "for a cache that holds all tokens",
}
ROW = re.compile(r"^\| (\S+) \| `(\w+)` \|", re.MULTILINE)


@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_model_is_exact_and_bounded(model_type: str) -> None:
    found = outcome_of(model_type)
    assert found.status == "exact", found
    assert found.worst <= TOLERANCE
    assert found.held[0] == found.held[1] > 0
    # A small memory is small: unless windows are all there is, logits change.
    assert found.change == 0 if model_type == "mistral" else found.change > 0.01
    if transformers.__version__ == _page_version():
        start = row_of(model_type, found).split("|")[:4]
        assert start in [line.split("|")[:4] for line in PAGE.read_text().splitlines()]


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_bounded_is_refused(model_type: str) -> None:
    found = outcome_of(model_type)
    assert found.status == "refused", found
    assert REFUSED[model_type] in found.reason
    assert row_of(model_type, found) in PAGE.read_text().splitlines()


@pytest.mark.thorough
def test_every_type_is_exact_or_refused() -> None:
    outcomes = {name: outcome_of(name) for name in model_types()}
    assert {name: o for name, o in outcomes.items() if o.status not in GOOD} == {}
    count = counted(outcomes)
    assert count.exact >= 0.9 * count.run
    assert count.run >= 0.95 * count.types
    if transformers.__version__ == Count.of_oldest().version:
        assert count == Count.of_oldest()


def test_the_oldest_version_is_the_lower_bound() -> None:
    oldest = Count.of_oldest()
    assert is_oldest(oldest.version)
    assert not is_oldest(_page_version())
    assert oldest.exact >= 0.9 * oldest.run
    assert str(oldest) in PAGE.read_text()


def test_the_page_names_every_type() -> None:
    if _page_version() != transformers.__version__:
        pytest.skip(f"the page is about transformers {_page_version()}")
    rows = dict(ROW.findall(PAGE.read_text()))
    assert rows == {name: class_of(name).__name__ for name in model_types()}
    exact = PAGE.read_text().partition("## Exact")[2].partition("## Refused")[0]
    listed = {name for name, _ in ROW.findall(exact)}
    assert listed >= set(SAMPLE)
    assert not listed & set(REFUSED)
    run = re.search(rf"^\| {_page_version()} \| {len(rows)} \| (\d+) \|", PAGE.read_text(), re.M)
    assert run is not None
    assert str(Count(_page_version(), len(rows), int(run[1]), len(listed))) in PAGE.read_text()
    assert len(listed) >= 0.9 * int(run[1])


def _page_version() -> str:
    found = re.search(r"transformers (\d+\.\d+\.\d+) knows", PAGE.read_text())
    assert found is not None
    return found[1]
