"""``python -m attendre_core.cli``: the ``attendre`` command where no script is installed."""

import sys

from attendre_core.cli import main

sys.exit(main())
