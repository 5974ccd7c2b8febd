"""Chat templates: where they are found, as transformers renders them, and hostile ones."""

from __future__ import annotations

import json
import shutil
from datetime import datetime

import pytest

import attendre_core as at
from attendre_core.zoo.chat_template import LONGEST, ChatTemplate
from attendre_core.zoo.loading.chat_templates import template_of_folder, template_of_gguf

pytest.importorskip("jinja2")

USER = [{"role": "user", "content": "  Who is é世?  "}]
TALK = [
    {"role": "system", "content": "Be <brief>."}, *USER,
    {"role": "assistant", "content": "<think>hm</think> Pierre."},
    {"role": "user", "content": "Why?"},
]  # fmt: skip
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}"
    "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
NEWER = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- macro show(message, last) -%}
    {%- set ns = namespace(text=message.content) %}
    {%- if '</think>' in ns.text and not last %}
        {%- set ns.text = ns.text.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|start|>' ~ message.role ~ '|' ~ ns.text | trim ~ '<|end|>' }}
{%- endmacro %}
{%- for message in messages %}
    {%- if loop.index > 10 %}{% break %}{% endif %}
    {%- if message.role == 'assistant' %}
        {% generation %}{{ show(message, loop.last) }}{% endgeneration %}
    {%- else %}
        {{- show(message, loop.last) }}
    {%- endif %}
{%- endfor %}
{{- messages | tojson(indent=2) }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ messages | map(attribute='role') | join(', ') | upper }} {{ "%s-%s" | format('a', 1) }}
{%- if tools is not none %}{{ tools }}{% endif %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}
"""


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("source", [CHATML, LLAMA_2, NEWER], ids=["chatml", "llama-2", "newer"])
def test_it_renders_what_transformers_renders(source, prompt):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"<s>": 0, "</s>": 1}, []))
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )
    mine = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    for messages in (USER, TALK):
        want = theirs.apply_chat_template(
            messages, chat_template=source, tokenize=False, add_generation_prompt=prompt
        )
        assert mine.render(messages, prompt=prompt) == want


def test_the_date_is_that_of_the_chat():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}")
    assert template.render(USER, now=datetime(2026, 1, 2)) == "02 Jan 2026"


# ---------------------------------------------------------------- where it is found


def test_folders(tmp_path):
    assert template_of_folder(tmp_path) is None
    settings = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    config = tmp_path / "tokenizer_config.json"

    def write(value):
        config.write_text(json.dumps({**settings, "chat_template": value}))

    write("one")
    found = template_of_folder(tmp_path)
    assert found.source == "one"
    assert found.tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    write([{"name": "tool_use", "template": "two"}, {"name": "default", "template": "three"}])
    found = template_of_folder(tmp_path)
    assert found.source == "three"
    assert found.choose("tool_use").source == "two"
    assert found.choose("{{ 1 }}").render(USER) == "1"
    (tmp_path / "chat_template.jinja").write_text("four")
    assert template_of_folder(tmp_path).source == "four"
    (tmp_path / "chat_template.jinja").unlink()
    for wrong in (5, [5], [{"name": "x"}], {"a": "b"}, [{"name": 3, "template": "x"}]):
        write(wrong)
        with pytest.raises(at.CheckpointError, match="chat_template is a"):
            template_of_folder(tmp_path)
    config.write_text("[]")
    with pytest.raises(at.CheckpointError, match="holds no object"):
        template_of_folder(tmp_path)
    config.unlink()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(at.CheckpointError, match="cannot be read as text"):
        template_of_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("x" * (4 * LONGEST + 1))
    with pytest.raises(at.CheckpointError, match="too many for a chat template"):
        template_of_folder(tmp_path)


def test_gguf_metadata():
    key = "tokenizer.chat_template"
    assert template_of_gguf("file", {}) is None
    metadata = {
        key: "one", f"{key}.tool_use": "two", "tokenizer.ggml.tokens": ["<s>", "</s>"],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 7,
    }  # fmt: skip
    found = template_of_gguf("file", metadata)
    assert (found.source, found.choose("tool_use").source) == ("one", "two")
    assert found.tokens == {"bos_token": "<s>"}, "an id beyond the vocabulary is no token"
    with pytest.raises(at.CheckpointError, match="is no text"):
        template_of_gguf("file", {key: 5})


# ---------------------------------------------------------------- hostile ones

BOMBS = {
    "loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "output": "{% for i in range(100000) %}" + "x" * 100 + "{% endfor %}",
    "repeated": "{{ 'a' * 10**10 }}",
    "list": "{{ [0] * 10**10 }}",
    "joined": "{% set n = namespace(x='a' * 1000) %}{% for i in range(99) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "added": "{% set n = namespace(x='a' * 1000) %}{% for i in range(99) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "nested": "{% set n = namespace(x='a') %}{% for i in range(45) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "nested-json": "{% set n = namespace(x='a') %}{% for i in range(45) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson|length }}",
    "nested-text": "{% set n = namespace(x='a') %}{% for i in range(45) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|string|length }}",
    "replaced": "{% set n = namespace(x='a' * 1000) %}{% for i in range(99) %}"
    "{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
    "replaced-by-filter": "{% set n = namespace(x='a' * 1000) %}{% for i in range(99) %}"
    "{% set n.x = n.x|replace('a', n.x) %}{% endfor %}",
    "number": "{{ 9 ** 9999999 }}",
    "centred": "{{ 'a'|center(10**10) }}",
    "left": "{{ 'a'.ljust(10**10) }}",
    "formatted": "{{ '%10000000000d' % 1 }}",
    "format": "{{ '{:10000000000}'.format(1) }}",
    "format-of-format": "{{ '{:{}}'.format(1, 10**10) }}",
    "indented": "{{ ('a\n' * 10000)|indent(10000) }}",
    "tabs": "{{ ('\t' * 100000).expandtabs(10000) }}",
    "separated": "{{ range(100000)|join('a' * 100000) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
}
ESCAPES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "attr": "{{ ''|attr('__class__') }}",
    "format": "{{ '{0.__class__}'.format(messages) }}",
    "mutation": "{{ messages.append(1) }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "guard": "{{ environment.guard }}{{ self.environment.guard }}",
    "undefined": "{{ nothing.at.all }}",
    "syntax": "{% for %}",
    "unknown": "{{ 1|nothing }}",
    "division": "{{ 1 / 0 }}",
    "types": "{{ 'a' * 'b' }}{{ {} + [] }}",
}


#: What Jinja writes as nothing.
SILENT = ("attr", "format", "globals")


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.usefixtures("little_memory")
def test_a_template_cannot_take_hours_or_all_of_the_memory(name):
    with pytest.raises(at.CheckpointError, match=r"^file: the chat template .* template=") as told:
        ChatTemplate(BOMBS[name], where="file").render(USER)
    assert len(str(told.value)) < 500


@pytest.mark.parametrize("name", ESCAPES)
def test_a_template_stays_in_its_sandbox(name):
    template = ChatTemplate(ESCAPES[name], where="file")
    if name in SILENT:
        assert template.render(USER).strip() == ""
    else:
        with pytest.raises(at.CheckpointError, match="file: the chat template"):
            template.render(USER)


def test_templates_are_bounded_and_may_refuse():
    with pytest.raises(at.CheckpointError, match=f"expected at most {LONGEST}"):
        ChatTemplate("x" * (LONGEST + 1), where="file").render(USER)
    with pytest.raises(at.ConfigError, match="that was given cannot be rendered"):
        ChatTemplate("{{ 1 / 0 }}").render(USER)
    with pytest.raises(at.ConfigError, match=r"refuses these messages \(user\): not so"):
        ChatTemplate("{{ raise_exception('not so') }}", where="file").render(USER)


def test_long_documents_are_no_attack():
    document = "word " * 400_000
    messages = [{"role": "user", "content": document}]
    assert ChatTemplate(CHATML).render(messages).count("word") == 400_000


def test_a_model_with_a_broken_template_loads_and_says_so(chat_folder, tmp_path):
    folder = shutil.copytree(chat_folder, tmp_path / "broken")
    (folder / "chat_template.jinja").write_text("{% for %}")
    model = at.load(folder, memory=64)
    assert len(model.generate("Who?", max_new_tokens=2)) > 0
    with pytest.raises(at.CheckpointError, match=r"chat_template\.jinja: the chat template"):
        model.chat().send("Who?")
    assert str(model.chat(template=CHATML).send("Who?", 2)) is not None
