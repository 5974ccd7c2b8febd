"""Tasks that a real checkpoint is measured on, with a memory: what `attendre eval` runs."""
