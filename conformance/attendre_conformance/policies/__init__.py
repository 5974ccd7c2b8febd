"""Eviction policies: the laws each one must obey, and those of the paper's rules."""
