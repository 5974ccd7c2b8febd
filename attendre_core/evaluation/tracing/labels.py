"""Short names for memories that are shown side by side: what all have in common is said once."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["short_names"]

_PARTS = re.compile(r"(?P<head>.*?)(?P<options>(?:\+[\w.=-]+)*)(?P<size>(?::\d+\w*)?)", re.DOTALL)


def short_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Return the names without the options and the size that all have, and what was left out.

    ``full`` has neither and does not count.

    Examples
    --------
    >>> short_names(["MT+wait=16+k=8:32", "attendre+k=8:32", "full"])
    (['MT+wait=16', 'attendre', 'full'], '+k=8:32')
    >>> short_names(["MT:32", "AS:64"])
    (['MT:32', 'AS:64'], '')
    """
    found = [_PARTS.fullmatch(name) for name in names]
    parts = [
        (m["head"], m["options"].split("+")[1:], m["size"])
        for name, m in zip(names, found, strict=True)
        if m and name != "full"
    ]
    if len(parts) + names.count("full") < len(names) or not parts:
        return list(names), ""
    shared = [o for o in parts[0][1] if all(o in options for _, options, _ in parts)]
    size = parts[0][2] if len({size for *_, size in parts}) == 1 else ""
    short = iter(
        "+".join((head, *(o for o in options if o not in shared))) + own.removesuffix(size)
        for head, options, own in parts
    )
    said = "".join(f"+{option}" for option in shared) + size
    return [name if name == "full" else next(short) for name in names], said
