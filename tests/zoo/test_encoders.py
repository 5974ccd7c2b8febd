"""Encoders and their heads against transformers: full attention, memories, types of tokens."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at

transformers = pytest.importorskip("transformers")

COMMON = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 35,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 45,
    "attn_implementation": "eager",
    "hidden_dropout_prob": 0.0,
}
PADDED = {**COMMON, "pad_token_id": 0}
TYPED = {**COMMON, "type_vocab_size": 3}
#: DeBERTa v3: no positions at the input, buckets of distances, shared maps, normalised table.
V3 = {
    **COMMON, "type_vocab_size": 0, "relative_attention": True, "position_buckets": 8,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
    "max_relative_positions": -1, "position_biased_input": False, "attn_implementation": None,
}  # fmt: skip
#: Name of transformers' classes and settings.
CASES = {
    "bert": ("Bert", TYPED),
    "roberta": ("Roberta", {**TYPED, "pad_token_id": 1}),
    "camembert": ("Camembert", {**TYPED, "pad_token_id": 2, "hidden_act": "gelu_new"}),
    "xlm-roberta": ("XLMRoberta", {**TYPED, "type_vocab_size": 1}),
    "distilbert": (
        "DistilBert",
        {
            "vocab_size": 97, "dim": 24, "hidden_dim": 35, "n_layers": 2, "n_heads": 3,
            "max_position_embeddings": 45, "attn_implementation": "eager", "activation": "relu",
        },
    ),
    "mpnet": ("MPNet", {**COMMON, "attn_implementation": None}),
    "electra": ("Electra", {**TYPED, "embedding_size": 14}),
    "electra-wide": ("Electra", {**TYPED, "embedding_size": 24}),
    "deberta-v3": ("DebertaV2", V3),
    "deberta-unshared": (
        "DebertaV2",
        {
            **V3, "share_att_key": False, "type_vocab_size": 2, "position_biased_input": True,
            "norm_rel_ebd": "none", "position_buckets": -1, "max_relative_positions": 9,
            "pooler_hidden_act": "tanh",
        },
    ),
    "deberta-one-term": (
        "DebertaV2", {**V3, "share_att_key": False, "pos_att_type": "c2p", "embedding_size": 14},
    ),
    "deberta-without": ("DebertaV2", {**V3, "relative_attention": False, "pos_att_type": None}),
    "eurobert": ("EuroBert", {**PADDED, "num_attention_heads": 6, "num_key_value_heads": 2}),
    "eurobert-mean": ("EuroBert", {**PADDED, "head_dim": 10, "classifier_pooling": "mean"}),
    "eurobert-bos": ("EuroBert", {**PADDED, "attention_bias": True, "classifier_pooling": "bos"}),
    "nomic": ("NomicBert", TYPED),
    "modernbert": ("ModernBert", {**PADDED, "local_attention": 10}),
    "modernbert-mean": (
        "ModernBert",
        {
            **PADDED, "classifier_pooling": "mean", "classifier_bias": True,
            "norm_bias": True, "classifier_activation": "silu",
        },
    ),
    "t5": (
        "T5",
        {
            "vocab_size": 97, "d_model": 24, "d_kv": 10, "d_ff": 35, "num_layers": 2,
            "num_heads": 3, "feed_forward_proj": "gated-gelu",
        },
    ),
    "mt5": ("MT5", {"vocab_size": 97, "d_model": 24, "d_kv": 6, "d_ff": 35, "num_layers": 2,
                    "num_heads": 3}),
}  # fmt: skip
#: Where a family is shown on libraries that are slow to test; the others are variants.
MAIN = (
    "roberta", "distilbert", "mpnet", "electra", "deberta-v3", "eurobert", "nomic", "modernbert",
    "t5",
)  # fmt: skip
HEADS = {
    "token": "ForTokenClassification",
    "sequence": "ForSequenceClassification",
    "span": "ForQuestionAnswering",
}
#: What transformers has no class for.
WITHOUT = {("EuroBert", "span"), ("NomicBert", "span")}
WITHOUT |= {(t5, kind) for t5 in ("T5", "MT5") for kind in ("sequence", "span")}
LABELS = ("O", "B-PER", "I-PER", "B-LOC")
#: Rows of different lengths, without ids that pad.
ROWS = [np.random.default_rng(0).integers(5, 97, size=n).tolist() for n in (33, 14)]
#: Everything fits: M >= length, N >= length - 1.
LARGE = at.preset("LFA-0", kv_size=40, q_size=36, chunk=12)


def made(name, kind, randomised):
    """Return an instance of transformers with a head."""
    family, settings = CASES[name]
    settings = {key: value for key, value in settings.items() if value is not None}
    if kind != "span":
        settings["id2label"] = dict(enumerate(LABELS))
    config = getattr(transformers, f"{family}Config")(**settings)
    return randomised(getattr(transformers, family + HEADS[kind])(config))


def types_of(name):
    count = CASES[name][1].get("type_vocab_size", 1)
    if count < 2:
        return None
    return [np.random.default_rng(1).integers(0, count, size=len(row)).tolist() for row in ROWS]


def expected(theirs, row, types):
    """Return what transformers gives for one row: logits and hidden states."""
    import torch

    options = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        found = theirs(torch.tensor([row]), output_hidden_states=True, **options)
        base = getattr(theirs, theirs.base_model_prefix)(torch.tensor([row]), **options)
    logits = found.get("logits")
    if logits is None:
        logits = torch.stack([found.start_logits, found.end_logits], dim=-1)
    return logits[0].numpy(), base.last_hidden_state[0].numpy()


def check(name, library, kinds, randomised, saved, difference, tolerance):
    for kind in kinds:
        if (CASES[name][0], kind) in WITHOUT:
            continue
        theirs, types = made(name, kind, randomised), types_of(name)
        model = at.load(saved(theirs), backend=library)
        assert model.head.kind == kind
        assert model.head.labels == (("start", "end") if kind == "span" else LABELS)
        wanted = [
            expected(theirs, row, None if types is None else types[number])
            for number, row in enumerate(ROWS)
        ]
        for memory in (None, LARGE):
            reading = model.with_memory(memory)
            got, hidden = reading.classify(ROWS, types), reading.encode(ROWS, types)
            for number, (logits, states) in enumerate(wanted):
                own = got[number, ...] if kind == "sequence" else got[number, : len(states), :]
                assert difference(model, own, logits) < tolerance
                assert difference(model, hidden[number, : len(states), :], states) < tolerance


@pytest.mark.parametrize("name", CASES)
def test_heads_and_hidden_states_equal_transformers(name, randomised, saved, difference, tolerance):
    check(name, "numpy", HEADS, randomised, saved, difference, tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MAIN)
@pytest.mark.parametrize("library", ["torch", "jax", "array_api_strict"])
def test_every_library_gives_the_same(name, library, randomised, saved, difference, tolerance):
    pytest.importorskip(library)
    kinds = ("sequence",) if CASES[name][0] not in ("T5", "MT5") else ("token",)
    check(name, library, kinds, randomised, saved, difference, tolerance)
