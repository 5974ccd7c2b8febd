"""Text to token ids and back, with the tokenizer that came with a checkpoint: one kind per file."""

from attendre_core.zoo.tokenizers.base import Tokenizer
from attendre_core.zoo.tokenizers.finding import tokenizer_at, tokenizer_of

__all__ = ["Tokenizer", "tokenizer_at", "tokenizer_of"]
