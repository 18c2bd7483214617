"""What a backbone's vectors tell of the tokens that follow: logit lens and next-token probe.

Source: Value Aggregation, appendix D (the next-token loss of a language model is InfoNCE with the rows of
the unembedding as keys) and appendix E (tokens at later offsets, decoded layer by layer).
"""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.token_prediction.config import (
        LinearNextToken,
        LogitLensConfig,
        NextTokenConfig,
        OwnNextToken,
        TokenFrequencies,
    )
    from permafrost.stages.token_prediction.lens import LensScores, logit_lens, require_offsets
    from permafrost.stages.token_prediction.next_token import NextTokenScores, probe_next_token
    from permafrost.stages.token_prediction.prefixes import require_prefixes
    from permafrost.stages.token_prediction.stored_tokens import require_tokens

__getattr__ = late_names(__name__)

__all__ = [
    "LensScores",
    "LinearNextToken",
    "LogitLensConfig",
    "NextTokenConfig",
    "NextTokenScores",
    "OwnNextToken",
    "TokenFrequencies",
    "logit_lens",
    "probe_next_token",
    "require_offsets",
    "require_prefixes",
    "require_tokens",
]
