"""TrainableModel in the hands of transformers.Trainer, accelerate and peft, as they are."""

import os
import pickle

import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

from attendre_torch import (  # noqa: E402
    TrainableModel,
    TrainingOutput,
    bounded,
    from_transformers,
)

V, T = 37, 40
LLAMA = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
T5 = {
    "vocab_size": V, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "dropout_rate": 0.0,
}  # fmt: skip
MEMORY = "attendre-causal+chunk=8:16"


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))


def t5():
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))


def ours(memory=MEMORY):
    return TrainableModel(from_transformers(llama(), memory=memory))


def rows(count=6):
    """Rows that count modulo eight, of different lengths."""
    return [{"input_ids": (torch.arange(T - 3 * (i % 3)) + i) % 8} for i in range(count)]


def padded(examples, side="left"):
    """Make a batch, padded on the left, as tokenizers of decoders do, or on the right."""

    def joined(parts):
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_side=side)

    ids = [example["input_ids"] for example in examples]
    mask, ids = joined([torch.ones_like(row) for row in ids]), joined(ids)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, ids, -100)}


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder), "max_steps": 12, "per_device_train_batch_size": 3,
        "learning_rate": 1e-2, "logging_steps": 1, "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "dataloader_pin_memory": False, "save_strategy": "no",
    }  # fmt: skip
    return transformers.TrainingArguments(**{**settings, **changes})


# ------------------------------------------------------------------ outputs and losses


@pytest.mark.parametrize("count", [None, 100, torch.tensor(100)], ids=["mean", "int", "tensor"])
def test_the_loss_is_that_of_transformers(count):
    theirs = llama()
    module = TrainableModel(from_transformers(theirs))
    ids = torch.randint(0, V, (3, T))
    mask = torch.ones_like(ids)
    mask[0, 30:] = mask[1, 25:] = 0
    labels = torch.where(mask == 1, ids, -100)
    labels[2, 5:9] = -100
    want = theirs(input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=count).loss
    torch.testing.assert_close(module(ids, mask, labels, num_items_in_batch=count).loss, want)


def test_loss_and_gradients_of_an_encoder_decoder_are_those_of_transformers():
    """Also of the table that three parts share: it is one parameter, with one gradient."""
    theirs = t5()
    assert theirs.lm_head.weight is theirs.shared.weight
    module = TrainableModel(from_transformers(theirs))
    ids, labels = torch.randint(2, V, (2, 15)), torch.randint(2, V, (2, 6))
    labels[0, 4:] = -100
    want, got = theirs(input_ids=ids, labels=labels), module(ids, labels=labels)
    torch.testing.assert_close(got.loss, want.loss)
    torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-4)
    want.loss.backward()
    got.loss.backward()
    own = module.weights.get_parameter("encoder.embedding")
    torch.testing.assert_close(own.grad, theirs.shared.weight.grad, rtol=1e-4, atol=1e-6)
    places = [tensor.data_ptr() for tensor in module.state_dict().values()]
    assert len(places) == len(set(places))  # a Trainer could not save shared ones


def test_an_output_is_a_dict_and_a_tuple_with_attributes():
    output = ours()(rows(1)[0]["input_ids"][None], labels=rows(1)[0]["input_ids"][None])
    assert isinstance(output, dict)
    assert list(output) == ["loss", "logits"]
    assert output.loss is output["loss"] is output[0]
    assert output[:2] == output.to_tuple()
    assert output.last_hidden_state is None
    assert ours()(rows(1)[0]["input_ids"][None]).loss is None
    with pytest.raises(AttributeError, match="no 'past_key_values', only loss, logits"):
        output.past_key_values  # noqa: B018
    halved = torch.utils._pytree.tree_map(lambda tensor: tensor / 2, output)
    assert type(halved) is TrainingOutput
    assert halved.loss == output.loss / 2
    again = pickle.loads(pickle.dumps(TrainingOutput(loss=torch.ones(()))))
    assert again.loss == 1


def test_linear_maps_are_called_as_modules():
    """So what replaces one, or hooks into it, takes part."""
    module, called = ours(), []
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda *_, name=name: called.append(name))
    module(rows(1)[0]["input_ids"][None])
    maps = ("q", "k", "v", "out", "gate", "up", "down")
    want = {f"weights.layers.{i}.{n}" for i in range(2) for n in maps} | {"weights.head"}
    assert set(called) == want


def test_arguments_that_would_have_an_effect_are_refused():
    module, ids = ours(), rows(1)[0]["input_ids"][None]
    module(ids, output_attentions=False, return_dict=True, use_cache=True, inputs_embeds=None)
    with pytest.raises(at.ConfigError, match="position_ids was passed"):
        module(ids, position_ids=torch.zeros_like(ids))
    with pytest.raises(at.ShapeError, match=r"attention_mask has shape \(1, 1, 40, 40\)"):
        module(ids, torch.ones(1, 1, T, T))
    with pytest.raises(at.ShapeError, match=r"labels has shape \(1, 39\).*shifted here"):
        module(ids, labels=ids[:, 1:])
    with pytest.raises(at.ConfigError, match="LlamaForCausalLM, expected a Model.*from_transf"):
        TrainableModel(llama())


# ------------------------------------------------------------------ Trainer, accelerate


def test_trainer(tmp_path):
    """Training, evaluation and saving; the weights are those of the model of transformers."""
    theirs = llama()
    module = TrainableModel(from_transformers(theirs, memory=MEMORY))
    before = theirs.model.layers[0].self_attn.q_proj.weight.detach().clone()
    trainer = transformers.Trainer(
        model=module,
        args=arguments(tmp_path, save_strategy="steps", save_steps=12),
        train_dataset=rows(),
        eval_dataset=rows(),
        data_collator=padded,
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.6 * losses[0]
    found = trainer.evaluate()["eval_loss"]
    with torch.no_grad():
        want = module(**padded(rows(3))).loss
    assert abs(found - float(want)) < 0.2 * found
    assert trainer.predict(rows(3)).predictions.shape == (3, T, V)
    assert not torch.equal(theirs.model.layers[0].self_attn.q_proj.weight, before)
    saved = pytest.importorskip("safetensors.torch").load_file(
        tmp_path / "checkpoint-12" / "model.safetensors"
    )
    other = ours()
    other.load_state_dict(saved)
    ids = rows(1)[0]["input_ids"][None]
    assert torch.equal(other(ids).logits, module(ids).logits)


def one_step(module, folder, batch, parts):
    """Make one step of SGD by a Trainer; return the loss that it reports."""
    trainer = transformers.Trainer(
        model=module,
        args=arguments(
            folder, max_steps=1, per_device_train_batch_size=batch,
            gradient_accumulation_steps=parts, optim="sgd", max_grad_norm=0.0,
        ),
        train_dataset=rows(),
        data_collator=lambda examples: padded(examples, "right"),
    )  # fmt: skip
    trainer.train()
    return trainer.state.log_history[0]["loss"]


@pytest.mark.parametrize(("batch", "parts"), [(6, 1), (2, 3)])
def test_a_step_of_a_trainer_is_that_of_a_model_of_transformers(tmp_path, batch, parts):
    """It counts the labels of all accumulated batches, and divides every sum by their number."""
    theirs, shared = llama(), llama()
    module = TrainableModel(from_transformers(shared))
    want = one_step(theirs, tmp_path, batch, parts)
    assert one_step(module, tmp_path, batch, parts) == pytest.approx(want, rel=1e-5)
    for one, two in zip(shared.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_trainer_recomputes_if_asked(tmp_path):
    module = ours()
    checkpointing = (
        "activation_checkpointing"
        if hasattr(transformers.TrainingArguments, "activation_checkpointing")
        else "gradient_checkpointing"
    )
    transformers.Trainer(
        model=module, args=arguments(tmp_path, max_steps=1, **{checkpointing: True}),
        train_dataset=rows(), data_collator=padded,
    ).train()  # fmt: skip
    assert module.checkpoint
    with pytest.raises(at.ConfigError, match="expected no options"):
        module.activation_checkpointing_enable(every_n_layers=2)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    module = ours()
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(rows(), batch_size=3, collate_fn=padded)
    module, optimiser, loader = accelerator.prepare(module, optimiser, loader)
    losses = []
    for _ in range(6):
        for batch in loader:
            output = module(**batch)
            accelerator.backward(output.loss)
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(output.loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    assert isinstance(output, TrainingOutput)
    assert output.logits.dtype == torch.float32  # accelerate converts outputs


# ------------------------------------------------------------------ peft

# Between peft and transformers.
QUIET = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")


def fitted(module, steps=12):
    chosen = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimiser, losses = torch.optim.AdamW(chosen, lr=2e-2), []
    for _ in range(steps):
        loss = module(**padded(rows())).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@QUIET
@pytest.mark.parametrize("task", [None, "CAUSAL_LM"])
def test_peft_attached_after(task, tmp_path):
    """Adapters alone are trained; they are saved, loaded and merged as on any model."""
    peft = pytest.importorskip("peft")
    inner = ours()
    before = [p.detach().clone() for p in inner.parameters()]
    config = peft.LoraConfig(
        r=4, lora_dropout=0.1, target_modules=["q", "v", "up", "down"], task_type=task
    )
    module = peft.get_peft_model(inner, config)
    assert all("lora_" in name for name, p in module.named_parameters() if p.requires_grad)
    losses = fitted(module)
    assert losses[-1] < 0.95 * losses[0]
    frozen = [p for name, p in inner.named_parameters() if "lora_" not in name]
    assert all(torch.equal(one, two) for one, two in zip(before, frozen, strict=True))
    module.eval()
    ids = rows(1)[0]["input_ids"][None]
    with torch.no_grad():
        want = module(input_ids=ids).logits
    torch.testing.assert_close(inner.model().logits(ids), want)
    module.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(ours(), tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=ids).logits.detach(), want)
    merged = module.merge_and_unload()
    assert isinstance(merged, TrainableModel)
    assert len(list(merged.parameters())) == len(before)
    torch.testing.assert_close(merged.model().logits(ids), want)


def test_peft_finds_every_linear_map():
    """Also those with biases and those of an encoder-decoder; tables stay what they are."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    qwen = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA))
    for theirs, count in ((qwen, 2 * 7 + 1), (t5(), 2 * 6 + 2 * 10)):
        config = peft.LoraConfig(r=2, target_modules="all-linear")
        inner = TrainableModel(from_transformers(theirs))
        ids = torch.randint(2, V, (1, 9))
        want = inner(ids, labels=ids)
        module = peft.get_peft_model(inner, config)
        output = module(input_ids=ids, labels=ids)
        torch.testing.assert_close(output.logits, want.logits)
        output.loss.backward()
        moved = [n for n, p in module.named_parameters() if "lora_B" in n and p.grad.any()]
        assert len(moved) == count
        plain = tree_leaves(inner.model().params)
        assert len(plain) == len(tree_leaves(from_transformers(theirs).params))


def test_trainer_with_peft(tmp_path):
    """The Trainer saves adapters alone, and counts labels through the wrapper."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q", "v", "up", "down"], task_type="CAUSAL_LM")
    module = peft.get_peft_model(ours(), config)
    trainer = transformers.Trainer(
        model=module, args=arguments(tmp_path, learning_rate=2e-2), train_dataset=rows(),
        data_collator=padded,
    )  # fmt: skip
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.98 * losses[0]
    trainer.save_model(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "adapter" / "model.safetensors").exists()


# ------------------------------------------------------------------ models of transformers


def adapted():
    peft = pytest.importorskip("peft")
    names = ["q_proj", "v_proj", "up_proj", "down_proj"]
    return peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=names))


@QUIET
def test_peft_attached_before():
    """A model of transformers with adapters trains through the memory as it is, unmerged."""
    module = adapted()
    with bounded(module, MEMORY) as cache:
        losses = fitted(module)
        assert losses[-1] < 0.95 * losses[0]
        assert {used for report in cache.reports() for used in report.used} == {16 + 8}
        ids = rows(1)[0]["input_ids"][None]
        with torch.no_grad():
            want = module(input_ids=ids).logits
    merged = TrainableModel(from_transformers(module.merge_and_unload(), memory=MEMORY))
    torch.testing.assert_close(merged(ids).logits, want, rtol=1e-4, atol=1e-5)


@QUIET
def test_adapters_have_the_same_gradients_before_and_after():
    """Through the same memory: on transformers' model, and on ours."""
    peft = pytest.importorskip("peft")
    names = {"q": "self_attn.q_proj", "v": "self_attn.v_proj", "up": "mlp.up_proj"}
    names["down"] = "mlp.down_proj"
    before = adapted()
    after = peft.get_peft_model(ours(), peft.LoraConfig(r=4, target_modules=list(names)))
    pairs = []
    for i in range(2):
        for own, theirs in names.items():
            one = before.get_submodule(f"base_model.model.model.layers.{i}.{theirs}")
            two = after.get_submodule(f"base_model.model.weights.layers.{i}.{own}")
            with torch.no_grad():
                torch.nn.init.normal_(one.lora_B.default.weight, std=0.1)
                for part in ("lora_A", "lora_B"):
                    source, copy = getattr(one, part).default, getattr(two, part).default
                    copy.weight.copy_(source.weight)
                    pairs.append((source.weight, copy.weight))
    batch = padded(rows(), "right")
    with bounded(before, MEMORY):
        before(**batch).loss.backward()
    after(**batch).loss.backward()
    for one, two in pairs:
        assert one.grad.any()
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-6)


@QUIET
def test_trainer_with_a_bounded_model(tmp_path):
    module = adapted()
    with bounded(module, MEMORY) as cache:
        trainer = transformers.Trainer(
            model=module, args=arguments(tmp_path, learning_rate=2e-2), train_dataset=rows(),
            data_collator=padded,
        )  # fmt: skip
        trainer.train()
        assert {used for report in cache.reports() for used in report.used} == {16 + 8}
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.98 * losses[0]


def test_recomputing_without_the_cache_is_refused():
    """Transformers would take the cache away, and train with full attention."""
    theirs = llama().train()
    if hasattr(theirs, "activation_checkpointing_enable"):
        theirs.activation_checkpointing_enable()
    else:
        theirs.gradient_checkpointing_enable()
    ids = rows(1)[0]["input_ids"][None]
    with (
        bounded(theirs, MEMORY),
        pytest.raises(at.ConfigError, match="checkpointing takes it away"),
    ):
        theirs(input_ids=ids, labels=ids)
