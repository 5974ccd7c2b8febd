"""Train the tiny models: ``python -m attendre_core.evaluation.tiny.train --out FOLDER``.

A seed gives the same batches and the same initial parameters everywhere; results are bit-equal
only on the same machine with the same versions.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.arguments import Parser, whole_number
from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import system
from attendre_core.evaluation.tasks import SYNTHETIC
from attendre_core.evaluation.tasks.accuracy import measure
from attendre_core.evaluation.tiny.recipe import CONFIGS, MODELS, Recipe, architecture
from attendre_core.evaluation.tiny.shipped import load_tiny
from attendre_core.evaluation.tiny.training import FRAMEWORKS, train

__all__ = ["main"]

#: Documents for the accuracy in the manifest; no evaluation uses this seed by default.
_CHECK_SEED, _CHECK_COUNT = 987_654, 400
_EVERY = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Train the models, write their checkpoints, measure their accuracy, write the manifest."""
    arguments = _parser().parse_args(argv)
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = Recipe() if arguments.steps is None else Recipe(steps=arguments.steps)
    models: dict[str, Any] = {}
    for name in arguments.models:
        start = time.perf_counter()
        arrays = train(
            architecture(name),
            recipe,
            seed=arguments.seed,
            framework=arguments.framework,
            on_step=_Log(name),
        )
        models[name] = {
            **write(folder / name, name, arrays),
            "framework": arguments.framework,
            "seed": arguments.seed,
            "recipe": asdict(recipe),
            "seconds": round(time.perf_counter() - start),
        }
        _write_manifest(folder, models)
        models[name]["short_context_accuracy"] = short_context_accuracy(name, folder)
        print(name, json.dumps(models[name]["short_context_accuracy"]), file=sys.stderr)
    _write_manifest(folder, models)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="python -m attendre_core.evaluation.tiny.train", description=__doc__)
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder for the models")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=MODELS, metavar="NAME",
        help=f"models to train: {', '.join(MODELS)} (all)",
    )  # fmt: skip
    parser.add_argument(
        "--framework",
        choices=tuple(FRAMEWORKS),
        default="torch",
        help="framework to train with (torch)",
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, help="seed of parameters and batches (0)"
    )
    parser.add_argument(
        "--steps", type=whole_number(1),
        help=f"training steps; few are enough to try it out ({Recipe().steps})",
    )  # fmt: skip
    return parser


def write(folder: Path, name: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Write a checkpoint for `attendre_core.load`, in half precision; return facts about it."""
    try:
        from safetensors.numpy import save_file
    except ModuleNotFoundError as error:
        raise ConfigError(
            "train: writing the models needs safetensors. Install it with: pip install "
            "'attendre-core[zoo]'."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name], indent=2) + "\n")
    file = folder / "model.safetensors"
    save_file({key: array.astype(np.float16) for key, array in sorted(arrays.items())}, file)
    return {
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "bytes": file.stat().st_size,
        "parameters": sum(array.size for array in arrays.values()),
        "dtype": "float16",
    }


def short_context_accuracy(name: str, folder: Path) -> dict[str, float]:
    """Measure the accuracy of full attention on inputs of up to the training length."""
    model = load_tiny(name, folder=folder)
    accuracy = {}
    for task_name, task in SYNTHETIC.items():
        for answers in ("repeat", "single"):
            documents = list(task(answers).documents(_CHECK_SEED, _CHECK_COUNT, chunks=(3, 8)))
            outcome = measure(model, documents, system("full", 16))
            accuracy[f"{task_name}, {answers}"] = round(float(outcome.right.mean()), 4)
    return accuracy


def _write_manifest(folder: Path, models: dict[str, Any]) -> None:
    content = {"made_by": "python -m attendre_core.evaluation.tiny.train", "models": models}
    (folder / "manifest.json").write_text(json.dumps(content, indent=2) + "\n")


class _Log:
    """Print the mean loss and accuracy every `_EVERY` steps."""

    def __init__(self, name: str) -> None:
        self.name, self.start = name, time.perf_counter()
        self.losses: list[float] = []
        self.shares: list[float] = []

    def __call__(self, step: int, loss: float, right: float) -> None:
        self.losses.append(loss)
        self.shares.append(right)
        if (step + 1) % _EVERY == 0:
            print(
                f"{self.name}: step {step + 1}, loss {np.mean(self.losses[-_EVERY:]):.3f}, "
                f"right {np.mean(self.shares[-_EVERY:]):.1%}, "
                f"{time.perf_counter() - self.start:.0f} s",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
