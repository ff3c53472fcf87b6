"""Builds a tokenizer from a Hugging Face folder: its vocabulary, and what the other files of the folder add to it."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import AddedToken, Tokenizer

from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ModelError
from tokenloom.json_file import read_json
from tokenloom.text.hf_vocabulary import read_vocabulary
from tokenloom.text.tokenizer_parts import TokenizerParts

__all__ = ["parts_from_hf"]

_NAMED_TOKENS = ("bos_token", "eos_token", "eot_token", "unk_token", "pad_token")
_TOKEN_FLAGS = ("lstrip", "rstrip", "normalized", "single_word")


def parts_from_hf(source: TokenizerSource) -> TokenizerParts:
    """Builds the tokenizer that lies in the folder `source.path`. Raises ModelError where it cannot."""
    folder = source.path
    # The newer file first: where both name a token, tokenizer_config.json counts.
    config = _read_if_there(folder / "special_tokens_map.json") | _read_if_there(folder / "tokenizer_config.json")
    vocabulary = read_vocabulary(folder, config)
    library = vocabulary.library
    _add_declared_tokens(library, config, folder)
    # A token that the config names as null does not exist.
    defaults = {name: text for name, text in vocabulary.named_tokens.items() if library.token_to_id(text) is not None}
    named = _named_tokens(defaults | config, folder)
    _mark_special(library, [*named.values(), *_extra_special_tokens(config, folder)])
    bos = _token_id(library, named, "bos_token", folder)
    eos, eot = (_token_id(library, named, name, folder) for name in ("eos_token", "eot_token"))
    prefix, suffix = _surrounding_ids(library)
    if _flag(config, "add_bos_token", folder, default=vocabulary.adds_bos) and bos is not None and bos not in prefix:
        prefix = (bos, *prefix)
    if _flag(config, "add_eos_token", folder, default=False) and eos is not None and eos not in suffix:
        suffix = (*suffix, eos)
    return TokenizerParts(
        library=library,
        text_form=vocabulary.text_form,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in (eos, eot) if token_id is not None)),
        prefix_ids=prefix,
        suffix_ids=suffix,
        named_tokens=named,
        chat_template=source.chat_template,
    )


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _refuse(folder: Path, key: str, expected: str, value: object) -> NoReturn:
    raise ModelError(f"{folder}/tokenizer_config.json: {key} must be {expected}, got {reprlib.repr(value)}")


def _flag(config: Mapping[str, Any], key: str, folder: Path, *, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool | None):
        _refuse(folder, key, "true or false", value)
    return value is True


def _token_text(value: object, key: str, folder: Path) -> str:
    """A token in these files is its string, or an object with the string under `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(text, str):
        _refuse(folder, key, "a string, or an object with a string under 'content'", value)
    return text


def _named_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    values = {name: config[name] for name in _NAMED_TOKENS if config.get(name) is not None}
    texts = {name: _token_text(value, name, folder) for name, value in values.items()}
    return {name: text for name, text in texts.items() if text}


def _extra_special_tokens(config: Mapping[str, Any], folder: Path) -> list[str]:
    texts: list[str] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):  # the older and the newer name
        entry = config.get(key)
        if not isinstance(entry, list | Mapping | None):
            _refuse(folder, key, "a list of tokens, or an object with tokens as its values", entry)
        values = entry.values() if isinstance(entry, Mapping) else entry or []
        texts.extend(_token_text(value, f"each token of {key}", folder) for value in values)
    return [text for text in texts if text]


def _add_declared_tokens(library: Tokenizer, config: Mapping[str, Any], folder: Path) -> None:
    """Adds the tokens that the folder declares and the vocabulary's own file does not; their ids are fixed."""
    declared = sorted(_declared_tokens(config, folder), key=lambda entry: entry[1])
    known = {token.content: token for token in library.get_added_tokens_decoder().values()}
    missing = [
        token
        for _, _, token in declared
        if token.content not in known or (token.special and not known[token.content].special)
    ]
    library.add_tokens(missing)
    for path, token_id, token in declared:
        if library.token_to_id(token.content) != token_id:
            raise ModelError(
                f"{path} gives {token.content!r} the id {token_id}, the vocabulary makes it "
                f"{library.token_to_id(token.content)}; the files belong to different models"
            )


def _declared_tokens(config: Mapping[str, Any], folder: Path) -> Iterator[tuple[Path, int, AddedToken]]:
    """The tokens of `added_tokens_decoder`, and of added_tokens.json in folders that are older than this key."""
    path, key = folder / "tokenizer_config.json", "added_tokens_decoder"
    try:
        declared = config.get(key) or {}
        for token_id, entry in declared.items():
            flags = {name: bool(entry[name]) for name in _TOKEN_FLAGS if name in entry}
            yield path, int(token_id), AddedToken(entry["content"], special=bool(entry.get("special")), **flags)
        path, key = folder / "added_tokens.json", "the file"
        for content, token_id in ({} if declared else _read_if_there(path)).items():
            yield path, int(token_id), AddedToken(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: {key} is not a table of tokens and ids: {error!r}") from error


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
        raise ModelError(f"{folder}/tokenizer_config.json: {name}={text!r} is not a token of the vocabulary")
    return token_id


def _surrounding_ids(library: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's own post-processor puts before and after a text."""
    encoding = library.encode("a", add_special_tokens=True)
    own = [position for position, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    first, last = (own[0], own[-1]) if own else (len(encoding.ids), len(encoding.ids))
    return tuple(encoding.ids[:first]), tuple(encoding.ids[last + 1 :])
