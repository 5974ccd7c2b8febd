"""A checkpoint's configuration, read with suspicion: nothing in it is trusted before a check."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.positions.rope import RoPE
from attendre_core.positions.scaling import Interpolation, Llama3Scaling, Scaling, YaRN

__all__ = ["RawConfig", "read_json"]

#: No published model comes near; beyond it a number is a mistake or an attack.
_MOST = 2**24
#: Every layer costs objects before the first tensor is compared with it.
_MOST_LAYERS = 2**12
_LARGEST = 1e300
_LARGEST_JSON = 64 * 2**20


def read_json(path: Path) -> Any:
    """Read a JSON file of reasonable size; anything wrong is a `CheckpointError`."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise CheckpointError(
                f"{path}: {path.stat().st_size} bytes are too many for a configuration, expected "
                f"at most {_LARGEST_JSON}."
            )
        if not path.is_file():
            raise CheckpointError(f"{path}: is not a file, expected a configuration.")
        return json.loads(path.read_text(encoding="utf-8"))
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: is not valid JSON ({error}). Download the file again."
        ) from error


class RawConfig:
    """Named values of a configuration; every access says what it expects.

    Parameters
    ----------
    values
        As read from ``config.json``.
    where
        The file, for messages.

    Examples
    --------
    >>> RawConfig({"hidden_size": 64}, "config.json").size("hidden_size")
    64
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(
                f"{where}: holds a {type(values).__name__}, expected an object with the model's "
                "sizes. Is this the config.json of a model?"
            )
        self.values: Mapping[str, Any] = values
        self.where = where

    def has(self, name: str) -> bool:
        """Whether the value is there and not null."""
        return self.values.get(name) is not None

    def size(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = _MOST
    ) -> int:
        """Return a whole number from ``least`` to ``most``, at most 4096 for counts of layers."""
        most = min(most, _MOST_LAYERS) if "layer" in name or "block_count" in name else most
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, float) and value.is_integer() and math.isfinite(value):
            value = int(value)
        good = isinstance(value, int) and not isinstance(value, bool)
        if not good or not least <= value <= most:  # type: ignore[operator]
            raise self._refused(name, value, f"a whole number from {least} to {most}")
        return int(value)  # type: ignore[arg-type]

    def token(self, name: str, default: int | None, vocabulary: int) -> int:
        """Return one token id."""
        return self.size(name, default, least=0, most=vocabulary - 1)

    def number(self, name: str, default: float | None = None, *, above: float = -math.inf) -> float:
        """Return a finite number greater than ``above``; what keeps a norm finite is positive."""
        above = max(above, 0.0) if "eps" in name else above
        value = self.values.get(name)
        value = default if value is None else value
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        # A whole number may be too large for a float.
        if not good or not max(above, -_LARGEST) < value < _LARGEST:  # type: ignore[operator]
            more = "" if above == -math.inf else f" above {above:g}"
            raise self._refused(name, value, f"a finite number{more}")
        return float(value)  # type: ignore[arg-type]

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self._refused(name, value, "true or false")
        return value

    def word(self, name: str, default: str | None = None, among: tuple[str, ...] = ()) -> str:
        """Return a text, one of ``among`` if given."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, str) or (among and value not in among):
            raise self._refused(name, value, " or ".join(among) if among else "a text")
        return value

    def part(self, name: str) -> RawConfig:
        """Return a nested configuration, empty if there is none."""
        return RawConfig(self.values.get(name) or {}, f"{self.where}: {name}")

    def words(self, name: str, count: int) -> list[str]:
        """Return a list of ``count`` texts."""
        value = self.values.get(name)
        good = isinstance(value, (list, tuple)) and len(value) == count
        if not good or not all(isinstance(v, str) for v in value):  # type: ignore[union-attr]
            raise self._refused(name, value, f"a list of {count} texts")
        return list(value)  # type: ignore[arg-type]

    def tokens(self, name: str) -> tuple[int, ...]:
        """Return token ids: one, a list of them, or none."""
        value = self.values.get(name)
        listed = value if isinstance(value, (list, tuple)) else [value] * (value is not None)
        if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in listed):
            raise self._refused(name, value, "token ids")
        return tuple(listed)

    def rope(self, default_base: float = 10000.0, *, settings: RawConfig | None = None) -> RoPE:
        """Return the rotation that ``rope_parameters``, or ``rope_theta``, describes."""
        if settings is None:
            settings = self.part(
                "rope_parameters" if self.has("rope_parameters") else "rope_scaling"
            )
        base = settings.number("rope_theta", self.number("rope_theta", default_base))
        kind = str(settings.values.get("rope_type") or settings.values.get("type") or "default")
        trained = self.size("max_position_embeddings", 2048)
        scaling: Scaling | None
        if kind in ("default", "dynamic"):
            # Dynamic scaling changes nothing up to the trained length, and beyond it a memory
            # clamps distances.
            scaling = None
        elif kind == "linear":
            scaling = Interpolation(settings.number("factor", above=0.0))
        elif kind == "yarn":
            for name, usual in (("attention_factor", None), ("mscale", None), ("truncate", True)):
                if settings.values.get(name, usual) != usual:
                    raise settings._refused(name, settings.values[name], "YaRN without it")
            scaling = YaRN(
                settings.number("factor", above=0.0),
                settings.size("original_max_position_embeddings", trained),
                settings.number("beta_fast", 32.0, above=0.0),
                settings.number("beta_slow", 1.0, above=0.0),
            )
        elif kind == "llama3":
            scaling = Llama3Scaling(
                settings.number("factor", above=0.0),
                settings.size("original_max_position_embeddings", trained),
                settings.number("low_freq_factor", 1.0),
                settings.number("high_freq_factor", 4.0),
            )
        else:
            raise settings._refused("rope_type", kind, "default, linear, dynamic, yarn or llama3")
        if base <= 0:
            raise settings._refused("rope_theta", base, "a positive number")
        return RoPE(base=base, scaling=scaling)

    def rope_of(self, layer_type: str, base_name: str, default_base: float) -> RoPE:
        """Return the rotation of one type of layers, where local and global layers differ.

        Parameters
        ----------
        layer_type
            Its entry in ``rope_parameters``; older files have none.
        base_name, default_base
            Where older files keep the base, and what it is if they do not name it.

        Examples
        --------
        >>> config = RawConfig({"rope_local_base_freq": 500.0}, "config.json")
        >>> config.rope_of("sliding_attention", "rope_local_base_freq", 10000.0).base
        500.0
        """
        settings = self.part("rope_parameters").part(layer_type)
        # Older files have one scaling, which is meant for layers that look far.
        older = self.part("rope_scaling").values if layer_type == "full_attention" else {}
        base = {"rope_theta": self.number(base_name, default_base)}
        return self.rope(settings=RawConfig({**base, **older, **settings.values}, settings.where))

    def _refused(self, name: str, value: Any, expected: str) -> CheckpointError:
        shown = "missing" if value is None else repr(value)
        shown = shown if len(shown) < 80 else shown[:77] + "..."
        return CheckpointError(
            f"{self.where}: {name} is {shown}, expected {expected}. Download the file again, or "
            "check that this model is one that attendre_core.zoo knows."
        )
