"""Compile the Triton kernels for records, and before them those of `compile_triton.py`.

Run as a script: ``python compile_records.py quick``.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from typing import Any

import compile_triton
import triton
from compile_triton import resources
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attendre_core.ops.admission import SNAP_RANGES
from attendre_torch.fused import record_kernels, records

#: The blocks with which `records` launches a step of S=128, M=1024 and heads of 64.
BLOCKS: dict[str, dict[str, Any]] = {
    "mean_less_deviations": {
        "of_range": SNAP_RANGES[0],
        "of_largest": SNAP_RANGES[1],
        "block": 1024,
    },
    "keys": {"block": 256},
    "rotate": {"row_block": 16, "half_block": 32},
    "write_entries": {"entry_block": 16, "key_block": 64, "value_block": 64},
    "count_evicted": {"block": 128},
}
#: Pointers that are not to int32 numbers.
POINTERS = {
    **dict.fromkeys(["score", "start", "primary", "x", "frequency", "rotated"], "*fp32"),
    **dict.fromkeys(["counted", "write", "valid", "new_valid"], "*u8"),
    **dict.fromkeys(["slot"], "*i64"),
    **dict.fromkeys(["order", "position", "evictions", "refusals", "arrival"], "*i32"),
    **dict.fromkeys(["new_arrival", "since", "counts"], "*i32"),
}


def compiled(name: str, capability: int, dtype: str) -> Any:
    """Compile one kernel; keys and values are of the dtype."""
    kernel, constants = getattr(record_kernels, name), BLOCKS[name]
    data = ("key", "value", "new_key", "new_value") if name == "write_entries" else ()
    pointers = {**POINTERS, **dict.fromkeys(data, f"*{dtype}")}
    if name == "keys":
        pointers["key"] = "*i64"
    signature = {
        each: "constexpr" if each in constants else pointers.get(each, "i32")
        for each in kernel.arg_names
    }
    if name == "mean_less_deviations":
        signature["deviations"] = "fp32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=records.OPTIONS)


def main() -> None:
    """Compile all kernels and print one line for each."""
    for name, capability in itertools.product(record_kernels.__all__, (80, 90)):
        for dtype in ("fp32", "bf16") if name == "write_entries" else ("fp32",):
            result = compiled(name, capability, dtype)
            ptx = result.asm["ptx"]
            made = {
                "cubin": len(result.asm["cubin"]),
                "shared": result.metadata.shared,
                "atomics": len(re.findall(r"\b(?:atom|red)\.", ptx)),
                "approximate": re.findall(r"\b(?:sin|cos|sqrt|div)\.(?:approx|full)\S*", ptx),
                **resources(result.asm["cubin"]),
            }
            print(json.dumps({"kernel": name, "dtype": dtype, **made}), flush=True)


if __name__ == "__main__":
    compile_triton.main(sys.argv[1])
    main()
