"""Turns override strings and Python keywords into settings: (dotted key, value, where it came from).

Hydra's grammar parses the values. What Hydra would accept and ignore, or turn into something else, is refused here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from tokenloom.compose.keywords import KEYWORDS
from tokenloom.compose.parse_fault import parse_fault
from tokenloom.compose.secret_words import may_hold_secret, shown_override
from tokenloom.errors import ConfigError, did_you_mean

__all__ = ["Grammar", "Setting", "collect_settings", "value_word"]

_OVERRIDE = re.compile(r"(?P<prefix>\+{0,2})(?P<key>[^=]*)=(?P<value>.*)", re.DOTALL)
_MODEL_TEXT_KEYS = frozenset({"model.source", "model.revision", "spec_decode.source", "spec_decode.revision"})
_OFF_WORDS = frozenset({"off", "false", "no", "null", "disabled"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that the user set.

    Attributes:
        key: dotted key, e.g. "cache.block_size"; a group's own key ("cache", "cache.eviction") chooses an option.
        value: plain data.
        origin: how messages name it, e.g. "override cache.block_size=32".
        written: the key as the user wrote it, dots for slashes; "model" may stand for the key "model.source".
    """

    key: str
    value: Any
    origin: str
    written: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """What decides how an override is read.

    Attributes:
        options: option names of every group, by dotted group key.
        blocks: keys whose value is a block of further keys, as far as they are known ("engine", "cache", ...).
        text_keys: keys whose value is text: taken literally, so that paths need no quotes.
    """

    options: Mapping[str, Collection[str]]
    blocks: Collection[str]
    text_keys: Collection[str]


def collect_settings(overrides: Sequence[str], keywords: Mapping[str, Any], grammar: Grammar) -> list[Setting]:
    """Reads overrides (of equal keys the last one wins) and keywords (which must not contradict an override).

    Raises:
        ConfigError: an override or keyword cannot be understood, is refused, or contradicts another one.
    """
    written = {s.key: s for raw in overrides for s in _check(_read_override(raw, grammar), grammar)}
    given = {s.key: s for name, value in keywords.items() for s in _check(_read_keyword(name, value, grammar), grammar)}
    for keyword in given.values():
        for override in written.values():
            if keyword.key == override.key or keyword.written == override.written:
                _refuse_disagreement(keyword, override)
    return list({**written, **given}.values())


def value_word(value: Any) -> str:
    """A value as one would write it in an override."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(value_word(part) for part in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{value_word(part)}' for key, part in value.items())}}}"
    return str(value)


def _refuse_disagreement(keyword: Setting, override: Setting) -> None:
    if (keyword.key, type(keyword.value), keyword.value) != (override.key, type(override.value), override.value):
        raise ConfigError(f"{keyword.origin} and {override.origin} contradict each other; give only one of them")


def _read_keyword(name: str, value: Any, grammar: Grammar) -> Iterator[Setting]:
    key = KEYWORDS.get(name)
    if key is None:
        raise ConfigError(
            f"unknown keyword {name}={value!r}.{did_you_mean(name, KEYWORDS)} Known keywords: "
            f"{', '.join(KEYWORDS)}; any other key can be given as an override string, e.g. overrides=['cache=none']"
        )
    origin = f"keyword {name}={value!r}"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not _is_plain(value):
        raise ConfigError(f"{origin}: a {type(value).__name__} is no setting; give plain data such as 'float32' or 8")
    if key == "model" and isinstance(value, str):
        yield _model_setting(value, origin, grammar)
    else:
        yield Setting(key, value, origin, written=key)


def _read_override(raw: str, grammar: Grammar) -> Iterator[Setting]:
    origin = f"override {shown_override(raw)}"
    if raw.startswith("~"):
        raise ConfigError(f"{origin}: keys cannot be deleted; write key=null, or group=none to switch a plugin off")
    match = _OVERRIDE.fullmatch(raw)
    if match is None or not match["key"].strip():
        raise ConfigError(f"{shown_override(raw)!r} is not an override; write key=value, e.g. scheduler.max_num_seqs=8")
    key, value = match["key"].strip().replace("/", "."), match["value"].strip()
    if key.partition(".")[0] == "hydra":
        raise ConfigError(f"{origin}: Hydra's own settings have no effect here and are refused")
    if "@" in key:
        instead = shown_override(f"{key.partition('@')[0]}={value}")
        raise ConfigError(f"{origin}: where a group's values go is fixed; write {instead}")
    if key == "model" and not value.startswith("{"):
        _refuse_list_of_texts(value, origin)
        yield _model_setting(_unquote(value), origin, grammar)
        return
    # Hydra has no use for a value with ~ before it: it is text, a path in the home folder in all likelihood.
    if key in grammar.text_keys or key in _MODEL_TEXT_KEYS or value.startswith("~"):
        _refuse_list_of_texts(value, origin)
        value = _quote(value)
    yield Setting(key, _parse(f"{match['key'].strip()}={value}", origin), origin, written=key)


def _parse(override: str, origin: str) -> Any:
    try:
        parsed: Override = OverridesParser.create().parse_override(override)
    except HydraException as error:
        # The parser's message repeats parts of the value.
        message = "" if may_hold_secret(override.partition("=")[0]) else str(error)
        raise ConfigError(
            f"{origin}: cannot be parsed, {parse_fault(override, message)}; text with special characters needs "
            f"quotes inside the shell's own, e.g. \"key='a b#c'\""
        ) from error
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{origin}: this is a sweep over several values, and this command runs one configuration; "
            f"write [a,b] for a list, or quotes for text with a comma"
        )
    return parsed.value()


def _model_setting(text: str, origin: str, grammar: Grammar) -> Setting:
    """`model=` names an option of the group or a model source; Hydra alone would take a source for an option."""
    options = grammar.options.get("model", ())
    if text in options:
        return Setting("model", text, origin, written="model")
    if not text:
        raise ConfigError(f"{origin}: no model is named; drop it for the default one")
    if re.search(r"[:/\\.~]", text) or Path(text).exists():
        return Setting("model.source", text, origin, written="model")
    raise ConfigError(
        f"{origin}: {text!r} is neither an option ({', '.join(sorted(options))}) nor an existing path."
        f"{did_you_mean(text, options)} A model is a path, hf:org/name or pypi:dist==version#file"
    )


def _check(settings: Iterator[Setting], grammar: Grammar) -> Iterator[Setting]:
    """Spreads blocks over their keys and checks what chooses an option."""
    for setting in settings:
        group, _, last = setting.key.rpartition(".")
        if last == "name" and group in grammar.options:
            raise ConfigError(f"{setting.origin}: a plugin is chosen by its group; write {group}={setting.value}")
        if isinstance(setting.value, dict) and (setting.key in grammar.options or setting.key in grammar.blocks):
            parts = (
                Setting(f"{setting.key}.{key}", value, setting.origin, written=f"{setting.key}.{key}")
                for key, value in setting.value.items()
            )
            yield from _check(parts, grammar)
            continue
        if setting.key in grammar.options:
            _check_option(setting, grammar.options[setting.key])
        yield setting


def _check_option(setting: Setting, options: Collection[str]) -> None:
    if setting.key == "experiment" and setting.value is None:
        return
    if isinstance(setting.value, str) and setting.value.lower() not in _OFF_WORDS - set(options):
        return
    hint = " Off is a plugin called 'none'." if "none" in options else ""
    raise ConfigError(
        f"{setting.origin}: {setting.key} takes the name of an option, one of {', '.join(sorted(options))}.{hint}"
    )


def _refuse_list_of_texts(value: str, origin: str) -> None:
    if "," in value and _unquote(value) == value:
        raise ConfigError(
            f"{origin}: a comma makes this a sweep, but this command runs one configuration; quote the text"
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    return value is None or type(value) in (str, int, float, bool)


def _unquote(value: str) -> str:
    is_quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def _quote(value: str) -> str:
    if value.lower() == "null" or _unquote(value) != value:
        return value
    return QuotedString(text=value, quote=Quote.single).with_quotes()
