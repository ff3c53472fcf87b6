"""How a package declares a family of models that it brings; the contract itself is `models/architecture.py`."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.interfaces.contract import ContractVersion

__all__ = ["MODEL_CONTRACT_VERSION", "ModelInfo"]

MODEL_CONTRACT_VERSION: ContractVersion = (1, 0)
"""The version of `Architecture`, and of the parts that a family is built from, that this core has."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One line that declares a model family; returned from the hook `tokenloom_models`. Plain data, imports nothing.

    Attributes:
        name: what `ModelConfig.architecture` says, e.g. "qwen3".
        target: the `Architecture` subclass as "module:Class"; imported only when such a model is opened.
        model_types: values of `model_type` in config.json.
        class_names: values of `architectures` in config.json; empty accepts any.
        gguf_names: values of `general.architecture` in GGUF files.
        contract: the version that the family was written for; another major or a newer minor is refused.
    """

    name: str
    target: str
    model_types: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    gguf_names: tuple[str, ...] = ()
    contract: ContractVersion = (1, 0)
