"""What the tests of models of transformers share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The scripts beside this file import each other.
sys.path.insert(0, str(Path(__file__).parent))
