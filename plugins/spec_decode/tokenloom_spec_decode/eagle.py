"""EAGLE: a one-layer head on the target's final state drafts a chain, or a tree as version 2 grows it.

See `eagle_drafter` for the drafting, `eagle_tree` for the tree, `eagle_head` for the network.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from tokenloom.interfaces.quant import Quantizer
from tokenloom.interfaces.spec_decode import DrafterContext
from tokenloom_spec_decode.eagle_drafter import EagleHead
from tokenloom_spec_decode.eagle_head import load_eagle
from tokenloom_spec_decode.head_config import HeadConfig

__all__ = ["EagleConfig"]


@final
class EagleConfig(HeadConfig):
    """Settings of `spec_decode=eagle`."""

    @property
    def drafter(self) -> str:
        return "eagle"

    @property
    def missing_source(self) -> str:
        return (
            "spec_decode=eagle needs a head that was trained for this model: set spec_decode.source to its folder "
            "or to hf:org/name"
        )

    def load_head(self, folder: Path, context: DrafterContext, quantizer: Quantizer) -> EagleHead:
        return load_eagle(folder, context, quantizer)
