"""Laws of what is not a part of the paper: soft masks, entries beside a memory, slots."""
