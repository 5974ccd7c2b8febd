"""A live copy of the page that ``attendre trace`` writes, made by the code that is documented."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from attendre_core.cli import main

#: Where it is, seen from the first page of the documentation.
PLACE = "_static/trace.html"


def write_live_trace(app: Any, error: Exception | None) -> None:
    """Write the page at the end of a build that went well."""
    if error is not None or app.builder.format != "html":
        return
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(StringIO()):
            code = main(["trace", "--out", folder])
        if code:
            raise RuntimeError("attendre trace failed, so guides/seeing has no live page.")
        shutil.copyfile(Path(folder) / "trace.html", Path(app.outdir) / PLACE)
