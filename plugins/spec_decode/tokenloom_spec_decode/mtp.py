"""Multi-token prediction: a module that was trained with the model drafts what comes after its next token.

See `eagle_drafter` for the drafting, `mtp_head` for the network.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from pydantic import Field

from tokenloom.interfaces.quant import Quantizer
from tokenloom.interfaces.spec_decode import DrafterContext
from tokenloom.settings_base import UserPath
from tokenloom_spec_decode.eagle_drafter import EagleHead
from tokenloom_spec_decode.head_config import HeadConfig
from tokenloom_spec_decode.mtp_head import load_mtp

__all__ = ["MtpConfig"]


@final
class MtpConfig(HeadConfig):
    """Settings of `spec_decode=mtp`."""

    source: UserPath | None = Field(
        default=None, description="Folder with the module, or hf:org/name; it was trained with this target."
    )

    @property
    def drafter(self) -> str:
        return "mtp"

    @property
    def missing_source(self) -> str:
        return (
            "spec_decode=mtp needs a module that was trained with this model: set spec_decode.source to the folder "
            "that holds it or to hf:org/name"
        )

    def load_head(self, folder: Path, context: DrafterContext, quantizer: Quantizer) -> EagleHead:
        return load_mtp(folder, context, quantizer)
