"""Embeddings where people already are: in pipelines of scikit-learn, in datasets of Ray.

Each file needs its library, and is imported by its own name. The module for sentence-transformers
is `attendre_torch.sentence_transformers`.
"""
