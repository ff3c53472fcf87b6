"""From config.json of a Hugging Face folder to a ModelConfig: finds the family, which reads the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.json_file import read_json
from tokenloom.model_config import SUPPORTED_DTYPES, ModelConfig
from tokenloom.models.registry import find_hf_architecture

__all__ = ["HFConfigFile"]

_WHOLE_MODEL_KEYS = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "tie_word_embeddings")
"""Keys beside `text_config` that count for the text part as well."""

_OLDER_QUANTIZATION_FILES = {"quantize_config.json": ("gptq", "bits"), "quant_config.json": ("awq", "w_bit")}
"""{file: its method, and a key that tells it from others of that name}."""


@final
class HFConfigFile:
    """config.json of a folder; generation_config.json, if there, adds to the end-of-sequence ids.

    Of a model that also takes images or sound, the part under `text_config` counts.

    Raises:
        ModelError: the file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "config.json"
        self._whole = read_json(self._path)
        # Older models of several senses keep the text's keys at the top.
        part = self._whole.get("text_config") if "hidden_size" not in self._whole else None
        self._is_part = isinstance(part, dict)
        shared = {key: self._whole[key] for key in _WHOLE_MODEL_KEYS if self._whole.get(key) is not None}
        self._fields = Fields({**part, **shared} if isinstance(part, dict) else self._whole, self._path)

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """`quantization_config`, or what older folders have in a file of its own, or None.

        Raises ModelError if it is no object.
        """
        part = self._whole.get("text_config")
        places = (self._whole, part if isinstance(part, dict) else {})
        value = next((place["quantization_config"] for place in places if place.get("quantization_config")), None)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{self._path}: 'quantization_config' must be an object")
        return self._older_quantization() if value is None else value

    def _older_quantization(self) -> Mapping[str, Any] | None:
        for name, (method, key) in _OLDER_QUANTIZATION_FILES.items():
            file = self._folder / name
            values = read_json(file) if file.is_file() else {}
            if key in values:
                return {"quant_method": method, **values}
        return None

    @property
    def states_tie(self) -> bool | None:
        """`tie_word_embeddings`, or None where the file leaves it to the family's default."""
        key = "tie_word_embeddings"
        return self._fields.flag(key) if self._fields.has(key) else None

    @property
    def is_inner_part(self) -> bool:
        """Whether the folder was saved from the part of a model that has no head (`LlamaModel`)."""
        names = _class_names(self._whole, self._path)
        return bool(names) and all(name.endswith("Model") for name in names)

    def model_config(self, stored_dtype: str, tensor_names: Collection[str]) -> ModelConfig:
        """Reads the config.

        Args:
            stored_dtype: dtype of the embeddings, for files that state none.
            tensor_names: of the checkpoint.

        Raises:
            ModelError: naming the file and the key that is missing, wrong or not supported.
        """
        fields = self._fields
        class_names = () if self._is_part else _class_names(self._whole, self._path)
        architecture = find_hf_architecture(fields.text("model_type"), class_names, str(self._path))
        config = replace(
            architecture.read_config(fields, tensor_names),
            bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
            eos_token_ids=self._end_token_ids(),
            dtype=self._dtype(stored_dtype),
        )
        return config.validated(str(self._path))

    def _dtype(self, stored: str) -> str:
        """What the file states; without that, or with "auto", what the embeddings are stored in."""
        stated = self._fields.text("dtype", self._fields.text("torch_dtype", "auto")).removeprefix("torch.")
        dtype = stored if stated == "auto" else stated
        if dtype in SUPPORTED_DTYPES or (stated == "auto" and self.quantization is not None):
            return dtype if dtype in SUPPORTED_DTYPES else "bfloat16"
        origin = "its embeddings are stored in" if stated == "auto" else "config.json states the dtype"
        raise ModelError(
            f"{self._path}: {origin} {dtype!r}; dtype must be one of {', '.join(SUPPORTED_DTYPES)}. Weights in other "
            "types need a quantization_config that says how to read them"
        )

    def _end_token_ids(self) -> tuple[int, ...]:
        ids = self._fields.token_ids("eos_token_id")
        generation_path = self._folder / "generation_config.json"
        if generation_path.exists():
            ids += Fields(read_json(generation_path), generation_path).token_ids("eos_token_id")
        return tuple(dict.fromkeys(ids))


def _class_names(values: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    names = values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path}: 'architectures' must be a list of class names, got {names!r:.80}")
    return tuple(names)
