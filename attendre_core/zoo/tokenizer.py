"""Text to token ids and back; the kinds of tokenizers live in `attendre_core.zoo.tokenizers`."""

from attendre_core.zoo.tokenizers import Tokenizer, tokenizer_of

__all__ = ["Tokenizer", "tokenizer_of"]
