"""A trace as a single HTML file to explore, which works from disk and loads nothing else.

The traced text may be anything, so it never becomes markup: it is embedded as JSON without the
characters that are special in HTML, and shown as text nodes. The content security policy allows
only this package's script and style, identified by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendre_core.evaluation.tracing.labels import room, short_names
from attendre_core.evaluation.tracing.record import STATES, LayerTrace, PolicyTrace, TextTrace
from attendre_core.layer.trace import REASONS

__all__ = ["page_data", "page_of"]

_PARTS = Path(__file__).parent / "page"
_SCRIPTS = ("decode.js", "drawing.js", "words.js", "picture.js", "page.js")
#: Weights are stored as multiples of 1 / 65535.
_ONE = 65535


def page_of(trace: TextTrace) -> str:
    """Return the page as HTML.

    Examples
    --------
    >>> page = page_of(TextTrace("Nothing read", (), ()))
    >>> page.startswith("<!doctype html>") and "Nothing read" in page
    True
    """
    style = _part("page.css")
    # All scripts share one block scope, so that none of their names becomes global.
    body = "\n".join(_part(name).replace('"use strict";\n', "") for name in _SCRIPTS)
    script = f'"use strict";\n{{\n{body}}}\n'
    security = (
        f"default-src 'none'; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    filled = {
        "title": html.escape(trace.title or "attendre trace"),
        "security": html.escape(security),
        "style": style,
        "script": script,
        "data": _as_script_data(page_data(trace)),
    }
    # One pass: placeholders inside the filled-in text are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], _part("page.html"))


def page_data(trace: TextTrace) -> dict[str, Any]:
    """Return the data of the page; arrays are packed, and equal ones are stored once."""
    packed: dict[tuple[int, str], int] = {}
    short, shared = short_names([policy.name for policy in trace.policies])
    policies = [
        {**_policy_data(policy, packed), "short": name, "right": policy.answers(trace.answer)}
        for policy, name in zip(trace.policies, short, strict=True)
    ]
    return {
        "title": trace.title,
        "answer": trace.answer,
        "shared": shared,
        "start": trace.winner,
        "states": STATES,
        "reasons": REASONS,
        "words": trace.words,
        "policies": policies,
        "packed": list(packed),
    }


def _policy_data(policy: PolicyTrace, packed: dict[tuple[int, str], int]) -> dict[str, Any]:
    memory = policy.memory
    return {
        "name": policy.name,
        "chunk": memory.chunk,
        "visible": memory.present == "visible",
        "perHead": memory.per_head,
        "full": policy.full,
        "steps": policy.steps,
        "next": policy.next_words,
        "layers": [
            {**_layer_data(layer, packed), "room": room(policy, layer)} for layer in policy.layers
        ],
    }


def _layer_data(layer: LayerTrace, packed: dict[tuple[int, str], int]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "layer": layer.layer,
        "window": layer.window,
        "born": _packed(np.minimum(layer.born, layer.steps), packed),
        "gone": _packed(layer.gone + 1, packed),
        "reason": _packed(layer.reason, packed),
        "attention": None,
    }
    attended = layer.attended
    if attended is not None:
        weight = np.rint(attended.weight * _ONE).astype(np.int32)
        data["attention"] = {
            "step": attended.step,
            "heads": len(attended.weight),
            "position": _packed(attended.position, packed),
            "weight": _packed(weight, packed, wide=True),
        }
    return data


def _packed(array: NDArray[Any], packed: dict[tuple[int, str], int], wide: bool = False) -> int:
    """Pack an array of whole numbers into the fewest bytes per number; return its index."""
    most = _ONE if wide else int(array.max(initial=0))
    width = 1 if most < 2**8 else 2 if most < 2**16 else 4
    text = base64.b64encode(array.astype(f"<u{width}").tobytes()).decode("ascii")
    return packed.setdefault((width, text), len(packed))


def _as_script_data(data: dict[str, Any]) -> str:
    """Write JSON that cannot close the script element that contains it, whatever the text."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
