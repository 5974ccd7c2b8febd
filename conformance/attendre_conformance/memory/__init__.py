"""Key-value and data-only memories: the cases, their streams, and their laws."""
