"""Which files of a Hugging Face repository a model needs, so that no copy in another format is fetched with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from tokenloom.errors import ModelError, did_you_mean
from tokenloom.loader.weight_index import WEIGHT_FILES

__all__ = ["gguf_files", "gguf_parts", "needed_files"]

_METADATA = re.compile(
    r"config\.json|generation_config\.json|tokenizer[^/]*|special_tokens_map\.json|added_tokens\.json|chat_template\.json|"
    r"vocab\.(json|txt)|merges\.txt|[^/]*\.jinja|[^/]*\.model|quantize_config\.json|hf_quant_config\.json"
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NUM_LISTED = 12
_HEAD_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""Weights of drafting heads, which come under names of their own beside a config.json."""


def needed_files(
    source: str, files: Collection[str], file: str | None, read_index: Callable[[str], Mapping[str, str]]
) -> list[str]:
    """The files to fetch, or that must be there.

    Args:
        source: of the repository, `hf:org/name`, for messages.
        files: everything in it, with "/" between folders.
        file: the one file that is wanted, or None for the model.
        read_index: reads an index of shards, given its name: {tensor: file}.

    Returns:
        The one GGUF file, with its further parts behind it; or config, tokenizer and weights, the first of
        `WEIGHT_FILES` that there is.

    Raises:
        ModelError: there is no such file, no model, or more than one GGUF file to choose from.
    """
    if file is not None:
        return gguf_parts(_checked_file(source, files, file))
    weights = next((name for name in (*WEIGHT_FILES, *_HEAD_FILES) if name in files), None)
    if "config.json" in files and weights is not None:
        shards = list(dict.fromkeys(read_index(weights).values())) if weights.endswith(".json") else []
        return [*sorted(name for name in files if _METADATA.fullmatch(name)), weights, *shards]
    candidates = gguf_files(files)
    if len(candidates) == 1:
        return gguf_parts(candidates[0])
    if candidates:
        listed = "\n".join(f"  {source}#{name}" for name in candidates)
        raise ModelError(f"{source} holds {len(candidates)} GGUF files; name one of them:\n{listed}")
    some = ", ".join(sorted(files)[:_NUM_LISTED]) or "nothing"
    raise ModelError(
        f"{source} holds no model that can be read: neither a .gguf file nor config.json with one of "
        f"{', '.join(WEIGHT_FILES)}; it holds {some}"
    )


def gguf_files(files: Collection[str]) -> list[str]:
    """The GGUF models, in order; one in parts by its first. Projectors for images (mmproj) are no models."""
    return sorted(name for name in files if name.endswith(".gguf") and not _is_other_gguf(name))


def gguf_parts(file: str) -> list[str]:
    """A GGUF file and, if its name is that of the first of several parts, the others."""
    part = _PART.search(file)
    if part is None or int(part[1]) != 1:
        return [file]
    stem, count = file[: part.start()], int(part[2])
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def _is_other_gguf(name: str) -> bool:
    part = _PART.search(name)
    return "mmproj" in name.rsplit("/", 1)[-1].lower() or (part is not None and int(part[1]) > 1)


def _checked_file(source: str, files: Collection[str], file: str) -> str:
    if file in files:
        return file
    listed = "\n".join(f"  {source}#{name}" for name in gguf_files(files))
    others = f" Its GGUF files:\n{listed}" if listed else " It holds no GGUF file."
    raise ModelError(f"{source} holds no file {file!r}.{did_you_mean(file, files)}{others}")
