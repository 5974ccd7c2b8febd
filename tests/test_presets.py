"""Systems by name."""

import pytest

import attendre_core as at


@pytest.mark.parametrize("name", at.PRESETS)
def test_every_preset_makes_memories(name):
    config = at.preset(name, kv_size=64, q_size=32, chunk=16, top_k=8)
    assert config.kv_memory().size == 64
    assert config.q_memory().size == 32
    assert config == at.preset(name.lower(), kv_size=64, q_size=32, chunk=16, top_k=8)
    assert hash(config) == hash(at.preset(name, kv_size=64, q_size=32, chunk=16, top_k=8))


def test_presets_are_what_the_paper_calls_them():
    def policy(name, **settings):
        return at.preset(name, kv_size=8, **settings).policy

    assert policy("MT") == at.FIFO()
    assert policy("AS") == at.AttentionSink(sinks=4)
    assert policy("LFA-5e-4") == at.LFA(decay=5e-4)
    assert policy("LFA-0", sigmas=0.0) == at.LFA(decay=0.0, initial=at.InitialScore(0.0))
    assert policy("LRA-max", sigmas=1.5) == at.LRA("max", initial=at.InitialScore(1.5))


@pytest.mark.parametrize("name", ["", "LFA", "LFA-", "LFA-x", "lra-mode", "LFA-1.2.3"])
def test_unknown_presets_are_named_with_the_known_ones(name):
    with pytest.raises(at.ConfigError, match="LRA-last"):
        at.preset(name, kv_size=8)


@pytest.mark.parametrize(
    "settings", [{"kv_size": 0}, {"kv_size": 8, "q_size": 8}, {"kv_size": 8, "top_k": 9}]
)
def test_impossible_sizes(settings):
    with pytest.raises(at.ConfigError, match="expected|slots"):
        at.preset("MT", **settings)


def test_layers_may_have_their_own_policies():
    config = at.preset("LFA-0", kv_size=8).replace_layers({2: at.FIFO(), 0: at.LRU()})
    assert [type(config.policy_of(i)).__name__ for i in range(4)] == ["LRU", "LFA", "FIFO", "LFA"]


def test_only_our_own_brings_a_queue():
    sizes = {name: at.preset(name, kv_size=64).q_size for name in at.PRESETS}
    assert {name for name, size in sizes.items() if size} == {"attendre"}
    assert sizes["attendre"] == 32
    assert at.preset("attendre", kv_size=64, q_size=0).q_size == 0


def test_our_own_scores_may_be_changed():
    assert at.preset("attendre", 64).policy.initial != at.InitialScore(0.5)
    for name in ("attendre", "attendre-causal"):
        assert at.preset(name, 64, sigmas=0.5).policy.initial == at.InitialScore(0.5)
