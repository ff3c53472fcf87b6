"""The contract of a model family: how its files are recognised and read, and which code runs it.

A family is one module with one `Architecture`, and one `ModelInfo` line: in `models/registry.py` for those that come
with the core, from the hook `tokenloom_models` of a package for any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.gguf_layout import GGUFLayout
from tokenloom.models.layers import LayerFactory

__all__ = ["Architecture"]


class Architecture(ABC):
    """One family of models. Made without arguments; holds no state."""

    @abstractmethod
    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        """Reads config.json of a Hugging Face folder.

        Args:
            fields: the file's content.
            tensor_names: of the checkpoint; they tell fused projections and a missing head.

        Returns:
            The config, not yet validated. End-of-sequence ids and dtype are filled in by the loader, which also knows
            generation_config.json and the stored dtype.

        Raises:
            ModelError: naming the file and the key that is missing, wrong, or would change the arithmetic in a way
                that this family's code does not know.
        """

    @abstractmethod
    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        """An empty model, or one with only the decoder layers `layers`. Weights come later, by `load_weights`."""

    def gguf_layout(self) -> GGUFLayout | None:
        """How GGUF files hold this family, or None where they do not."""
        return None

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        """The content of a config.json from which Transformers, and `read_config`, make the same model.

        Raises:
            ModelError: the family, or this config of it, has no such form.
        """
        raise ModelError(f"models of architecture {config.architecture!r} cannot be written as a Hugging Face folder")
