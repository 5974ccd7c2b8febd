"""`generate` called as in transformers: its arrays, its keywords, what it returns."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 128,
}  # fmt: skip
#: Rows of different lengths, padded with a token that is not among the others.
ROWS = [np.random.default_rng(0).integers(3, 90, size=n).tolist() for n in (12, 5, 9)]
PAD = 96


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, bos_token_id=1, eos_token_id=2, pad_token_id=None)
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.25 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    place = tmp_path_factory.mktemp("llama")
    theirs.save_pretrained(place)
    return place


def padded(side):
    ids, mask = np.full((3, 12), PAD), np.zeros((3, 12), dtype=np.int64)
    for number, row in enumerate(ROWS):
        part = slice(12 - len(row), 12) if side == "left" else slice(0, len(row))
        ids[number, part], mask[number, part] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def wanted(theirs, **options):
    inputs = {name: torch.tensor(array) for name, array in padded("left").items()}
    with torch.no_grad():
        return theirs.generate(**inputs, **options).numpy()


def ends(theirs, count):
    """Return a token that ends one row early, so that rows of the result differ in length."""
    free = wanted(theirs, max_new_tokens=count, eos_token_id=-1, pad_token_id=PAD, do_sample=False)
    return int(free[1, 12 + count // 3])


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("memory", [None, "LRA-sum+chunk=16:64"])
def test_it_returns_what_transformers_returns(theirs, folder, library, memory):
    model = at.load(folder, memory=memory, backend=library)
    settings = {
        "max_new_tokens": 12, "do_sample": False, "eos_token_id": ends(theirs, 12),
        "pad_token_id": PAD,
    }  # fmt: skip
    want = wanted(theirs, **settings)
    got = model.generate(**padded("left"), **settings)
    assert type(got).__module__.split(".")[0] in (library, "jaxlib")
    np.testing.assert_array_equal(np.asarray(model.backend.to_numpy(got)), want)
    assert (want == settings["eos_token_id"]).any(axis=1).sum() in (1, 2), "no row ends early"


def test_tensors_of_transformers_and_its_other_keywords(theirs, folder):
    model = at.load(folder, backend="torch")
    inputs = {name: torch.tensor(array) for name, array in padded("left").items()}
    settings = {
        "max_length": 20, "num_beams": 3, "eos_token_id": [2, 95], "pad_token_id": PAD,
        "num_return_sequences": 1, "use_cache": True, "repetition_penalty": 1.0,
        "do_sample": False, "early_stopping": False,
    }  # fmt: skip
    got = model.generate(**inputs, **settings)
    assert got.dtype == torch.int64
    np.testing.assert_array_equal(got.numpy(), wanted(theirs, **settings))


def test_padding_on_the_right_is_no_obstacle(folder):
    model = at.load(folder)
    right = model.generate(**padded("right"), max_new_tokens=6, pad_token_id=PAD, eos_token_id=-1)
    left = model.generate(**padded("left"), max_new_tokens=6, pad_token_id=PAD, eos_token_id=-1)
    np.testing.assert_array_equal(right[:, 12:], left[:, 12:])
    np.testing.assert_array_equal(right[:, :12], padded("right")["input_ids"])
    model.end = ()
    rows = model.generate(ROWS, max_new_tokens=6)
    np.testing.assert_array_equal(right[:, 12:], rows)
    without_mask = {"input_ids": padded("left")["input_ids"], "pad_token_id": PAD}
    np.testing.assert_array_equal(
        model.generate(**without_mask, max_new_tokens=6, eos_token_id=-1), left
    )


def test_sampling_is_ours_with_their_names(folder):
    model = at.load(folder)
    model.end = ()
    ours = model.generate(ROWS[0], 8, temperature=1.0, top_k=50, seed=3)
    theirs = model.generate(input_ids=[ROWS[0]], max_new_tokens=8, do_sample=True, seed=3)
    assert theirs[0, 12:].tolist() == ours
    assert model.generate(ROWS[0], max_new_tokens=8, do_sample=True, seed=3) == ours
    greedy = model.generate(ROWS[0], 8)
    assert model.generate(ROWS[0], max_length=20, do_sample=False, temperature=0.7) == greedy
    assert ours != greedy


def test_a_tokenizers_output_goes_in_as_it_is(folder, byte_llama):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(byte_llama / "tokenizer.json"), pad_token="!"
    )
    tokenizer.padding_side = "left"
    model = at.load(byte_llama, backend="torch")
    texts = ["Once upon a time", "There"]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=True)
    got = model.generate(**inputs, max_new_tokens=5)
    assert got.shape == (2, 21)
    assert [model.text(row[16:]) for row in got.tolist()] == model.generate(texts, 5)
    with pytest.raises(at.ConfigError, match=r"model\.generate\(\*\*inputs\)"):
        model.generate(inputs)


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("streamer", object(), "Use on_token"),
        ("generation_config", object(), "its settings as keywords"),
        ("repetition_penalty", 1.2, "repetition_penalty is 1.2, which attendre-core cannot do"),
        ("num_return_sequences", 2, "several calls with different seeds"),
        ("past_key_values", object(), "model.stream"),
        ("token_type_ids", [[1]], "token_type_ids"),
        ("nonsense", 3, "nonsense is 3, an unknown keyword"),
        ("max_length", 12, "max_length = 12 tokens, and 12 are there already"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(folder, keyword, value, message):
    with pytest.raises(at.ConfigError, match=message):
        at.load(folder).generate(**padded("left"), **{keyword: value})


def test_arrays_that_do_not_fit_are_refused(folder):
    model = at.load(folder)
    with pytest.raises(at.ShapeError, match="attention_mask has shape"):
        model.generate(input_ids=[[1, 2]], attention_mask=[[1]])
    with pytest.raises(at.ShapeError, match="rows of different lengths"):
        model.generate(input_ids=[[1, 2], [3]])
    with pytest.raises(at.ConfigError, match="a row has no tokens"):
        model.generate(input_ids=[[1, 2]], attention_mask=[[0, 0]])
    with pytest.raises(at.ConfigError, match="both a prompt and input_ids"):
        model.generate([1], input_ids=[[1, 2]])
    with pytest.raises(at.ConfigError, match="neither a prompt nor input_ids"):
        model.generate(do_sample=False)
    with pytest.raises(at.ConfigError, match="attention_mask without input_ids"):
        model.generate([1], attention_mask=[[1]])


def test_encoder_decoders_return_their_start_token_first(tmp_path, randomised):
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    theirs = randomised(transformers.T5ForConditionalGeneration(config))
    theirs.save_pretrained(tmp_path)
    want = wanted(theirs, max_new_tokens=8, do_sample=False, pad_token_id=0)
    got = at.load(tmp_path).generate(**padded("left"), max_new_tokens=8, pad_token_id=0)
    np.testing.assert_array_equal(got, want)


def test_from_transformers_takes_the_same_keywords(theirs):
    attendre_torch = pytest.importorskip("attendre_torch")
    ours = attendre_torch.from_transformers(theirs)
    inputs = {name: torch.tensor(array) for name, array in padded("left").items()}
    np.testing.assert_array_equal(
        ours.generate(**inputs, max_new_tokens=7, pad_token_id=PAD).numpy(),
        wanted(theirs, max_new_tokens=7, pad_token_id=PAD),
    )
