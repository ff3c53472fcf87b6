"""EAGLE-3: a one-layer head on states of three of the target's layers drafts a chain or a tree.

See `eagle_drafter` for the drafting, `eagle_tree` for the tree, `eagle3_head` for the network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.quant import Quantizer
from tokenloom.interfaces.spec_decode import DrafterContext
from tokenloom_spec_decode.eagle3_head import load_eagle3
from tokenloom_spec_decode.eagle_drafter import EagleHead
from tokenloom_spec_decode.head_config import HeadConfig

__all__ = ["Eagle3Config"]


@final
class Eagle3Config(HeadConfig):
    """Settings of `spec_decode=eagle3`."""

    tree_width: Annotated[int, Field(ge=1, le=32)] = Field(
        default=3, description="Nodes that grow on at each depth of a draft tree, as many children each; 1 is a chain."
    )
    lookup_match: Annotated[int, Field(ge=0, le=32)] = Field(
        default=2,
        description="Where so many last tokens occurred before, what followed is drafted without the head; 0 never.",
    )

    @property
    def drafter(self) -> str:
        return "eagle3"

    @property
    def missing_source(self) -> str:
        return (
            "spec_decode=eagle3 needs a head that was trained for this model: set spec_decode.source to its folder "
            "or to hf:org/name, or train one with tokenloom train-drafter kind=eagle3"
        )

    def load_head(self, folder: Path, context: DrafterContext, quantizer: Quantizer) -> EagleHead:
        return load_eagle3(folder, context, quantizer)
