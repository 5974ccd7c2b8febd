"""Kernels for NVIDIA GPUs that attend and score without the matrix of all pairs.

`dispatch` says what they can do and declines the rest, `launch` calls the two kernels in
`triton_kernels`, and `traced` does so in compiled code. Triton is imported when the first kernel is
launched.
"""
