"""What the tests of fused kernels share."""

from __future__ import annotations

import sys
from pathlib import Path

# The scripts beside this file import each other.
sys.path.insert(0, str(Path(__file__).parent))
