"""Tokenizers from GGUF metadata and from Hugging Face folders: ids, text, control tokens, and what is refused."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE

from tokenloom.errors import ModelError, RequestError
from tokenloom.text import ChatTemplate, IncrementalDetokenizer, Tokenizer
from tokenloom.text.pre_tokenizers import PRE_TOKENIZERS

Build = Callable[..., Tokenizer]

PIECES = [
    "a",
    "The ",
    " dog",
    "  ",
    "\n",
    "7",
    "٣",
    "é",
    "e\u0301",
    "日本",
    "한",
    "😀",
    "👨‍👩‍👧",
    "🇩🇪",
    "<",
    "|>",
    "<|im_end|>",
    "</s>",
    "\0",
]
TEXTS = st.lists(
    st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=12
).map("".join)


class TestRoundTrip:
    @given(text=TEXTS)
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_byte_level_text_survives(self, byte_tokenizer: Tokenizer, text: str) -> None:
        ids = byte_tokenizer.encode(text)
        assert byte_tokenizer.decode(ids, skip_special_tokens=False) == text

    @given(text=TEXTS)
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_spaced_text_survives(self, spaced_tokenizer: Tokenizer, text: str) -> None:
        ids = spaced_tokenizer.encode(text, allow_special=False)
        assert spaced_tokenizer.decode(ids) == text

    @given(text=TEXTS)
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_text_without_special_has_no_control_tokens(self, byte_tokenizer: Tokenizer, text: str) -> None:
        ids = byte_tokenizer.encode(text, allow_special=False)
        assert not byte_tokenizer.special_token_ids.intersection(ids)
        assert byte_tokenizer.decode(ids) == text
        if "<|im_end|>" not in text:
            assert ids == byte_tokenizer.encode(text)

    def test_decode_replaces_bytes_that_are_not_utf8(self, byte_tokenizer: Tokenizer) -> None:
        ids = byte_tokenizer.encode("日", allow_special=False)
        assert b"".join(map(byte_tokenizer.token_bytes, ids)) == "日".encode()
        partial = [i for i in range(byte_tokenizer.vocab_size) if byte_tokenizer.token_bytes(i) == b"\xe6"]
        assert byte_tokenizer.decode([*partial, *byte_tokenizer.encode("a")]) == "\ufffda"


class TestControlTokens:
    def test_encode_matches_control_strings(self, byte_tokenizer: Tokenizer) -> None:
        ids = byte_tokenizer.encode("<|im_start|>user<|im_end|>")
        assert (ids[0], ids[-1]) == (1, 2)
        assert byte_tokenizer.decode(ids) == "user"
        assert byte_tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user<|im_end|>"

    def test_encode_keeps_user_defined_tokens_whatever_is_allowed(self, byte_tokenizer: Tokenizer) -> None:
        ids = byte_tokenizer.encode("x<tool_call>y", allow_special=False)
        assert "<tool_call>" in [byte_tokenizer.id_to_token(i) for i in ids]
        assert byte_tokenizer.decode(ids) == "x<tool_call>y"

    def test_added_tokens_hold_text_and_not_bytes(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        # Every character of "<é>" also stands for a byte in a byte-level vocabulary.
        metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"][:-1], "<é>"]
        tokenizer = from_gguf(metadata)
        ids = tokenizer.encode("a<é>b")
        assert tokenizer.token_bytes(ids[1]) == "<é>".encode()
        assert tokenizer.decode(ids) == "a<é>b"

    def test_spaced_encode_puts_bos_first(self, spaced_tokenizer: Tokenizer) -> None:
        ids = spaced_tokenizer.encode("hello")
        assert ids[0] == spaced_tokenizer.bos_token_id == 1
        assert ids[1:] == spaced_tokenizer.encode("hello", add_special_tokens=False)
        spelled = spaced_tokenizer.encode("</s>", add_special_tokens=False, allow_special=False)
        assert 2 not in spelled
        assert spaced_tokenizer.encode("</s>", add_special_tokens=False) == [2]

    def test_encode_warns_of_a_doubled_bos(self, spaced_tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            assert spaced_tokenizer.encode("<s>hello")[:2] == [1, 1]
        assert "second one" in caplog.text
        caplog.clear()
        spaced_tokenizer.encode("hello")
        spaced_tokenizer.encode("<s>hello", add_special_tokens=False)
        assert not caplog.records

    @pytest.mark.parametrize("wrong", [None, 5, b"bytes", ["list"]])
    def test_encode_refuses_what_is_not_text(self, tokenizer: Tokenizer, wrong: Any) -> None:
        with pytest.raises(RequestError, match="expected text as a string"):
            tokenizer.encode(wrong)

    def test_encode_refuses_a_lone_surrogate(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(RequestError, match="at character 3"):
            tokenizer.encode("abc\ud800")

    @pytest.mark.parametrize("token_id", [-1, 10**6])
    def test_decode_refuses_ids_out_of_range(self, tokenizer: Tokenizer, token_id: int) -> None:
        with pytest.raises(RequestError, match=f"token id {token_id} is out of range"):
            tokenizer.decode([token_id])

    @pytest.mark.parametrize("wrong", [1.5, 1.0, "a", "1", None, True, [1], b"a"])
    def test_ids_that_are_no_integers_are_refused(self, tokenizer: Tokenizer, wrong: Any) -> None:
        tokenizer.decode([1])  # what was looked up before must not let 1.0 and true pass
        for use in (tokenizer.decode, tokenizer.has_text):
            with pytest.raises(RequestError, match=f"expected token ids as integers, got {re.escape(repr(wrong))}"):
                use([wrong, 1])
        with pytest.raises(RequestError, match="expected token ids as integers"):
            tokenizer.id_to_token(wrong)

    @pytest.mark.parametrize("wrong", [None, 5])
    def test_ids_that_are_no_list_are_refused(self, tokenizer: Tokenizer, wrong: Any) -> None:
        with pytest.raises(RequestError, match=f"expected a list of token ids, got {type(wrong).__name__}"):
            tokenizer.decode(wrong)

    def test_integers_of_other_libraries_are_ids(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("The dog")
        assert tokenizer.decode(torch.tensor(ids)) == tokenizer.decode(ids) == "The dog"
        with pytest.raises(RequestError, match=r"expected token ids as integers, got tensor\(1\.5"):
            tokenizer.decode(torch.tensor([1.5]))


class TestGguf:
    def test_build_reads_the_facts(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        metadata["tokenizer.ggml.eot_token_id"] = 0
        tokenizer = from_gguf(metadata, vocab_size=1000)
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.vocab_size) == (1, (2, 0), 1000)
        assert tokenizer.special_token_ids == {0, 1, 2}
        assert tokenizer.named_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        assert tokenizer.chat_template
        assert tokenizer.id_to_token(2) == "<|im_end|>"
        assert tokenizer.id_to_token(999) == "" == tokenizer.decode([999])

    def test_build_without_template_says_so(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        assert from_gguf(metadata, chat_template=None).chat_template is None

    def test_build_adds_bos_and_eos_as_the_file_says(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        plain = from_gguf(metadata).encode("dog")
        metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
        tokenizer = from_gguf(metadata)
        assert tokenizer.encode("dog") == [1, *plain, 2]
        assert tokenizer.encode("dog", allow_special=False) == [1, *plain, 2]
        assert tokenizer.encode("dog", add_special_tokens=False) == plain

    def test_build_takes_bos_from_the_family_when_the_file_is_silent(
        self, from_gguf: Build, metadata: dict[str, Any]
    ) -> None:
        del metadata["tokenizer.ggml.add_bos_token"]
        assert from_gguf(metadata).encode("dog")[0] != 1
        metadata["tokenizer.ggml.pre"] = "llama-bpe"
        assert from_gguf(metadata).encode("dog")[0] == 1

    def test_eos_is_a_control_token_even_in_a_file_without_types(
        self, from_gguf: Build, metadata: dict[str, Any]
    ) -> None:
        del metadata["tokenizer.ggml.token_type"]
        tokenizer = from_gguf(metadata)
        assert tokenizer.special_token_ids == {1, 2}
        assert tokenizer.decode(tokenizer.encode("dog<|im_end|>")) == "dog"

    @pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
    def test_every_pre_name_keeps_the_text(self, from_gguf: Build, metadata: dict[str, Any], name: str) -> None:
        metadata["tokenizer.ggml.pre"] = name
        tokenizer = from_gguf(metadata)
        text = "It's 12345 dogs,  don't\n\n panic! \t 日本語 é😀 \r\n"
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text

    def test_qwen2_composes_characters(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        metadata["tokenizer.ggml.pre"] = "qwen2"
        tokenizer = from_gguf(metadata)
        assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")

    def test_llama3_takes_whole_words_before_merges(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "qzqz"]
        metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
        word_id = len(metadata["tokenizer.ggml.tokens"]) - 1
        assert len(from_gguf(metadata).encode("qzqz")) > 1
        assert from_gguf(metadata | {"tokenizer.ggml.pre": "llama3"}).encode("qzqz") == [word_id]

    def test_an_unknown_pre_name_lists_the_known_ones(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        metadata["tokenizer.ggml.pre"] = "smolm"
        with pytest.raises(ModelError, match=r"'smolm'.*known: .*qwen2.*Did you mean 'smollm'"):
            from_gguf(metadata)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"tokenizer.ggml.model": "bert"}, r"tokenizer\.ggml\.model: 'bert' is not supported; supported: 'gpt2'"),
            ({"tokenizer.ggml.model": None}, r"tokenizer\.ggml\.model: expected a string, got None"),
            ({"tokenizer.ggml.tokens": None}, r"tokenizer\.ggml\.tokens: is missing"),
            ({"tokenizer.ggml.tokens": 5}, r"tokenizer\.ggml\.tokens: expected a list of strings, got 5"),
            ({"tokenizer.ggml.merges": None}, r"tokenizer\.ggml\.merges: is missing"),
            ({"tokenizer.ggml.merges": ["a b c"]}, r"merges: 'a b c' is not a pair"),
            ({"tokenizer.ggml.merges": ["zz qq"]}, r"merges and tokens do not fit together"),
            ({"tokenizer.ggml.token_type": [1, 2]}, r"token_type: has 2 entries for \d+ tokens"),
            ({"tokenizer.ggml.eos_token_id": 10**6}, r"eos_token_id: expected a token id below \d+, got 1000000"),
            ({"tokenizer.ggml.eos_token_id": True}, r"eos_token_id: expected a token id below \d+, got True"),
            ({"tokenizer.ggml.add_bos_token": "yes"}, r"add_bos_token: expected true or false, got 'yes'"),
        ],
    )
    def test_wrong_metadata_is_named(
        self, from_gguf: Build, metadata: dict[str, Any], change: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ModelError, match=r"tiny\.gguf: tokenizer.*" + message.removeprefix(r"tokenizer\.ggml\.")):
            from_gguf(metadata | change)

    @pytest.mark.parametrize(
        ("key", "kind", "wrong"),
        [
            *[("tokens", "strings", wrong) for wrong in (True, 0.5, ["a"], None, b"a", 1)],
            *[("merges", "strings", wrong) for wrong in (True, 0.5, ["a"], None, b"a", 1)],
            *[("token_type", "integers", wrong) for wrong in (True, 0.5, ["a"], None, "x", "1")],
        ],
    )
    def test_an_element_of_a_wrong_type_is_named(
        self, from_gguf: Build, metadata: dict[str, Any], key: str, kind: str, wrong: Any
    ) -> None:
        values = metadata[f"tokenizer.ggml.{key}"]
        change = {f"tokenizer.ggml.{key}": [*values[:5], wrong, *values[6:]]}
        message = f"tiny.gguf: tokenizer.ggml.{key}: expected a list of {kind}, got {wrong!r} at index 5"
        with pytest.raises(ModelError, match=re.escape(message)):
            from_gguf(metadata | change)

    @pytest.mark.parametrize("end", ["<end_of_turn>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "</s>"])
    @pytest.mark.parametrize(("kind", "ends"), [(3, True), (4, True), (1, False)])
    def test_a_file_without_end_of_turn_ends_at_tokens_known_by_name(
        self, from_gguf: Build, metadata: dict[str, Any], end: str, kind: int, ends: bool
    ) -> None:
        metadata["tokenizer.ggml.tokens"] = ["<|x|>", *metadata["tokenizer.ggml.tokens"][1:-1], end]
        metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"][:-1], kind]
        tokenizer = from_gguf(metadata)
        end_id = len(metadata["tokenizer.ggml.tokens"]) - 1
        assert tokenizer.eos_token_ids == ((2, end_id) if ends else (2,))
        assert (end_id in tokenizer.special_token_ids) == ends
        stated = metadata | {"tokenizer.ggml.eot_token_id": 0}
        assert from_gguf(stated).eos_token_ids == (2, 0)

    def test_eom_is_an_end_as_well(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        metadata |= {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 1}
        assert from_gguf(metadata).eos_token_ids == (2, 0, 1)

    @pytest.mark.parametrize("halves", [("<|im_start|>", "<|endoftext|>"), ("a", "qq"), ("qq", "a"), ("", "a")])
    def test_a_merge_of_what_is_no_token_is_named(
        self, from_gguf: Build, metadata: dict[str, Any], halves: tuple[str, str]
    ) -> None:
        """Also one whose result is longer than any token, at which the library breaks down."""
        merges = metadata["tokenizer.ggml.merges"]
        metadata["tokenizer.ggml.merges"] = [*merges, " ".join(halves)]
        message = f"merge {len(merges)}, {halves[0]!r} with {halves[1]!r}, needs the token"
        with pytest.raises(ModelError, match=re.escape(message)):
            from_gguf(metadata)

    def test_a_token_that_stands_twice_is_refused(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"][:-1], "a"]
        with pytest.raises(ModelError, match="holds 'a' twice"):
            from_gguf(metadata)

    def test_more_tokens_than_embedding_rows_are_refused(self, from_gguf: Build, metadata: dict[str, Any]) -> None:
        with pytest.raises(ModelError, match=r"has \d+ tokens, but the model's embedding only 100 rows"):
            from_gguf(metadata, vocab_size=100)


class TestGgufByScores:
    """`tokenizer.ggml.model=llama`: pieces with scores, `▁` for spaces, bytes for unknown characters."""

    PIECES = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "abc", "▁abc", "ca", "<", "s", ">"]

    @pytest.fixture
    def scored(self) -> dict[str, Any]:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *self.PIECES, "<start>"]
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(self.PIECES))] + [0.0],
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(self.PIECES) + [4],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
        }

    def _by_hand(self, text: str) -> list[str]:
        """Joins the neighbours whose result scores best, the leftmost first, until none is left."""
        parts = list("▁" + text.replace(" ", "▁"))
        while True:
            joined = [(self.PIECES.index(a + b), i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in self.PIECES]
            if not joined:
                return parts
            at = min(joined)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]

    @given(text=st.text(alphabet="abc <s>", min_size=1, max_size=20))
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_encode_merges_by_score(self, from_gguf: Build, text: str) -> None:
        tokenizer = from_gguf(TestGgufByScores.scored.__wrapped__(self))  # type: ignore[attr-defined]
        ids = tokenizer.encode(text, add_special_tokens=False, allow_special=False)
        assert [tokenizer.id_to_token(i) for i in ids] == self._by_hand(text)

    def test_encode_adds_bos_and_falls_back_to_bytes(self, from_gguf: Build, scored: dict[str, Any]) -> None:
        tokenizer = from_gguf(scored)
        ids = tokenizer.encode("é ab")
        assert [tokenizer.id_to_token(i) for i in ids] == ["<s>", "▁", "<0xC3>", "<0xA9>", "▁ab"]
        assert tokenizer.decode(ids) == "é ab"
        assert tokenizer.token_bytes(ids[2]) == b"\xc3"
        assert tokenizer.token_bytes(ids[4]) == b" ab"

    def test_encode_of_byte_token_names_is_text(self, from_gguf: Build, scored: dict[str, Any]) -> None:
        tokenizer = from_gguf(scored)
        assert tokenizer.decode(tokenizer.encode("<0x41> <s>", allow_special=False)) == "<0x41> <s>"

    def test_space_prefix_follows_the_file(self, from_gguf: Build, scored: dict[str, Any]) -> None:
        scored |= {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
        tokenizer = from_gguf(scored)
        ids = tokenizer.encode("ab <start> ab")
        assert [tokenizer.id_to_token(i) for i in ids] == ["ab", "▁", "<start>", "▁ab"]
        assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"

    def test_missing_scores_are_named(self, from_gguf: Build, scored: dict[str, Any]) -> None:
        with pytest.raises(ModelError, match="scores: has 1 entries for"):
            from_gguf(scored | {"tokenizer.ggml.scores": [0.0]})

    @pytest.mark.parametrize(
        ("key", "kind", "wrong"),
        [
            *[("scores", "numbers", wrong) for wrong in (True, "x", ["a"], None)],
            *[("precompiled_charsmap", "integers", wrong) for wrong in (True, "x", ["a"], 0.5)],
        ],
    )
    def test_an_element_of_a_wrong_type_is_named(
        self, from_gguf: Build, scored: dict[str, Any], key: str, kind: str, wrong: Any
    ) -> None:
        values = scored.get(f"tokenizer.ggml.{key}", [0] * 9)
        change = {f"tokenizer.ggml.{key}": [*values[:5], wrong, *values[6:]]}
        message = f"tokenizer.ggml.{key}: expected a list of {kind}, got {wrong!r} at index 5"
        with pytest.raises(ModelError, match=re.escape(message)):
            from_gguf(scored | change)

    @pytest.mark.parametrize("byte", [-129, 256])
    def test_a_charsmap_of_more_than_bytes_is_refused(
        self, from_gguf: Build, scored: dict[str, Any], byte: int
    ) -> None:
        with pytest.raises(ModelError, match=f"precompiled_charsmap: expected bytes, got {byte}"):
            from_gguf(scored | {"tokenizer.ggml.precompiled_charsmap": [0, byte]})

    def test_a_charsmap_that_breaks_the_library_down_is_the_texts_fault(
        self, from_gguf: Build, scored: dict[str, Any]
    ) -> None:
        """Nothing but its use shows that such a table points outside itself."""
        charsmap = [4, 0, 0, 0, *[255] * 4, *b"abc"]
        tokenizer = from_gguf(scored | {"tokenizer.ggml.precompiled_charsmap": charsmap})
        for allow_special in (True, False):
            with pytest.raises(RequestError, match="this model's tokenizer cannot encode the text: index out of"):
                tokenizer.encode("hello", allow_special=allow_special)
        with pytest.raises(RequestError, match="this model's tokenizer cannot encode the text: index out of"):
            ChatTemplate("{{ messages[0].content }}").encode_chat(tokenizer, [{"role": "user", "content": "a <s>"}])


class TestHuggingFace:
    def test_build_reads_the_facts(self, from_hf: Build, spaced_folder: Path) -> None:
        tokenizer = from_hf(spaced_folder, chat_template="{{ messages }}")
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
        assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        assert tokenizer.chat_template == "{{ messages }}"
        assert tokenizer.strips_leading_space

    def _change(self, path: Path, **values: Any) -> None:
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")

    def test_special_tokens_map_fills_what_the_config_lacks(self, from_hf: Build, spaced_folder: Path) -> None:
        (spaced_folder / "tokenizer_config.json").unlink()
        (spaced_folder / "special_tokens_map.json").write_text('{"eos_token": "</s>"}', encoding="utf-8")
        tokenizer = from_hf(spaced_folder)
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, (2,))

    def test_config_can_ask_for_bos_and_eos(self, from_hf: Build, spaced_folder: Path) -> None:
        self._change(spaced_folder / "tokenizer.json", post_processor=None)
        assert from_hf(spaced_folder).encode("dog")[0] != 1
        self._change(spaced_folder / "tokenizer_config.json", add_bos_token=True, add_eos_token=True)
        ids = from_hf(spaced_folder).encode("dog")
        assert (ids[0], ids[-1]) == (1, 2)

    def test_named_tokens_become_control_tokens(self, from_hf: Build, spaced_folder: Path) -> None:
        self._change(spaced_folder / "tokenizer_config.json", eot_token="e", additional_special_tokens=["a"])
        tokenizer = from_hf(spaced_folder)
        assert len(tokenizer.eos_token_ids) == 2
        assert {tokenizer.id_to_token(i) for i in tokenizer.special_token_ids} == {"<unk>", "<s>", "</s>", "e", "a"}

    def test_declared_tokens_are_added(self, from_hf: Build, spaced_folder: Path) -> None:
        declared = {"420": {"content": "<|tool|>", "special": True, "lstrip": False, "rstrip": False}}
        self._change(spaced_folder / "tokenizer_config.json", added_tokens_decoder=declared)
        tokenizer = from_hf(spaced_folder)
        ids = tokenizer.encode("dog <|tool|>", add_special_tokens=False)
        assert ids[-1] == 420
        assert 420 in tokenizer.special_token_ids
        assert tokenizer.decode(ids) == "dog "
        spelled = tokenizer.encode("dog <|tool|>", allow_special=False)
        assert tokenizer.decode(spelled) == "dog <|tool|>"

    def test_a_token_beyond_the_embedding_is_refused_when_used(self, from_hf: Build, spaced_folder: Path) -> None:
        declared = {"420": {"content": "<|image|>", "special": True}}
        self._change(spaced_folder / "tokenizer_config.json", added_tokens_decoder=declared)
        tokenizer = from_hf(spaced_folder, vocab_size=420)
        assert tokenizer.decode(tokenizer.encode("dog")) == "dog"
        with pytest.raises(RequestError, match=r"'<\|image\|>' \(id 420\).*only 420 rows"):
            tokenizer.encode("dog <|image|>")

    def test_truncation_and_padding_of_the_file_are_not_used(self, from_hf: Build, spaced_folder: Path) -> None:
        truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
        self._change(spaced_folder / "tokenizer.json", truncation=truncation)
        tokenizer = from_hf(spaced_folder)
        assert tokenizer.decode(tokenizer.encode("the quick brown fox")) == "the quick brown fox"

    def test_dropout_of_the_file_is_not_used(self, from_hf: Build, spaced_folder: Path) -> None:
        text = "the quick brown fox"
        expected = from_hf(spaced_folder).encode(text)
        model = json.loads((spaced_folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        self._change(spaced_folder / "tokenizer.json", model=model | {"dropout": 0.5})
        tokenizer = from_hf(spaced_folder)
        for allow_special in (True, False):
            assert [tokenizer.encode(text, allow_special=allow_special) for _ in range(20)] == [expected] * 20

    def test_what_breaks_the_library_down_is_a_models_fault(self, from_hf: Build, spaced_folder: Path) -> None:
        path = spaced_folder / "tokenizer.json"
        state = json.loads(path.read_text(encoding="utf-8"))
        long = sorted((token for token in state["model"]["vocab"] if "0x" not in token), key=len)[-2:]
        model = state["model"] | {"merges": [*state["model"]["merges"], long], "vocab": state["model"]["vocab"]}
        self._change(path, model=model)
        with pytest.raises(ModelError, match=r"the tokenizer is damaged, or of a kind.*: range end index"):
            from_hf(spaced_folder)
        # Here the fault shows when it first encodes a text.
        post_processor = state["post_processor"] | {"special_tokens": {}}
        self._change(path, model=state["model"], post_processor=post_processor)
        with pytest.raises(ModelError, match=r"the tokenizer is damaged, or of a kind.*: no entry found"):
            from_hf(spaced_folder)

    def test_a_text_without_tokens_is_refused_when_it_comes(self, from_hf: Build, spaced_folder: Path) -> None:
        state = json.loads((spaced_folder / "tokenizer.json").read_text(encoding="utf-8"))
        pieces = [[token, -1.0] for token in sorted(state["model"]["vocab"], key=state["model"]["vocab"].get)]
        model = {"type": "Unigram", "vocab": pieces, "unk_id": None, "byte_fallback": False}
        self._change(spaced_folder / "tokenizer.json", model=model)
        tokenizer = from_hf(spaced_folder)
        assert tokenizer.decode(tokenizer.encode("dog")) == "dog"
        with pytest.raises(RequestError, match="tokenizer cannot encode the text: Encountered an unknown token"):
            tokenizer.encode("\U0001f980")

    @pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
    @pytest.mark.parametrize("wrong", [5, True, "<extra>", 0, ""])
    def test_extra_tokens_are_a_list_or_an_object(
        self, from_hf: Build, spaced_folder: Path, key: str, wrong: Any
    ) -> None:
        self._change(spaced_folder / "tokenizer_config.json", **{key: wrong})
        with pytest.raises(ModelError, match=rf"tokenizer_config\.json: {key} must be a list of tokens.*got {wrong!r}"):
            from_hf(spaced_folder)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"additional_special_tokens": ["a", 1]}, "each token of additional_special_tokens must be a string"),
            ({"extra_special_tokens": {"image": ["a"]}}, "each token of extra_special_tokens must be a string"),
            ({"eos_token": 3}, "eos_token must be a string.*got 3"),
            ({"bos_token": {"x": 1}}, "bos_token must be a string.*got {'x': 1}"),
            ({"bos_token": False}, "bos_token must be a string.*got False"),
            ({"add_bos_token": "yes"}, "add_bos_token must be true or false, got 'yes'"),
            ({"add_eos_token": 1}, "add_eos_token must be true or false, got 1"),
            ({"added_tokens_decoder": {"420": {"content": 5}}}, "added_tokens_decoder is not a table"),
        ],
    )
    def test_values_of_a_wrong_type_are_named(
        self, from_hf: Build, spaced_folder: Path, values: dict[str, Any], message: str
    ) -> None:
        self._change(spaced_folder / "tokenizer_config.json", **values)
        with pytest.raises(ModelError, match=rf"tokenizer_config\.json: {message}"):
            from_hf(spaced_folder)

    @pytest.mark.parametrize("scheme", ["always", "first", "never"])
    @given(pieces=st.lists(st.sampled_from(["  ", "▁", "▁▁", "▁the", "o", "</s>", "▁a▁b"]), max_size=5))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_metaspace_decodes_as_the_library(
        self, from_hf: Build, tmp_path_factory: pytest.TempPathFactory, scheme: str, pieces: list[str]
    ) -> None:
        """It takes away the marks of the first token; spaces that an added token holds stay."""
        tokenizer, library = _with_metaspace(from_hf, tmp_path_factory, scheme)
        ids = [token_id for piece in pieces if (token_id := library.token_to_id(piece)) is not None]
        assert len(ids) == len(pieces)
        for skip in (True, False):
            text = library.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == text
            detokenizer = IncrementalDetokenizer(tokenizer, (), skip_special_tokens=skip)
            shown = [detokenizer.push([token_id]).text for token_id in ids]
            assert "".join([*shown, detokenizer.finish().text]) == text

    @pytest.mark.parametrize(
        ("decoder", "strips"),
        [
            ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, True),
            ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}, False),
        ],
    )
    def test_metaspace_decoders_are_understood(
        self, from_hf: Build, spaced_folder: Path, decoder: dict[str, Any], strips: bool
    ) -> None:
        self._change(spaced_folder / "tokenizer.json", decoder=decoder)
        tokenizer = from_hf(spaced_folder)
        assert tokenizer.strips_leading_space == strips
        assert tokenizer.decode(tokenizer.encode("the dog")) == ("the dog" if strips else " the dog")

    @pytest.mark.parametrize(
        "decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "Sequence", "decoders": []}]
    )
    def test_other_decoders_are_refused(self, from_hf: Build, spaced_folder: Path, decoder: Any) -> None:
        self._change(spaced_folder / "tokenizer.json", decoder=decoder)
        with pytest.raises(ModelError, match="is not supported in this form; supported: ByteLevel"):
            from_hf(spaced_folder)

    @pytest.mark.parametrize(
        ("file", "text", "message"),
        [
            ("tokenizer.json", "{", "cannot be read as a tokenizer"),
            ("tokenizer_config.json", "{", "Expecting property name"),
            ("tokenizer_config.json", "[" * 100_000, "maximum recursion depth"),
            ("tokenizer_config.json", "[]", "must hold a JSON object, got list"),
            ("special_tokens_map.json", '{"a":' * 100_000, "maximum recursion depth"),
            ("added_tokens.json", "[" * 100_000, "maximum recursion depth"),
            ("tokenizer.json", "[" * 100_000, "cannot be read as a tokenizer"),
            ("tokenizer_config.json", '{"eos_token": "<nope>"}', "eos_token='<nope>' is not a token"),
            ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}', "not a table of tokens and ids"),
            ("tokenizer_config.json", '{"added_tokens_decoder": {"7": {"content": "<s>"}}}', "the id 7.*makes it 1"),
        ],
    )
    def test_broken_files_are_named(
        self, from_hf: Build, spaced_folder: Path, file: str, text: str, message: str
    ) -> None:
        (spaced_folder / file).write_text(text, encoding="utf-8")
        with pytest.raises(ModelError, match=f"{file}.*{message}"):
            from_hf(spaced_folder)

    def test_a_folder_without_tokenizer_json_says_what_to_do(self, from_hf: Build, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"has no tokenizer\.json.*GGUF"):
            from_hf(tmp_path)


_METASPACE: dict[str, tuple[Tokenizer, LibraryTokenizer]] = {}


def _with_metaspace(build: Build, folders: pytest.TempPathFactory, scheme: str) -> tuple[Tokenizer, LibraryTokenizer]:
    """A tokenizer with this decoder, and the library's own of the same file."""
    if scheme not in _METASPACE:
        folder = folders.mktemp(scheme)
        vocabulary = {"<unk>": 0, "▁": 1, "▁▁": 2, "▁the": 3, "o": 4, "▁a▁b": 5}
        library = LibraryTokenizer(BPE(vocabulary, [], unk_token="<unk>"))
        library.decoder = decoders.Metaspace(prepend_scheme=scheme)
        library.add_special_tokens(["</s>"])
        library.add_tokens([AddedToken("  ", normalized=False)])
        library.save(str(folder / "tokenizer.json"))
        _METASPACE[scheme] = build(folder), library
    return _METASPACE[scheme]
