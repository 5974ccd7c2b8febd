"""Attendre layers: the cases, their texts, and their laws."""
