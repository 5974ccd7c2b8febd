"""Runs snippets of docs/guides/migration.md that use another package: run_peer_snippets.py PEER.

For a package that needs a transformers with which ours does not run, so that a page of examples
cannot run as a whole. `nox -s attention-sinks` has an environment for it, without attendre-core.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "migration.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"^from attendre_torch import .*$", re.MULTILINE)
#: What the page calls a checkpoint of the reader's own.
CHECKPOINT = Path("path/to/checkpoint")


def main(peer: str) -> None:
    """Run the first block, which makes a model, and then every block that imports the peer."""
    first, *others = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    theirs = [block for block in others if re.search(rf"^from {peer}\b", block, re.MULTILINE)]
    if not theirs:
        raise SystemExit(f"{PAGE.name}: no snippet imports {peer}")
    namespace: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(OURS.sub("", first), namespace)
        namespace["model"].save_pretrained(CHECKPOINT)
        for block in theirs:
            exec(block, namespace)
        os.chdir(PAGE.parent)
    print(f"{len(theirs)} snippets with {peer} ran")


if __name__ == "__main__":
    main(*sys.argv[1:])
