"""Builds a tokenizer from a Hugging Face folder: tokenizer.json, tokenizer_config.json, special_tokens_map.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tokenloom.errors import ModelError
from tokenloom.loader.tokenizer_source import TokenizerSource
from tokenloom.text.token_bytes import SPACE_MARK, TextForm
from tokenloom.text.tokenizer_parts import TokenizerParts

__all__ = ["parts_from_hf"]

_NAMED_TOKENS = ("bos_token", "eos_token", "eot_token", "unk_token", "pad_token")
_TOKEN_FLAGS = ("lstrip", "rstrip", "normalized", "single_word")


def parts_from_hf(source: TokenizerSource) -> TokenizerParts:
    """Builds the tokenizer that lies in the folder `source.path`. Raises ModelError where it cannot."""
    folder = source.path
    library = _read_tokenizer(folder / "tokenizer.json")
    # The newer file first: where both name a token, tokenizer_config.json counts.
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    _add_declared_tokens(library, config, folder)
    named = {name: text for name in _NAMED_TOKENS if (text := _token_text(config.get(name))) is not None}
    _mark_special(library, [*named.values(), *_extra_special_tokens(config)])
    bos = _token_id(library, named, "bos_token", folder)
    eos, eot = (_token_id(library, named, name, folder) for name in ("eos_token", "eot_token"))
    prefix, suffix = _surrounding_ids(library)
    if config.get("add_bos_token") is True and bos is not None and bos not in prefix:
        prefix = (bos, *prefix)
    if config.get("add_eos_token") is True and eos is not None and eos not in suffix:
        suffix = (*suffix, eos)
    return TokenizerParts(
        library=library,
        text_form=_text_form(library, folder),
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in (eos, eot) if token_id is not None)),
        prefix_ids=prefix,
        suffix_ids=suffix,
        named_tokens=named,
        chat_template=source.chat_template,
    )


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ModelError(
            f"{path.parent} has no tokenizer.json; tokenloom reads only this form of a tokenizer. Try a folder that "
            "has it (saving the tokenizer again with a recent Transformers writes one), or a GGUF file of the model"
        )
    try:
        library = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
    # Settings of the training run: a prompt is never cut or padded in silence.
    library.no_truncation()
    library.no_padding()
    return library


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}; expected a JSON object")
    return value


def _token_text(value: object) -> str | None:
    """A token in these files is its string, or an object with the string under `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) and text else None


def _extra_special_tokens(config: Mapping[str, Any]) -> list[str]:
    values: list[object] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):  # the older and the newer name
        entry = config.get(key) or []
        values.extend(entry.values() if isinstance(entry, Mapping) else entry)
    return [text for value in values if (text := _token_text(value)) is not None]


def _add_declared_tokens(library: Tokenizer, config: Mapping[str, Any], folder: Path) -> None:
    """Adds tokens of `added_tokens_decoder` that tokenizer.json lacks; their ids are fixed by the file."""
    path = folder / "tokenizer_config.json"
    try:
        declared = [(int(key), dict(entry)) for key, entry in (config.get("added_tokens_decoder") or {}).items()]
        tokens = [(token_id, str(entry["content"]), entry) for token_id, entry in declared]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: added_tokens_decoder is not a table of id to token: {error!r}") from error
    for token_id, content, entry in sorted(tokens, key=lambda token: token[0]):
        if library.token_to_id(content) is None:
            flags = {name: bool(entry[name]) for name in _TOKEN_FLAGS if name in entry}
            library.add_tokens([AddedToken(content, special=bool(entry.get("special")), **flags)])
        if library.token_to_id(content) != token_id:
            raise ModelError(
                f"{path} gives {content!r} the id {token_id}, tokenizer.json makes it {library.token_to_id(content)}; "
                "the two files belong to different models"
            )


def _mark_special(library: Tokenizer, texts: list[str]) -> None:
    added = {token.content: token for token in library.get_added_tokens_decoder().values()}
    plain = [text for text in dict.fromkeys(texts) if text not in added or not added[text].special]
    library.add_special_tokens([text for text in plain if library.token_to_id(text) is not None])


def _token_id(library: Tokenizer, named: Mapping[str, str], name: str, folder: Path) -> int | None:
    text = named.get(name)
    if text is None:
        return None
    token_id = library.token_to_id(text)
    if token_id is None:
        raise ModelError(f"{folder}/tokenizer_config.json: {name}={text!r} is not a token of tokenizer.json")
    return token_id


def _surrounding_ids(library: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's own post-processor puts before and after a text."""
    encoding = library.encode("a", add_special_tokens=True)
    own = [position for position, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    first, last = (own[0], own[-1]) if own else (len(encoding.ids), len(encoding.ids))
    return tuple(encoding.ids[:first]), tuple(encoding.ids[last + 1 :])


def _text_form(library: Tokenizer, folder: Path) -> TextForm:
    """Reads off the decoder how token strings become text."""
    # The library shows a decoder's settings only in its pickled state, which is JSON.
    state: Any = library.decoder.__getstate__() if library.decoder is not None else b'{"type": "none"}'
    decoder: dict[str, Any] = json.loads(state)
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return TextForm(byte_level=True)
    marks_spaces = any(step["type"] in ("Metaspace", "Replace") for step in steps)
    if marks_spaces and all(map(_is_spaced_step, steps)):
        strips = any(
            step["type"] == "Strip" or (step["type"] == "Metaspace" and step["prepend_scheme"] != "never")
            for step in steps
        )
        return TextForm(byte_level=False, byte_fallback="ByteFallback" in kinds, strip_leading_space=strips)
    raise ModelError(
        f"{folder}/tokenizer.json: the decoder {', '.join(sorted(kinds))} is not supported in this form; supported: "
        f"ByteLevel, Metaspace, and sequences of Replace {SPACE_MARK!r} by ' ', ByteFallback, Fuse, Strip of one ' ' "
        "at the start"
    )


def _is_spaced_step(step: Mapping[str, Any]) -> bool:
    """Whether `TextForm` without byte level does what this step of a decoder does."""
    match step:
        case {"type": "ByteFallback" | "Fuse"} | {"type": "Metaspace", "replacement": "▁"}:
            return True
        case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
            return True
        case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return True
        case _:
            return False
