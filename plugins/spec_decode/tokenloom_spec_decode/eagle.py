"""EAGLE: a one-layer head on the target's final state drafts a chain, or a tree as version 2 grows it.

See `eagle_drafter` for the drafting, `eagle_tree` for the tree, `eagle_head` for the network.
"""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field

from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DrafterContext, SpecDecodeConfig
from tokenloom.loader.sources import resolve_model
from tokenloom_spec_decode.eagle_drafter import EagleDrafter
from tokenloom_spec_decode.eagle_head import load_eagle

__all__ = ["EagleConfig"]


@final
class EagleConfig(SpecDecodeConfig):
    """Settings of `spec_decode=eagle`."""

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
                "spec_decode=eagle needs a head that was trained for this model: set spec_decode.source to its folder "
                "or to hf:org/name; spec_decode=ngram needs none"
            )
        head = load_eagle(resolve_model(self.source), context)
        return EagleDrafter(head, context, keeps_probs=self.verifier == "rejection", tree_width=self.tree_width)
