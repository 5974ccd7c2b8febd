from attendre_core.positions.published.transformer_xl import (
    TransformerXLPositions as TransformerXLPositions,
)
