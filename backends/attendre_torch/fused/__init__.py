"""Kernels for NVIDIA GPUs: attention and scores without the matrix of all pairs, and records.

`dispatch` says what they can do and declines the rest, `launch` calls the two kernels in
`triton_kernels`, and `traced` does so in compiled code. Triton is imported when the first kernel is
launched. `records` calls the kernels in `record_kernels`, which keep the records of a memory in few
launches.
"""
