from attendre_core.positions.published.deberta import (
    DisentangledPositions as DisentangledPositions,
)
from attendre_core.positions.published.transformer_xl import (
    TransformerXLPositions as TransformerXLPositions,
)
