"""Many documents on disk: read one by one, embedded in a run that survives a kill, written."""

from attendre_core.corpus.documents import Document, Documents, Note
from attendre_core.corpus.embedding import EmbeddingRun, embed_documents
from attendre_core.corpus.tables import table_writer

__all__ = [
    "Document",
    "Documents",
    "EmbeddingRun",
    "Note",
    "embed_documents",
    "table_writer",
]
