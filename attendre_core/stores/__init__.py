"""Entries that are only read: built once, saved, memory-mapped, searched by keys of their own."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
