"""Oracle memories: everything is read with full attention, then M entries per layer are kept."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

import attendre_core as at
from attendre_core.cli import main
from attendre_core.evaluation import load_tiny, system
from attendre_core.evaluation.controls import label_of, split_oracle
from attendre_core.evaluation.oracle import FullRead, keep_best
from attendre_core.evaluation.tasks.answering import answered, answered_by_oracles
from attendre_core.evaluation.tasks.perplexity import oracle_losses
from attendre_core.evaluation.tasks.question import question_of
from attendre_core.tree import tree_map
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.model import Model

CONTEXT = "Some say it was Mark Twain who wrote about rivers, and some say it was not. " * 3
TEMPLATE = "{context}\nQ: {question}\nA:"
NAMES = ("AS", "H2O", "attendre-causal", "LFA-1e-3")


@pytest.fixture(scope="module")
def questions(decoder):
    return [
        question_of(decoder, "1", "Who wrote it?", CONTEXT, ["Mark Twain"], TEMPLATE),
        question_of(decoder, "2", "And who?", CONTEXT[:91], ["I", "me"], TEMPLATE),
    ]


@pytest.fixture(scope="module", params=["numpy", "torch"])
def anywhere(request, decoder):
    """The made-up decoder on each library."""
    if request.param == "numpy":
        return decoder
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    from attendre_core.backend import backend

    params = tree_map(backend("torch").from_numpy, decoder.params)
    return Model(decoder.architecture, params, library="torch", tokenizer=decoder.tokenizer)


def read(model, questions, name, kv, **options):
    found = system(name, kv, chunk=16)
    return [one for batch in answered(model, questions, found, **options) for one in batch]


def test_the_context_ends_where_the_question_begins(decoder, questions):
    first = questions[0]
    assert decoder.text(first.tokens[: first.context]) == CONTEXT.rstrip()
    asked_first = question_of(decoder, "3", "Who?", CONTEXT, ["I"])
    rest = decoder.text(asked_first.tokens[asked_first.context :])
    assert rest.strip() == "Answer:"


@pytest.mark.parametrize("name", NAMES)
def test_room_for_everything_is_full_attention(anywhere, questions, name):
    full = read(anywhere, questions, "full", 16)
    held = read(anywhere, questions, f"{name}+oracle", 300)
    for one, other in zip(full, held, strict=True):
        assert other.log_likelihood == pytest.approx(one.log_likelihood, abs=1e-4)
        assert other.text == one.text
        assert other.seconds > 0


def weights_of(model, row, number):
    """Softmax weights of one layer of a Llama, (heads, queries, keys), from its own arrays."""
    part, params = model.reading_part, model.reading_params
    position = np.arange(len(row), dtype=np.int32)[None]
    x = part.embed(params, np.asarray([row]), position)
    for i in range(number + 1):
        layer = params["layers"][i]
        query, key, value = (a[0].transpose(1, 0, 2) for a in part.project(layer, x, position))
        query, key = rotated(query), rotated(key)
        group = query.shape[0] // key.shape[0]
        key, value = (np.repeat(a, group, axis=0) for a in (key, value))
        logits = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        logits = np.where(np.tril(np.ones(logits.shape[1:], dtype=bool)), logits, -np.inf)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        x = part.finish(layer, (weights @ value).transpose(1, 0, 2)[None], x, None)
    return weights


def rotated(x):
    """Rotate (heads, length, dim) by the position, pairing the first half with the second."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] / 10000.0 ** (np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def test_what_stays_is_what_ranks_highest(anywhere):
    """H2O keeps, per K/V head, the recent half and the heaviest of the rest."""
    rng = np.random.default_rng(3)
    rows = [rng.integers(0, 256, length).tolist() for length in (61, 37)]
    kept = FullRead(anywhere, rows, chunk=8).kept(at.preset("H2O+chunk=8:16"))
    plain = Model(anywhere.architecture, tree_map(np.asarray, anywhere.params))
    for number in range(2):
        found = np.asarray(kept.states[number].kv.position)
        for i, row in enumerate(rows):
            weights = weights_of(plain, row, number)
            heads = weights.reshape(2, 2, *weights.shape[1:]).sum(axis=(1, 2))
            for head, sums in enumerate(heads):
                old = np.argsort(-sums[: len(row) - 8])[:8]
                expected = sorted([*old.tolist(), *range(len(row) - 8, len(row))])
                assert found[i, head].tolist() == expected


def test_the_last_queries_decide_alone_where_a_policy_says_so(decoder):
    """TOVA looks at the last query, whatever the length modulo the chunk."""
    row = np.random.default_rng(4).integers(0, 256, 45).tolist()
    kept = FullRead(decoder, [row], chunk=16).kept(at.preset("TOVA+chunk=16:10"))
    for number in range(2):
        last = weights_of(decoder, row, number)[:, -1].mean(axis=0)
        found = kept.states[number].kv.position[0].tolist()
        assert found == sorted(np.argsort(-last)[:10].tolist())


def test_sinks_pins_and_recent_entries_stay(decoder):
    row = np.random.default_rng(5).integers(0, 256, 50).tolist()
    memory = at.preset("LRA-sum+softmax+sinks=2+recent=3+pin=20-22+chunk=16:9")
    found = FullRead(decoder, [row], chunk=16).kept(memory).states[0].kv.position[0].tolist()
    assert {0, 1, 20, 21, 47, 48, 49} <= set(found)
    assert len(found) == 9


def test_a_memory_of_fixed_size_does_something_else(decoder, questions):
    """Entries of a full read are not those of a bounded one, and the kept ones may differ."""
    for name in ("H2O", "LRA-sum+softmax+c=0"):
        oracle = read(decoder, questions, f"{name}+oracle", 32, new_tokens=0)
        bounded = read(decoder, questions, name, 32, new_tokens=0)
        assert abs(oracle[0].log_likelihood - bounded[0].log_likelihood) > 1e-3


def test_a_shared_read_and_the_batch_change_nothing(anywhere, questions):
    systems = [system(f"{name}+oracle", 24, chunk=16) for name in ("AS", "H2O", "TOVA")]
    (shared,) = answered_by_oracles(anywhere, questions, systems, new_tokens=4)
    for each, together in zip(systems, shared, strict=True):
        alone = [a for b in answered(anywhere, questions, each, batch=1, new_tokens=4) for a in b]
        for one, other in zip(alone, together, strict=True):
            assert one.text == other.text
            assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-4)
            assert one.nbytes == other.nbytes
            assert one.entries == 24


def test_each_system_is_observed_in_its_own_chunks(decoder, questions):
    names = ("LRA-sum+softmax+chunk=4+oracle", "LRA-sum+softmax+oracle")
    systems = [system(name, 24, chunk=16) for name in names]
    (shared,) = answered_by_oracles(decoder, questions, systems, new_tokens=0)
    for each, together in zip(systems, shared, strict=True):
        (alone,) = answered(decoder, questions, each, new_tokens=0)
        likely = [one.log_likelihood for one in alone]
        assert [one.log_likelihood for one in together] == pytest.approx(likely, abs=1e-6)
    assert shared[0][0].log_likelihood != shared[1][0].log_likelihood


def test_reading_can_stop_earlier(decoder):
    row = np.random.default_rng(6).integers(0, 256, 48).tolist()
    memory = at.preset("H2O+chunk=16:12")
    none, part, last = FullRead(decoder, [row], chunk=16).kept_at(memory, [0, 2, 3])
    assert none.lengths == [0]
    assert not none.states[0].kv.valid.any()
    same = FullRead(decoder, [row], chunk=16).kept(memory)
    assert np.array_equal(last.states[1].kv.key, same.states[1].kv.key)
    whole = FullRead(decoder, [row[:32]], chunk=16).kept(memory)
    assert part.lengths == [32]
    for one, other in zip(part.states, whole.states, strict=True):
        assert np.array_equal(one.kv.position, other.kv.position)
    following = [row[32:36]]
    assert np.allclose(part.probe(following), whole.probe(following), atol=1e-5)


def test_a_recommended_system_is_adapted_to_the_model(decoder):
    """With half of the trained length or more, attendre-causal keeps sinks and what is recent."""
    row = np.random.default_rng(9).integers(0, 256, 1100).tolist()
    memory = at.preset("attendre-causal+chunk=256:1024")
    found = FullRead(decoder, [row], chunk=256).kept(memory)
    assert found.states[0].kv.position[0].tolist() == [0, 1, 2, 3, *range(80, 1100)]


@pytest.mark.parametrize("name", ["SnapKV", "Defensive", "KeyDiff", "LagKV", "R-KV", "Nexus"])
def test_published_policies_keep_as_many_as_they_are_given(decoder, questions, name):
    bounded, oracle = (
        read(decoder, questions, each, 24, new_tokens=0) for each in (name, f"{name}+oracle")
    )
    assert all(one.entries == 24 for one in oracle)
    assert bounded[0].log_likelihood != oracle[0].log_likelihood


def test_names():
    assert label_of("lra-sum+oracle+c=0") == "LRA-sum+c=0+oracle"
    assert system("h2o+ORACLE", 32).oracle
    assert not system("H2O", 32).oracle
    assert split_oracle("my_module:Oracle+oracle") == ("my_module:Oracle", True)
    with pytest.raises(at.ConfigError, match="2 times"):
        label_of("MT+oracle+oracle")
    with pytest.raises(at.ConfigError, match="there is no oracle of it"):
        label_of("full+oracle")
    with pytest.raises(at.ConfigError, match="no query waits"):
        system("MT+oracle", 32, 8)
    with pytest.raises(at.ConfigError, match="option 'oracle' is not known"):
        at.preset("MT+oracle:32")


def test_errors_say_what_to_do(decoder):
    with pytest.raises(at.ConfigError, match="only a causal decoder"):
        FullRead(load_tiny("prefix-lm"), [[5, 6]], chunk=2)
    with pytest.raises(at.ConfigError, match="a row has no tokens"):
        FullRead(decoder, [[5], []], chunk=2)
    with pytest.raises(at.ConfigError, match="no query waits"):
        FullRead(decoder, [[5, 6]], chunk=2).kept(at.preset("MT+wait=2:8"))


def test_fewer_entries_than_slots():
    chunk = np.ones((1, 3, 1, 2), dtype=np.float32)
    memory = at.KeyValueMemory(4, at.LFA())
    state, _ = memory.insert(memory.init(like=chunk), chunk, chunk)
    kept = keep_best(memory, state)
    assert sorted(kept.position[0].tolist()) == [-1, 0, 1, 2]


def losses_of(model, row):
    """The loss of each token, from one pass over the whole text; 0 for the first."""
    scores = log_softmax(np.asarray(model.logits(row)[0], dtype=np.float64))
    return [0.0, *(-scores[i, token] for i, token in enumerate(row[1:]))]


def test_a_text_with_room_for_everything_is_predicted_as_with_full_attention(decoder):
    rng = np.random.default_rng(7)
    rows = [rng.integers(0, 256, 90).tolist() for _ in range(2)]
    systems = [system("H2O+oracle", 96, chunk=16), system("H2O+oracle", 12, chunk=16)]
    (all_of_it, _), (little, costs) = oracle_losses(decoder, rows, systems, piece=32)
    for row, losses, cut in zip(rows, all_of_it, little, strict=True):
        full = losses_of(decoder, row)
        assert losses == pytest.approx(full, abs=1e-4)
        # The first piece has nothing before it that could be forgotten.
        assert cut[:33] == pytest.approx(full[:33], abs=1e-4)
        assert np.abs(cut[33:] - full[33:]).max() > 1e-2
    assert costs["entries"] == [12, 12]


def test_every_piece_is_predicted_from_what_is_kept_of_all_before(decoder):
    row = np.random.default_rng(8).integers(0, 256, 65).tolist()
    tested = system("TOVA+oracle", 10, chunk=8)
    ((losses, _),) = oracle_losses(decoder, [row], [tested], piece=16)
    kept = FullRead(decoder, [row[:48]], chunk=8).kept(tested.memory)
    scores = log_softmax(np.asarray(kept.probe([row[48:64]])[0], dtype=np.float64))
    assert losses[0, 49:] == pytest.approx(-scores[np.arange(16), row[49:]], abs=1e-5)
    with pytest.raises(at.ConfigError, match="a chunk that divides 20"):
        oracle_losses(decoder, [row], [tested], piece=20)


def test_the_command_predicts_a_text_with_oracles(byte_llama, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text(CONTEXT * 3)
    command = [
        "eval", "perplexity", "--model", str(byte_llama), "--data", str(text), "--streams", "2",
        "--context-tokens", "300", "--chunk", "32", "--size", "48", "--policies", "MT,AS",
        "--mode", "bounded,oracle", "--no-controls", "--json", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert main(command) == 0
    rows = {row["policy"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["MT", "AS", "MT+oracle", "AS+oracle"]
    assert {row["items"] for row in rows.values()} == {6}
