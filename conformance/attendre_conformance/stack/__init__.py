"""Stacks of layers: the cases, their blocks, and their laws."""
