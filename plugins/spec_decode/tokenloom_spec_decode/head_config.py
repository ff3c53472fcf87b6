"""Settings that all drafters with a one-layer head share."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.quant import Quantizer
from tokenloom.interfaces.spec_decode import DrafterContext, SpecDecodeConfig
from tokenloom.loader.sources import resolve_model
from tokenloom.settings_base import UserPath
from tokenloom_spec_decode.draft_quant import DEFAULT_HEAD_QUANT, draft_quantizer, head_quant
from tokenloom_spec_decode.eagle_drafter import EagleDrafter, EagleHead
from tokenloom_spec_decode.shipped_heads import shipped_head

__all__ = ["HeadConfig"]


class HeadConfig(SpecDecodeConfig):
    """Base of the Configs of drafters that are an `EagleDrafter` with a head of their own kind."""

    source: UserPath | None = Field(
        default=None,
        description="Folder of the head, or hf:org/name, trained for this target; null takes the one that is brought.",
    )
    tree_width: Annotated[int, Field(ge=1, le=32)] = Field(
        default=1, description="Nodes that grow on at each depth of a draft tree, as many children each; 1 is a chain."
    )
    min_probability: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.0, description="Drafts less likely than that, by the head's own account, are left out; 0 keeps all."
    )
    lookup_match: Annotated[int, Field(ge=0, le=32)] = Field(
        default=0,
        description="Where so many last tokens occurred before, what followed is drafted without the head; 0 never.",
    )
    quant: str = Field(
        default=DEFAULT_HEAD_QUANT,
        description="Quant plugin for the head's weights, at its defaults; default: int8_dynamic beside native "
        "operations, else none.",
    )
    policy: PluginChoice = Field(description="How many tokens to propose: nodes of the tree.")

    @property
    @abstractmethod
    def drafter(self) -> str:
        """The plugin's name."""

    @property
    @abstractmethod
    def missing_source(self) -> str:
        """What to say where no source is set: which plugin needs what, and where to name it."""

    @abstractmethod
    def load_head(self, folder: Path, context: DrafterContext, quantizer: Quantizer) -> EagleHead:
        """Reads the head in `folder`, and stores it by `quantizer`.

        Raises:
            ModelError: there is none, or one for another target.
        """

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def build(self, context: DrafterContext) -> EagleDrafter:
        folder = (
            shipped_head(self.drafter, context.model_path, f"{self.missing_source}; spec_decode=ngram needs none")
            if self.source is None
            else resolve_model(self.source)
        )
        quant, settings = head_quant(self.quant, context)
        head = self.load_head(folder, context, draft_quantizer(quant, context, settings=settings))
        return EagleDrafter(
            head,
            context,
            keeps_probs=self.verifier == "rejection",
            tree_width=self.tree_width,
            min_probability=self.min_probability,
            lookup_match=self.lookup_match,
        )
