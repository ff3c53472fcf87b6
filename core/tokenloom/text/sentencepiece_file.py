"""Reads a SentencePiece file (`tokenizer.model`): a protobuf message, parsed as data; nothing in it is executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tokenloom.errors import ModelError
from tokenloom.text.sentencepiece_vocabulary import PieceKind, SentencePieces, SpacePrefix, duplicate_in

__all__ = ["SentencePieceFile", "read_sentencepiece"]

_Field = descriptor_pb2.FieldDescriptorProto
_UNIGRAM, _BPE = 1, 2
_KINDS = {_UNIGRAM: "unigram", _BPE: "bpe", 3: "word", 4: "char"}

# Of each message the fields that count here: name -> (number, type, default). Others in the file are skipped.
# Source: google/sentencepiece, src/sentencepiece_model.proto.
_FIELDS: dict[str, dict[str, tuple[int, int, str | None]]] = {
    "Piece": {
        "piece": (1, _Field.TYPE_STRING, None),
        "score": (2, _Field.TYPE_FLOAT, None),
        "kind": (3, _Field.TYPE_INT32, "1"),
    },
    "Trainer": {
        "model_type": (3, _Field.TYPE_INT32, "1"),
        "treat_whitespace_as_suffix": (24, _Field.TYPE_BOOL, "false"),
        "unk_id": (40, _Field.TYPE_INT32, "0"),
        "bos_id": (41, _Field.TYPE_INT32, "1"),
        "eos_id": (42, _Field.TYPE_INT32, "2"),
        "pad_id": (43, _Field.TYPE_INT32, "-1"),
    },
    "Normalizer": {
        "precompiled_charsmap": (2, _Field.TYPE_BYTES, None),
        "add_dummy_prefix": (3, _Field.TYPE_BOOL, "true"),
        "remove_extra_whitespaces": (4, _Field.TYPE_BOOL, "true"),
        "escape_whitespaces": (5, _Field.TYPE_BOOL, "true"),
    },
}
_PARTS = {"pieces": (1, "Piece"), "trainer": (2, "Trainer"), "normalizer": (3, "Normalizer")}


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """What a file says.

    Attributes:
        pieces: the vocabulary and its rules; user-defined pieces hold spaces instead of `▁`.
        named_tokens: `bos_token`, `eos_token`, `unk_token`, `pad_token` with their pieces, those that exist.
    """

    pieces: SentencePieces
    named_tokens: Mapping[str, str]


def read_sentencepiece(path: Path, space_prefix: SpacePrefix) -> SentencePieceFile:
    """Reads the file.

    Args:
        path: the file.
        space_prefix: where the leading space goes, if the file asks for one at all. In a file that squeezes spaces,
            "first" counts as "each".

    Raises:
        ModelError: not such a file, or a kind of vocabulary that is not supported.
    """
    message = _parse(path)
    trainer, normalizer = message.trainer, message.normalizer
    if trainer.model_type not in (_UNIGRAM, _BPE):
        kind = _KINDS.get(trainer.model_type, trainer.model_type)
        raise ModelError(
            f"{path}: a SentencePiece vocabulary of type {kind!r} is not supported; supported: unigram, bpe"
        )
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise ModelError(f"{path}: treat_whitespace_as_suffix and unescaped spaces are not supported")
    tokens = [_token(piece) for piece in message.pieces]
    twice = duplicate_in(tokens)
    if twice is not None:
        raise ModelError(f"{path}: holds the piece {twice!r} twice; each must have one id")
    ids = {"unk_token": trainer.unk_id, "bos_token": trainer.bos_id, "eos_token": trainer.eos_id}
    ids["pad_token"] = trainer.pad_id
    pieces = SentencePieces(
        tokens=tokens,
        scores=[piece.score for piece in message.pieces],
        kinds=[piece.kind for piece in message.pieces],
        is_unigram=trainer.model_type == _UNIGRAM,
        unknown_id=trainer.unk_id if 0 <= trainer.unk_id < len(tokens) else None,
        space_prefix=_space_prefix(normalizer, space_prefix),
        squeezes_spaces=normalizer.remove_extra_whitespaces,
        charsmap=normalizer.precompiled_charsmap or None,
    )
    named = {name: tokens[token_id] for name, token_id in ids.items() if 0 <= token_id < len(tokens)}
    return SentencePieceFile(pieces, named)


def _space_prefix(normalizer: Any, wanted: SpacePrefix) -> SpacePrefix:
    if not normalizer.add_dummy_prefix:
        return "never"
    # The library finds the start of a text by its position, which squeezed spaces move.
    return "each" if wanted == "first" and normalizer.remove_extra_whitespaces else wanted


def _token(piece: Any) -> str:
    # User-defined pieces are matched in the text as it stands, where spaces are still spaces.
    text: str = piece.piece
    return text.replace("▁", " ") if piece.kind == PieceKind.USER_DEFINED else text


def _parse(path: Path) -> Any:
    data = path.read_bytes()
    message = _message_class()()
    try:
        message.ParseFromString(data)
        problem = "it holds no pieces"
    except DecodeError as error:
        problem = str(error)
    if message.pieces:
        return message
    raise ModelError(
        f"{path} is not a SentencePiece file: {problem}. Files of the same name in the tiktoken format are not read; "
        "try the model's folder in Hugging Face form, which has a tokenizer.json"
    )


@cache
def _message_class() -> Any:
    """The message, described here field by field: no generated code to keep in step with the library."""
    file = descriptor_pb2.FileDescriptorProto(name="tokenloom/sentencepiece.proto", package="tokenloom.sentencepiece")
    for message_name, fields in _FIELDS.items():
        part = file.message_type.add(name=message_name)
        for name, (number, kind, default) in fields.items():
            field = part.field.add(name=name, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
            if default is not None:
                field.default_value = default
    model = file.message_type.add(name="Model")
    for name, (number, message_name) in _PARTS.items():
        label = _Field.LABEL_REPEATED if name == "pieces" else _Field.LABEL_OPTIONAL
        type_name = f".{file.package}.{message_name}"
        model.field.add(name=name, number=number, type=_Field.TYPE_MESSAGE, type_name=type_name, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Model"))
