"""Drafts where the text repeats itself: what followed the last tokens then is surer than what a head thinks.

Source: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" (2024).
"""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from tokenloom.interfaces.spec_decode import Proposal
from tokenloom_spec_decode.suffix_tree import TextLimits, draft_from

__all__ = ["RepeatedText"]

_MAX_MATCH = 32
_DRAFTS_PER_MATCH = 2
_MIN_PROBABILITY = 0.1
"""As `spec_decode=suffix` has them: longest run, drafts for each token of it, least likely path by counts."""


@final
class RepeatedText:
    """Looks in the request's own tokens; keeps nothing.

    Args:
        min_match: shortest run of last tokens that counts; 0 finds nothing.
    """

    def __init__(self, min_match: int) -> None:
        self._limits = TextLimits(min_match, _MAX_MATCH, _DRAFTS_PER_MATCH, _MIN_PROBABILITY) if min_match else None

    def proposal(self, token_ids: npt.NDArray[np.int32], max_drafts: int, *, as_tree: bool) -> Proposal:
        """What followed the longest run of last tokens most often; empty where no run is long enough.

        Args:
            token_ids: int32 [num_tokens], all of the sequence so far.
            max_drafts: most drafts, or nodes of a tree.
            as_tree: whether to branch.
        """
        if self._limits is None:
            return Proposal()
        drafted = draft_from(token_ids, None, self._limits, max_drafts, as_tree=as_tree)
        return Proposal(drafted.token_ids, drafted.parents)
