"""Multi-token prediction: a module that was trained with the model drafts what comes after its next token.

See `eagle_drafter` for the drafting, `mtp_head` for the network.
"""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field

from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DrafterContext, SpecDecodeConfig
from tokenloom.loader.sources import resolve_model
from tokenloom_spec_decode.eagle_drafter import EagleDrafter
from tokenloom_spec_decode.mtp_head import load_mtp

__all__ = ["MtpConfig"]


@final
class MtpConfig(SpecDecodeConfig):
    """Settings of `spec_decode=mtp`."""

    source: str | None = Field(
        default=None, description="Folder with the module, or hf:org/name; it was trained with this target."
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
                "spec_decode=mtp needs a module that was trained with this model: set spec_decode.source to the folder "
                "that holds it or to hf:org/name; spec_decode=ngram needs none"
            )
        head = load_mtp(resolve_model(self.source), context)
        return EagleDrafter(head, context, keeps_probs=self.verifier == "rejection", tree_width=self.tree_width)
