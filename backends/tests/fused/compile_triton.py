"""Compile the Triton kernels for GPUs, without a GPU, and print what came out as lines of JSON.

Run as a script, because Triton decides when it is imported whether it interprets:
``python compile_triton.py quick`` or ``python compile_triton.py thorough``.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attendre_torch.fused import launch, triton_kernels

SIZES = {"fp32": 4, "fp16": 2, "bf16": 2}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
#: Pointers to numbers of these types; None = passed as None; the dtype of queries for True.
ROWS = {"query": True, "key": True, "value": True, "output": True, "sums": "fp32"}
COLUMNS = {"query": True, "key": True, "sums": "fp32", "weight": "fp32", "pooled": "fp32"}
TIMES = {"query_time": "i32", "key_time": "i32"}
DOCUMENTS = {"query_document": "i32", "key_document": "i32"}
#: Arguments that may be any number.
COUNTS = ("heads", "group", "queries")


def variants(thorough: bool) -> Iterator[dict[str, Any]]:
    """Yield what to compile: a kernel, the dtype, a capability, widths, and its options."""
    # float16 is compiled like bfloat16, and quickly only one of them.
    for dtype, capability in itertools.product(SIZES if thorough else ("fp32", "bf16"), (80, 90)):
        common = {"dtype": dtype, "capability": capability}
        for dim in (16, 64, 128, 256) if thorough else (64,):
            at = {**common, "dim": dim, "rows": 512}
            yield {**at, "kernel": "attend_rows", "documents": True, "without": []}
            yield {**at, "kernel": "pool_columns", "documents": True, "how": "sum", "without": []}
        if not thorough:
            continue
        for documents, rows in itertools.product((False, True), (1, 512)):
            at = {**common, "dim": 64, "rows": rows, "documents": documents}
            for without in ([], ["value", "output"]):
                yield {**at, "kernel": "attend_rows", "without": without}
            for how, without in itertools.product(
                ("sum", "max", "mean"), ([], ["weight"], ["sums"], ["sums", "weight"])
            ):
                yield {**at, "kernel": "pool_columns", "how": how, "without": without}
        for precision in ("tf32", "tf32x3") if dtype == "fp32" else ():
            at = {**common, "dim": 64, "rows": 512, "documents": False, "precision": precision}
            yield {**at, "kernel": "attend_rows", "without": []}
            yield {**at, "kernel": "pool_columns", "how": "sum", "without": []}


def compiled(variant: dict[str, Any]) -> Any:
    """Compile one variant as `launch` would launch it."""
    kernel = getattr(triton_kernels, variant["kernel"])
    dtype, dim = variant["dtype"], variant["dim"]
    blocks = launch.blocks_for(variant["rows"], 4096, dim, dim, SIZES[dtype])
    pointers = {**(ROWS if variant["kernel"] == "attend_rows" else COLUMNS), **TIMES, **DOCUMENTS}
    left_out = [*variant["without"], *([] if variant["documents"] else DOCUMENTS)]
    constants: dict[str, Any] = {
        "how": variant.get("how"),
        "query_block": blocks.queries,
        "slot_block": blocks.slots,
        "key_block": blocks.key,
        "value_block": blocks.value,
        "precision": variant.get("precision", "ieee"),
        "upcast": False,
        **dict.fromkeys(left_out),
    }
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = "*" + (dtype if pointers[name] is True else pointers[name])
        else:
            signature[name] = "fp32" if name == "scale" else "i32"
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    # As in a launch: memory is aligned, and 16 divides strides and widths.
    attrs = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name][0] == "*" or (signature[name] == "i32" and name not in COUNTS)
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attrs)
    target = GPUTarget("cuda", variant["capability"], 32)
    options = {"num_warps": blocks.warps, **launch.OPTIONS}
    return triton.compile(source, target=target, options=options)


def resources(cubin: bytes) -> dict[str, int]:
    """Return how many registers a thread has, and how many bytes it spills to local memory."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(CUOBJDUMP), "--dump-resource-usage", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(part.split(":")[:2] for part in text.split() if part.count(":") == 1)
    return {"registers": int(found["REG"]), "stack": int(found["STACK"])}


def main(how: str) -> None:
    """Compile all variants and print one line for each."""
    for variant in variants(how == "thorough"):
        result = compiled(variant)
        ptx = result.asm["ptx"]
        made = {
            "cubin": len(result.asm["cubin"]),
            "shared": result.metadata.shared,
            "tensor_cores": "mma.sync" in ptx or "wgmma" in ptx,
            "atomics": len(re.findall(r"\b(?:atom|red)\.", ptx)),
            **resources(result.asm["cubin"]),
        }
        print(json.dumps({**variant, **made}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
