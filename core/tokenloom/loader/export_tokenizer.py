"""Writes a checkpoint's tokenizer as the files of a Hugging Face folder, and proves that they say the same."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, processors
from tokenizers.models import BPE

from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ModelError, RequestError
from tokenloom.model_config import ModelConfig
from tokenloom.text.gguf_vocabulary import parts_from_gguf
from tokenloom.text.pre_tokenizers import split_style
from tokenloom.text.token_bytes import SPACE_MARK
from tokenloom.text.tokenizer import Tokenizer, build_tokenizer
from tokenloom.text.tokenizer_parts import TokenizerParts

__all__ = ["TOKENIZER_FILES", "write_tokenizer"]

TOKENIZER_FILES: tuple[str, ...] = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
)
"""What a folder may hold of a tokenizer; copied as it is."""
_OWN_RULES = {"qwen2": "qwen2"}
"""Architectures for which Transformers 5 ignores the rules in tokenizer.json: what it takes instead."""

_PROBES = (
    "",
    " ",
    "Hello, world! It's 12345 o'clock; isn't it?",
    "  two spaces,\ttabs\t\tand\n\n\nlines \r\n ",
    "def f(x):\n    return x**2  # ½ ² 3.14e-10 0x1F\n",
    "Größe, naïve, Ελληνικά, русский, עברית, العربية, हिन्दी, ไทย, 中文字, 日本語, 한국어",
    "😀👩‍👩‍👧‍👦🇩🇪 ﬁ ﷺ e\u0301 \u00a0\u200b\u2028 \u3000 ▁ <0x0A> \x00\x7f",
    "don'T CAN'T we'LL camelCase snake_case UPPER1lower2 http://x.org/?a=b&c=%20",
)


def write_tokenizer(source: TokenizerSource, config: ModelConfig, folder: Path) -> None:
    """Writes the tokenizer into `folder`; files of a Hugging Face folder are copied as they are.

    Args:
        source: of the checkpoint.
        config: of the model that it belongs to.
        folder: must be there.

    Raises:
        ModelError: naming the vocabulary, if it has no exact form in these files.
    """
    original = build_tokenizer(source, config.vocab_size)
    if source.kind == "hf":
        for name in TOKENIZER_FILES:
            if (source.path / name).is_file():
                shutil.copyfile(source.path / name, folder / name)
    else:
        _write_built(parts_from_gguf(source), source, config, folder)
    try:
        written = build_tokenizer(TokenizerSource("hf", folder, {}, source.chat_template), config.vocab_size)
    except ModelError as error:
        raise _inexact(source, f"it cannot be read back: {error}") from error
    difference = next(_differences(original, written), None)
    if difference is not None:
        raise _inexact(source, f"it would differ: {difference}")


def _write_built(parts: TokenizerParts, source: TokenizerSource, config: ModelConfig, folder: Path) -> None:
    rules = _rules_of(parts.library)
    style = _OWN_RULES.get(config.architecture)
    if style is not None and any(rules[part] != rule for part, rule in _rules_of_style(style).items()):
        raise _inexact(
            source,
            f"Transformers splits text for every model of architecture {config.architecture!r} as "
            f"tokenizer.ggml.pre={style!r} does, whatever the file says",
        )
    library = _library_for_others(parts, source)
    library.save(str(folder / "tokenizer.json"))
    written = _rules_of(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    changed = [part for part in rules if rules[part] != written[part]]
    if changed:
        raise _inexact(source, f"its {', '.join(changed)} would change")
    text = json.dumps(_settings(parts, config.max_position_embeddings), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")


def _rules_of(library: tokenizers.Tokenizer) -> dict[str, Any]:
    """What decides the ids, in the words of the file. Its numbers are single-precision, written in double."""
    values = json.loads(library.to_str(), parse_float=lambda text: struct.unpack("f", struct.pack("f", float(text)))[0])
    return {part: values[part] for part in ("model", "normalizer", "pre_tokenizer", "added_tokens")}


def _rules_of_style(name: str) -> dict[str, Any]:
    style = split_style(name)
    library = tokenizers.Tokenizer(BPE())
    library.pre_tokenizer = style.build()
    if style.nfc:
        library.normalizer = normalizers.NFC()
    rules = _rules_of(library)
    return {part: rules[part] for part in ("normalizer", "pre_tokenizer")}


def _library_for_others(parts: TokenizerParts, source: TokenizerSource) -> tokenizers.Tokenizer:
    """The library's tokenizer with the steps that tokenloom does itself: what stands around a text, and decoding."""
    try:
        library = tokenizers.Tokenizer.from_str(parts.library.to_str())
    except Exception as error:  # the library raises nothing narrower
        raise _inexact(source, f"a step of it cannot be written: {error}") from error
    around = [(str(library.id_to_token(token_id)), token_id) for token_id in (*parts.prefix_ids, *parts.suffix_ids)]
    if around:
        before = [library.id_to_token(token_id) for token_id in parts.prefix_ids]
        after = [library.id_to_token(token_id) for token_id in parts.suffix_ids]
        library.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{t}:1" for t in after)],
            special_tokens=list(dict.fromkeys(around)),
        )
    library.decoder = _decoder(parts)
    return library


def _decoder(parts: TokenizerParts) -> decoders.Decoder:
    form = parts.text_form
    if form.byte_level:
        return decoders.ByteLevel()
    steps: list[Any] = [decoders.Replace(SPACE_MARK, " ")]
    if form.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if form.strip_leading_space:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _settings(parts: TokenizerParts, max_length: int) -> dict[str, Any]:
    # The generic class takes tokenizer.json as it is; those of single families build their own rules around it.
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        **parts.named_tokens,
        **({} if parts.chat_template is None else {"chat_template": parts.chat_template}),
    }


def _differences(original: Tokenizer, written: Tokenizer) -> Iterator[str]:
    """What another tokenizer would do in another way, as far as texts made to tell them apart show it."""
    for name in ("bos_token_id", "special_token_ids", "named_tokens", "chat_template", "strips_leading_space"):
        before, after = vars(original)[name], vars(written)[name]
        if before != after:
            yield f"{name} {str(before)[:80]} becomes {str(after)[:80]}"
    for token_id in range(original.vocab_size):
        if original.id_to_token(token_id) != written.id_to_token(token_id):
            yield f"token {token_id} {original.id_to_token(token_id)!r} becomes {written.id_to_token(token_id)!r}"
        elif original.token_bytes(token_id) != written.token_bytes(token_id):
            yield f"the text of token {token_id} {original.id_to_token(token_id)!r}"
    for probe in _probes(original):
        for allow_special in (True, False):
            before, after = _encoded(original, probe, allow_special), _encoded(written, probe, allow_special)
            if before != after:
                yield f"the ids of {probe!r}"


def _probes(tokenizer: Tokenizer) -> Iterator[str]:
    yield from _PROBES
    for token_id in sorted(tokenizer.special_token_ids):
        token = tokenizer.id_to_token(token_id)
        yield f"{token}a {token} b{token}{token}\n"
    if tokenizer.chat_template is not None:
        yield tokenizer.chat_template


def _encoded(tokenizer: Tokenizer, text: str, allow_special: bool) -> list[int] | None:
    """The ids with everything around them; None where the model has no embedding for one."""
    try:
        return tokenizer.encode(text, allow_special=allow_special)
    except RequestError:
        return None


def _inexact(source: TokenizerSource, why: str) -> ModelError:
    names = {key: source.metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre")}
    named = ", ".join(f"tokenizer.ggml.{key}={value!r}" for key, value in names.items() if value is not None)
    where = f" ({named})" if named else ""
    return ModelError(f"{source.path}: its tokenizer{where} cannot be written exactly as tokenizer.json; {why}")
