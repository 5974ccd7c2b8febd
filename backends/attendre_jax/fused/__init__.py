"""Kernels for TPUs that attend and score without the matrix of all pairs.

`dispatch` says what they can do and declines the rest, `passes` chooses between the two kernels in
`pallas_kernels`, called by `launch`, and the same in plain JAX in `dense`. Pallas is imported when
the first kernel is launched.
"""
