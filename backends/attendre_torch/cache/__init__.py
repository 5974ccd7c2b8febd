"""Any causal LM of transformers over memories of fixed size, as a cache of transformers."""
