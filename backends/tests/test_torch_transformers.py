"""Models of transformers that are in memory: shared weights, the same numbers, own settings."""

import os

import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

from attendre_torch import (  # noqa: E402
    AttendreCache,
    TrainableModel,
    TransformersModel,
    from_transformers,
)

V = 61
DECODER = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
GEMMA = {
    "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
T5 = {
    "vocab_size": V, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
BERT = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", DECODER),
    "llama-tied": ("LlamaConfig", "LlamaForCausalLM", {**DECODER, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**DECODER, "sliding_window": 9}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", DECODER),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**DECODER, "head_dim": 8}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {**DECODER, **GEMMA}),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "t5-gated": (
        "T5Config",
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bert": ("BertConfig", "BertModel", BERT),
    "bert-masked": ("BertConfig", "BertForMaskedLM", BERT),
}
DECODERS = ("llama", "llama-tied", "mistral", "qwen2", "qwen3", "gemma3")
PROMPT = [5, 17, 3, 44, 9, 28, 31, 2, 50, 12, 7, 7, 19]
ENOUGH = at.preset("LFA-0", kv_size=64, chunk=5)


def loaded(name, **changes):
    config, model, sizes = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**{**sizes, **changes}))
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(0.3 * noise) if parameter.ndim > 1 else parameter.add_(0.1 * noise)
    return made.eval()


def theirs(model, **options):
    """What transformers writes after the prompt."""
    start = 0 if model.config.is_encoder_decoder else len(PROMPT)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0].tolist()
    end = model.generation_config.eos_token_id
    ends = end if isinstance(end, list) else [end]
    written = out[1:] if start == 0 else out[start:]
    return [token for token in written if token not in ends]


def storages(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_shared_not_copied(name, dtype):
    source = loaded(name).to(dtype)
    ours = from_transformers(source)
    assert isinstance(ours, at.Model)
    assert ours.dtype == str(dtype).removeprefix("torch.")
    own = list(tree_leaves(ours.params))
    assert storages(own) <= storages(source.state_dict().values())
    assert not any(tensor.requires_grad for tensor in own)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("memory", [None, ENOUGH], ids=["full", "memory"])
def test_decoders_agree(name, memory):
    source = loaded(name)
    ours = from_transformers(source, memory=memory)
    with torch.no_grad():
        want = source(torch.tensor([PROMPT])).logits
    torch.testing.assert_close(ours.logits(PROMPT), want, rtol=1e-4, atol=1e-4)
    source.generation_config.eos_token_id = None
    source.generation_config.pad_token_id = 0
    assert ours.generate(PROMPT, 12) == theirs(source, max_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("name", ["t5", "t5-gated"])
def test_encoder_decoders_agree(name):
    source = loaded(name)
    written = [0, 8, 22, 4]
    with torch.no_grad():
        want = source(
            input_ids=torch.tensor([PROMPT]), decoder_input_ids=torch.tensor([written])
        ).logits
    waiting = at.preset("LFA-0", kv_size=64, q_size=32, chunk=5)
    for memory in (None, waiting):
        ours = from_transformers(source, memory=memory)
        torch.testing.assert_close(ours.logits(PROMPT, written), want, rtol=1e-4, atol=1e-4)
        assert ours.generate(PROMPT, 8) == theirs(source, max_new_tokens=8, do_sample=False)


@pytest.mark.parametrize("name", ["bert", "bert-masked"])
def test_encoders_agree(name):
    source = loaded(name)
    inner = getattr(source, "bert", source)
    with torch.no_grad():
        want = inner(torch.tensor([PROMPT])).last_hidden_state
    torch.testing.assert_close(from_transformers(source).encode(PROMPT), want, rtol=1e-4, atol=1e-4)


def test_bounded_memory_is_bounded():
    ours = from_transformers(loaded("llama"), memory=at.preset("LFA-1e-3", kv_size=16, chunk=8))
    stream = ours.stream()
    stream.feed([i % V for i in range(500)])
    assert {report.used for report in stream.reports()} == {(16,)}
    assert ours.with_memory(None).memory is None
    assert isinstance(ours.with_memory(ENOUGH), TransformersModel)


# ------------------------------------------------------------------ GenerationConfig


def test_eos_ends_a_text():
    source = loaded("llama")
    source.generation_config.eos_token_id = None
    ours = from_transformers(source)
    free = ours.generate(PROMPT, 12)
    source.generation_config.eos_token_id = [free[5], V - 1]
    source.generation_config.pad_token_id = 0
    assert ours.generate(PROMPT, 12) == free[: free.index(free[5])]
    assert ours.generate(PROMPT, 12) == theirs(source, max_new_tokens=12)
    ours.end = ()
    assert ours.generate(PROMPT, 12) == free


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("llama", {}, 20),
        ("llama", {"max_new_tokens": 7, "max_length": 3}, 7),
        ("llama", {"max_length": len(PROMPT) + 4}, 4),
        ("t5", {}, 20),
        ("t5", {"max_new_tokens": 7}, 7),
        ("t5", {"max_length": 9}, 8),
    ],
)
def test_the_length_is_the_models_own(name, settings, count):
    source = loaded(name)
    for key, value in {"pad_token_id": 0, "eos_token_id": None, **settings}.items():
        setattr(source.generation_config, key, value)
    ours = from_transformers(source)
    written = ours.generate(PROMPT)
    assert written == theirs(source, max_new_tokens=count, max_length=None)
    assert ours.generate(PROMPT, max_new_tokens=3) == written[:3]


def test_a_prompt_beyond_the_models_own_length_is_refused():
    source = loaded("llama")
    source.generation_config.max_length = 13
    with pytest.raises(at.ConfigError, match="max_length = 13 tokens, and 13 are there already"):
        from_transformers(source).generate(PROMPT)


@pytest.mark.parametrize("penalty", [None, 0.2])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_beams_are_the_models_own(name, penalty):
    source = loaded(name)
    config = source.generation_config
    config.num_beams, config.max_new_tokens, config.length_penalty = 3, 6, penalty
    config.pad_token_id = 0
    ours = from_transformers(source)
    assert ours.generate(PROMPT) == theirs(source)
    assert ours.generate(PROMPT, beams=1) == theirs(source, num_beams=1)


def test_sampling_is_the_models_own():
    source = loaded("llama")
    config = source.generation_config
    config.eos_token_id, config.max_new_tokens = None, 10
    ours = from_transformers(source)
    greedy = ours.generate(PROMPT)
    config.do_sample, config.temperature = True, 5.0
    drawn = ours.generate(PROMPT, seed=1)
    assert drawn != greedy
    assert drawn == ours.generate(PROMPT, seed=1)
    assert drawn != ours.generate(PROMPT, seed=2)
    assert ours.generate(PROMPT, temperature=0.0) == greedy
    for name, value in (("temperature", 1e-4), ("top_p", 1e-6), ("top_k", 1)):
        config.temperature, config.top_p, config.top_k = 5.0, None, None
        setattr(config, name, value)
        assert ours.generate(PROMPT, seed=1) == greedy, f"{name} = {value} is not honoured"
    config.temperature, config.top_k = 100.0, None
    many = {token for seed in range(30) for token in ours.generate(PROMPT, 8, seed=seed)}
    config.top_k = 3
    few = {ours.generate(PROMPT, 1, seed=seed)[0] for seed in range(30)}
    assert len(few) <= 3 < len(many)


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 1.1), ("no_repeat_ngram_size", 2), ("min_new_tokens", 4)],
)
def test_what_cannot_be_honoured_is_refused(name, value):
    source = loaded("llama")
    setattr(source.generation_config, name, value)
    ours = from_transformers(source)
    with pytest.raises(
        at.ConfigError, match=rf"{name} to {value}.*generation_config.{name} = None"
    ):
        ours.generate(PROMPT)
    setattr(source.generation_config, name, None)
    ours.generate(PROMPT, 1)


def test_every_setting_of_transformers_is_known():
    """A new setting of transformers that changes texts must be honoured or refused."""
    from attendre_core.zoo import generation_config

    harmless = {
        "assistant_confidence_threshold", "assistant_lookbehind", "bos_token_id", "cache_config",
        "cache_implementation", "compile_config", "continuous_batching_config",
        "decoder_start_token_id", "disable_compile", "is_assistant", "low_memory",
        "max_cache_len", "max_matching_ngram_size", "max_time", "num_assistant_tokens",
        "num_assistant_tokens_schedule", "output_attentions", "output_hidden_states",
        "output_logits", "output_scores", "pad_token_id", "prefill_chunk_size",
        "prompt_lookup_num_tokens", "remove_invalid_values", "renormalize_logits",
        "return_dict_in_generate", "speculation_type", "target_lookbehind", "token_healing",
        "transformers_version", "use_cache", "use_mtp", "assistant_ensemble_weight",
        "forced_eos_token_id",
    }  # fmt: skip
    honoured = {
        "eos_token_id", "max_new_tokens", "max_length", "do_sample", "temperature", "top_p",
        "top_k", "num_beams", "length_penalty", "stop_strings", "bad_words_ids",
    }  # fmt: skip
    settings = {n for n in transformers.GenerationConfig().to_dict() if not n.startswith("_")}
    unknown = settings - harmless - honoured - set(generation_config.NEUTRAL)
    assert not unknown, f"transformers {transformers.__version__} has new settings: {unknown}"


# ------------------------------------------------------------------ training, text, mistakes


def test_training_changes_the_model_of_transformers():
    source = loaded("llama")
    module = TrainableModel(from_transformers(source, memory=at.preset("MT", kv_size=8, chunk=4)))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        before = source(ids).logits
    module(ids).logits.square().mean().backward()
    optimiser.step()
    with torch.no_grad():
        after = source(ids).logits
    assert not torch.allclose(before, after)
    torch.testing.assert_close(module.model().with_memory(None).logits(ids), after)


def test_text_goes_in_and_out_by_their_tokenizer():
    class Letters:
        """Speaks as a tokenizer of transformers does."""

        def encode(self, text):
            return [1, *(ord(letter) - 60 for letter in text)]

        def decode(self, tokens, skip_special_tokens=False):
            return "".join(chr(t + 60) for t in tokens if t != 1 or not skip_special_tokens)

    source = loaded("llama")
    ours = from_transformers(source, tokenizer=Letters())
    text = ours.generate("ABC", 4)
    assert isinstance(text, str)
    assert text == Letters().decode(ours.generate([1, 5, 6, 7], 4), skip_special_tokens=True)


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(at.CheckpointError, match="has model_type 'gpt2'.* use AttendreCache"):
        from_transformers(
            transformers.GPT2LMHeadModel(
                transformers.GPT2Config(vocab_size=V, n_embd=16, n_layer=1, n_head=2)
            )
        )
    with pytest.raises(at.CheckpointError, match="LlamaModel does not hold .* lm_head"):
        from_transformers(loaded("llama").model)
    with pytest.raises(at.ConfigError, match="expected a loaded model of transformers"):
        from_transformers(torch.nn.Linear(2, 2))
    spread = loaded("llama")
    spread.model.norm.to("meta")
    with pytest.raises(at.ConfigError, match="are on cpu, meta, expected one device"):
        from_transformers(spread)


def written(model, memory):
    """What the advice of the errors gives: the model as it is, with a memory for its cache."""
    ids = torch.tensor([PROMPT])
    cache = AttendreCache(model, memory)
    out = model.generate(ids, past_key_values=cache, max_new_tokens=4, do_sample=False)
    return out[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("how", ["peft", "transformers"])
# Between peft and transformers.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")
def test_adapters_are_refused_with_what_to_do(how):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
    source = loaded("llama")
    source.generation_config.pad_token_id = 0
    before = written(source, "MT+chunk=4:8")
    if how == "peft":
        adapted = peft.get_peft_model(source, config)
    else:
        source.add_adapter(config)
        adapted = source
    message = r"q_proj is a peft\.tuners\.lora.*merge_and_unload\(\), or keep.* AttendreCache\("
    with pytest.raises(at.CheckpointError, match=message):
        from_transformers(adapted)
    got = written(adapted, "MT+chunk=4:8")
    assert got != before
    if how == "peft":
        merged = adapted.merge_and_unload()
        from_transformers(merged)
        assert written(merged, "MT+chunk=4:8") == got


@pytest.mark.parametrize("part", ["whole", "inside"])
def test_compiled_models_serve_as_they_are(part):
    source = loaded("llama")
    want = from_transformers(source).logits(PROMPT)
    if part == "inside":
        source.model = torch.compile(source.model, backend="eager")
    else:
        source = torch.compile(source, backend="eager")
    torch.testing.assert_close(from_transformers(source).logits(PROMPT), want)


@pytest.mark.filterwarnings("ignore:.*quantiz:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning")
def test_quantised_models_are_refused_with_what_to_do():
    source = loaded("llama")
    source.generation_config.pad_token_id = 0
    quantised = torch.ao.quantization.quantize_dynamic(source, {torch.nn.Linear})
    message = r"is quantised \(model.layers.0.self_attn.q_proj is a torch.*AttendreCache\("
    with pytest.raises(at.CheckpointError, match=message):
        from_transformers(quantised)
    assert len(written(quantised, "MT+chunk=4:8")) == 4


@pytest.mark.filterwarnings("ignore:You are calling .generate")  # older transformers
def test_offloaded_models_are_refused_with_what_to_do(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    source = loaded("llama")
    source.generation_config.pad_token_id = 0
    want = written(source, "MT+chunk=4:8")
    away = accelerate.disk_offload(source, tmp_path, execution_device=torch.device("cpu"))
    message = r"is offloaded \(weights of model.embed_tokens are.*AttendreCache\("
    with pytest.raises(at.CheckpointError, match=message):
        from_transformers(away)
    assert written(away, "MT+chunk=4:8") == want


def test_new_tensors_are_made_on_the_device_of_the_model():
    model = from_transformers(loaded("llama").to("meta"))
    assert model.logits(PROMPT).device.type == "meta"
