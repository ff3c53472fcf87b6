"""SentencePiece vocabularies (GGUF metadata, tokenizer.model) against the sentencepiece library, the oracle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.text.tiny_sentencepiece import CONTROLS, USER_DEFINED, gguf_metadata, oracle, train, write_folder
from tokenloom.errors import ModelError
from tokenloom.text import Tokenizer
from tokenloom.text.sentencepiece_file import read_sentencepiece
from tokenloom.text.sentencepiece_vocabulary import SentencePieces, merges_by_score

Build = Callable[..., Tokenizer]

# Words, runs of spaces, what looks like byte and control tokens, and characters that need bytes.
PIECES = [
    *"the dog quick 0x41 <>|",
    "  ",
    " ",
    "\n",
    "\t",
    "é",
    "e\u0301",
    "日本",
    "😀",
    "ab",
    "<0x41>",
    "<0x0A>",
    "</s>",
]
TEXTS = st.lists(st.sampled_from([*PIECES, *CONTROLS, *USER_DEFINED[:1], "    "]), max_size=14).map("".join)
CHECKS = settings(max_examples=80, deadline=None, derandomize=True)
GEMMA: dict[str, Any] = {"add_dummy_prefix": False, "user_defined_symbols": ",".join(USER_DEFINED)}
T5: dict[str, Any] = {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}

_BUILT: dict[str, Tokenizer] = {}


def _built(key: str, build: Callable[[], Tokenizer]) -> Tokenizer:
    if key not in _BUILT:
        _BUILT[key] = build()
    return _BUILT[key]


def _check(tokenizer: Tokenizer, file: bytes, text: str, *, is_lossless: bool = True) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False, allow_special=False)
    assert ids == oracle(file).encode(text)
    if is_lossless:
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    else:
        assert tokenizer.decode(ids, skip_special_tokens=False) == oracle(file).decode(ids).replace(" \u2047 ", "<unk>")


class TestGguf:
    @given(text=TEXTS)
    @CHECKS
    def test_llama_gives_the_oracles_ids(self, from_gguf: Build, text: str) -> None:
        file = train()
        _check(_built("llama", lambda: from_gguf(gguf_metadata(file))), file, text)

    @given(text=TEXTS)
    @CHECKS
    def test_gemma_gives_the_oracles_ids(self, from_gguf: Build, text: str) -> None:
        """No space in front; user-defined pieces, of which one is a run of spaces, come before all merges."""
        file = train(**GEMMA)
        _check(_built("gemma", lambda: from_gguf(gguf_metadata(file, space_prefix=False))), file, text)

    @given(text=TEXTS)
    @CHECKS
    def test_unigram_gives_the_oracles_ids(self, from_gguf: Build, text: str) -> None:
        file = train("unigram")
        _check(_built("t5", lambda: from_gguf(gguf_metadata(file, "t5"))), file, text)

    def test_user_defined_pieces_are_whole_but_no_control_tokens(self, from_gguf: Build) -> None:
        tokenizer = from_gguf(gguf_metadata(train(**GEMMA), space_prefix=False))
        ids = tokenizer.encode("a<tool>b     c", add_special_tokens=False, allow_special=False)
        assert [tokenizer.id_to_token(i) for i in ids] == ["a", "<tool>", "b", "    ", "▁", "c"]
        assert {tokenizer.id_to_token(i) for i in tokenizer.special_token_ids} == {"<unk>", "<s>", "</s>", *CONTROLS}
        assert not tokenizer.strips_leading_space

    def test_a_leading_space_is_put_after_each_control_token(self, from_gguf: Build) -> None:
        tokenizer = from_gguf(gguf_metadata(train()))
        ids = tokenizer.encode("the<|im_end|>the<|im_end|> the")
        assert [tokenizer.id_to_token(i) for i in ids] == [
            *("<s>", "▁the", "<|im_end|>", "▁the", "<|im_end|>", "▁", "▁the")
        ]

    def test_unigram_adds_eos_and_llama_bos(self, from_gguf: Build) -> None:
        llama, t5 = from_gguf(gguf_metadata(train())), from_gguf(gguf_metadata(train("unigram"), "t5"))
        assert llama.encode("") == [1]
        assert t5.encode("") == [2]

    def test_charsmap_and_squeezing_are_read(self, from_gguf: Build, tmp_path: Path) -> None:
        file = train("unigram", **T5)
        (tmp_path / "tokenizer.model").write_bytes(file)
        charsmap = read_sentencepiece(tmp_path / "tokenizer.model", "each").pieces.charsmap
        assert charsmap is not None
        signed = [byte - 256 if byte > 127 else byte for byte in charsmap]
        more = {"tokenizer.ggml.precompiled_charsmap": signed, "tokenizer.ggml.remove_extra_whitespaces": True}
        tokenizer = from_gguf(gguf_metadata(file, "t5") | more)
        for text in ("  the \t ﬁve  ½ dogs  ", "", "   ", "\uff21"):
            _check(tokenizer, file, text, is_lossless=False)

    def test_a_file_without_types_still_falls_back_to_bytes(self, from_gguf: Build) -> None:
        metadata = gguf_metadata(train())
        del metadata["tokenizer.ggml.token_type"]
        tokenizer = from_gguf(metadata)
        assert tokenizer.decode(tokenizer.encode("dog 😀")) == "dog 😀"


class TestFile:
    @given(text=TEXTS, kind=st.sampled_from(["bpe", "unigram"]), legacy=st.booleans())
    @CHECKS
    def test_ids_are_the_oracles(
        self, from_hf: Build, tmp_path_factory: pytest.TempPathFactory, text: str, kind: str, legacy: bool
    ) -> None:
        file = train(kind)
        config = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy}
        _check(_built(f"{kind}{legacy}", lambda: _from_file(from_hf, tmp_path_factory, file, **config)), file, text)

    @given(text=TEXTS, kind=st.sampled_from(["bpe", "unigram"]), legacy=st.booleans())
    @CHECKS
    def test_ids_are_the_oracles_with_normalization(
        self, from_hf: Build, tmp_path_factory: pytest.TempPathFactory, text: str, kind: str, legacy: bool
    ) -> None:
        file = train(kind, **T5)
        config = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy}
        tokenizer = _built(f"{kind}{legacy}nfkc", lambda: _from_file(from_hf, tmp_path_factory, file, **config))
        _check(tokenizer, file, text, is_lossless=False)

    @given(text=TEXTS, kind=st.sampled_from(["bpe", "unigram"]))
    @CHECKS
    def test_ids_are_the_oracles_without_bytes(
        self, from_hf: Build, tmp_path_factory: pytest.TempPathFactory, text: str, kind: str
    ) -> None:
        file = train(kind, byte_fallback=False)
        config = {"tokenizer_class": "LlamaTokenizer"}
        tokenizer = _built(f"{kind}unk", lambda: _from_file(from_hf, tmp_path_factory, file, **config))
        _check(tokenizer, file, text, is_lossless=False)

    def test_a_folder_without_config_follows_the_file(self, from_hf: Build, tmp_path: Path) -> None:
        tokenizer = from_hf(write_folder(tmp_path, train()))
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
        assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        assert tokenizer.encode("the dog") == [1, *oracle(train()).encode("the dog")]

    def test_config_decides_bos_and_eos(self, from_hf: Build, tmp_path: Path) -> None:
        config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True}
        tokenizer = from_hf(write_folder(tmp_path, train(), **config))
        assert tokenizer.encode("the") == [*oracle(train()).encode("the"), 2]

    def test_legacy_puts_a_space_after_control_tokens(self, from_hf: Build, tmp_path: Path) -> None:
        text, name = "the<|im_end|>the<|im_end|> the", "LlamaTokenizer"

        def tokens(**config: Any) -> list[str]:
            tokenizer = from_hf(write_folder(tmp_path, train(), tokenizer_class=name, **config))
            return [tokenizer.id_to_token(i) for i in tokenizer.encode(text, add_special_tokens=False)]

        first = ["▁the", "<|im_end|>", "t", "he", "<|im_end|>", "▁the"]
        assert tokens(legacy=False) == tokens() == first
        assert tokens(legacy=True) == ["▁the", "<|im_end|>", "▁the", "<|im_end|>", "▁", "▁the"]
        assert tokens(add_prefix_space=False) == ["t", "he", *first[1:]]

    @pytest.mark.parametrize(
        ("data", "config", "message"),
        [
            (b"", {}, r"is not a SentencePiece file: it holds no pieces.*tiktoken"),
            (b"IQ== 0\nIg== 1\n", {}, r"is not a SentencePiece file"),
            (b"\xff\xff\xff", {}, r"is not a SentencePiece file"),
            (None, {"tokenizer_class": "T5TokenizerFast"}, r"tokenizer_class='T5Tokenizer'.*known: LlamaTokenizer"),
            (None, {"legacy": "no"}, r"legacy must be true or false, got 'no'"),
        ],
    )
    def test_what_cannot_be_read_is_named(
        self, from_hf: Build, tmp_path: Path, data: bytes | None, config: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ModelError, match=message):
            from_hf(write_folder(tmp_path, train() if data is None else data, **config))

    def test_word_vocabularies_are_refused(self, from_hf: Build, tmp_path: Path) -> None:
        file = train("char", byte_fallback=False, vocab_size=60)
        with pytest.raises(ModelError, match="type 'char' is not supported; supported: unigram, bpe"):
            from_hf(write_folder(tmp_path, file))


def _from_file(from_hf: Build, folders: pytest.TempPathFactory, file: bytes, **config: Any) -> Tokenizer:
    return from_hf(write_folder(folders.mktemp("spm"), file, **config))


class TestMerges:
    def test_the_best_score_comes_first_and_equal_ones_keep_their_order(self) -> None:
        scores = {"a": -9.0, "b": -9.0, "ab": -2.0, "ba": -1.0, "aa": -2.0}
        assert merges_by_score(scores) == [("b", "a"), ("a", "b"), ("a", "a")]

    @given(text=st.text(alphabet="ab", min_size=1, max_size=16))
    @CHECKS
    def test_pairs_that_make_the_same_piece_are_taken_from_the_left(self, text: str) -> None:
        """ "ab|a|ba" holds "aba" twice; which pair wins must not depend on the order of the merges."""
        pieces = ["▁", "a", "b", "ab", "ba", "aba", "bab", "abba"]
        sentencepieces = SentencePieces(pieces, [-float(i) for i in range(8)], [1] * 8, False, None, "never")
        library = sentencepieces.build()
        assert library.encode(text).tokens == _merged_by_hand(text, pieces)


def _merged_by_hand(text: str, pieces: list[str]) -> list[str]:
    parts = list(text)
    while True:
        joined = [(pieces.index(a + b), i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in pieces]
        if not joined:
            return parts
        at = min(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
