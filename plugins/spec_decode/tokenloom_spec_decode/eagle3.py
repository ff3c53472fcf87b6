"""EAGLE-3: a one-layer head on states of three of the target's layers drafts a chain or a tree.

See `eagle_drafter` for the drafting, `eagle_tree` for the tree, `eagle3_head` for the network.
"""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field

from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DrafterContext, SpecDecodeConfig
from tokenloom.loader.sources import resolve_model
from tokenloom_spec_decode.eagle3_head import load_eagle3
from tokenloom_spec_decode.eagle_drafter import EagleDrafter

__all__ = ["Eagle3Config"]


@final
class Eagle3Config(SpecDecodeConfig):
    """Settings of `spec_decode=eagle3`."""

    source: str | None = Field(
        default=None, description="Folder of the head, or hf:org/name; it must have been trained for this target."
    )
    tree_width: Annotated[int, Field(ge=1, le=32)] = Field(
        default=1, description="Nodes that grow on at each depth of a draft tree, as many children each; 1 is a chain."
    )
    policy: PluginChoice = Field(description="How many tokens to propose: nodes of the tree.")

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def build(self, context: DrafterContext) -> EagleDrafter:
        if self.source is None:
            raise ConfigError(
                "spec_decode=eagle3 needs a head that was trained for this model: set spec_decode.source to its folder "
                "or to hf:org/name; spec_decode=ngram needs none"
            )
        head = load_eagle3(resolve_model(self.source), context)
        return EagleDrafter(head, context, keeps_probs=self.verifier == "rejection", tree_width=self.tree_width)
