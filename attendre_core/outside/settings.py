"""How stores outside of the device are made."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.outside.index import ExactIndex, Index

if TYPE_CHECKING:
    from attendre_core.outside.store import HostStore

__all__ = ["HostStores"]

_EXACT = ExactIndex()


@dataclass(frozen=True)
class HostStores:
    """Settings of stores: each layer of each stream of a model opens one of its own.

    Parameters
    ----------
    capacity, delete, index, dtype
        As in `HostStore`.
    folder
        Keep the arrays in files: every store makes a folder in this one, and leaves it there. None
        keeps them in host memory.

    Examples
    --------
    >>> import attendre_core as at
    >>> stores = at.HostStores(capacity=100_000, dtype="float16")
    >>> config = at.MemoryConfig(at.FIFO(), 512, host=at.HostTier(stores, top_k=32))
    >>> config.kv_memory(0).size, at.preset("MT+host=100000:512").host.store.capacity
    (512, 100000)
    """

    capacity: int
    delete: Literal["oldest", "least-used"] = "oldest"
    index: Index = _EXACT
    folder: str | Path | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        where = type(self).__name__
        checks.whole_number(where, "capacity", self.capacity, least=1, hint="It counts entries.")
        for name, words in (
            ("delete", ("oldest", "least-used")),
            ("dtype", ("float16", "float32", "float64")),
        ):
            given = getattr(self, name)
            if given not in words:
                expected = " or ".join(map(repr, words))
                raise ConfigError(f"{where}: {name} is {given!r}, expected {expected}.")

    def open(self) -> HostStore:
        """Return a new, empty store."""
        from attendre_core.outside.store import HostStore

        folder = None
        if self.folder is not None:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix="store-", dir=self.folder)
        return HostStore(
            self.capacity, delete=self.delete, index=self.index, folder=folder, dtype=self.dtype
        )
