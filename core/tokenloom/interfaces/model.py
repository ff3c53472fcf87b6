"""How a package declares a family of models that it brings; the contract itself is `models/architecture.py`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ModelInfo"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One line that declares a model family; returned from the hook `tokenloom_models`. Plain data, imports nothing.

    Attributes:
        name: what `ModelConfig.architecture` says, e.g. "qwen3".
        target: the `Architecture` subclass as "module:Class"; imported only when such a model is opened.
        model_types: values of `model_type` in config.json.
        class_names: values of `architectures` in config.json; empty accepts any.
        gguf_names: values of `general.architecture` in GGUF files.
    """

    name: str
    target: str
    model_types: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    gguf_names: tuple[str, ...] = ()
