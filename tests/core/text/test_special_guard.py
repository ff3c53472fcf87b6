"""Control strings in a user's text stay text, in every family of tokenizers and with every flag of a token."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from tests.core.text.tiny_sentencepiece import gguf_metadata, train, write_folder
from tokenloom.errors import RequestError
from tokenloom.text import ChatTemplate, Tokenizer
from tokenloom.text.control_marks import ControlStrings
from tokenloom.text.token_bytes import TextForm
from tokenloom.text.tokenizer_parts import TokenizerParts

Build = Callable[..., Tokenizer]

CHECKS = settings(max_examples=40, deadline=None, derandomize=True)
JOINED = "{% for m in messages %}{{ m.content }}{% endfor %}"
WRAPPED = "A<|im_start|>{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}B"
START, END = "<|im_start|>", "<|im_end|>"

# Control strings, what they are made of, and what surrounds them.
SPELLED = st.lists(
    st.sampled_from(
        [
            START,
            END,
            "<",
            "<|",
            "<|im_",
            "im_end",
            "|>",
            "_end|>",
            "end|>",
            ">",
            " ",
            "  ",
            "\n",
            "dog",
            "é",
            "😀",
            "</s>",
        ]
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def families(
    from_gguf: Build, from_hf: Build, trained_metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Tokenizer]:
    """One tokenizer of each family; all of them know START and END as control tokens."""
    name, folder = "LlamaTokenizer", tmp_path_factory.mktemp
    return {
        "byte-level": from_gguf(trained_metadata),
        "whole-word": from_gguf(trained_metadata | {"tokenizer.ggml.pre": "llama-bpe"}),
        "composed": from_gguf(trained_metadata | {"tokenizer.ggml.pre": "qwen2"}),
        "space-each": from_gguf(gguf_metadata(train())),
        "space-never": from_gguf(gguf_metadata(train(add_dummy_prefix=False), space_prefix=False)),
        "space-first": from_hf(write_folder(folder("first"), train(), tokenizer_class=name, legacy=False)),
        "unigram": from_gguf(gguf_metadata(train("unigram"), "t5", space_prefix=True)),
        "unigram-unknown": from_gguf(gguf_metadata(train("unigram", byte_fallback=False), "t5")),
    }


FAMILIES = [
    *("byte-level", "whole-word", "composed", "space-each", "space-never", "space-first", "unigram", "unigram-unknown")
]
SPACED_EACH = ("space-each", "unigram", "unigram-unknown")


@cache
def _template(source: str) -> ChatTemplate:
    return ChatTemplate(source)


def _controls(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The control tokens among ids, but not the one for unknown text."""
    controls = [tokenizer.id_to_token(i) for i in ids if i in tokenizer.special_token_ids]
    return [token for token in controls if token != "<unk>"]


def _messages(*contents: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


@pytest.mark.parametrize("family", FAMILIES)
class TestFamilies:
    @given(texts=st.lists(SPELLED, min_size=1, max_size=3), trims=st.booleans())
    @CHECKS
    def test_messages_cannot_make_a_control_token_alone_or_together(
        self, families: dict[str, Tokenizer], family: str, texts: list[str], trims: bool
    ) -> None:
        tokenizer = families[family]
        source = JOINED.replace("m.content", "m.content | trim") if trims else JOINED
        ids = _template(source).encode_chat(tokenizer, _messages(*texts))
        assert _controls(tokenizer, ids) == []
        if family != "unigram-unknown":
            rendered = _template(source).render(_messages(*texts))
            assert tokenizer.decode(ids, skip_special_tokens=False) == rendered

    @given(texts=st.lists(SPELLED, min_size=1, max_size=3))
    @CHECKS
    def test_only_the_templates_own_control_tokens_count(
        self, families: dict[str, Tokenizer], family: str, texts: list[str]
    ) -> None:
        tokenizer = families[family]
        ids = _template(WRAPPED).encode_chat(tokenizer, _messages(*texts))
        assert _controls(tokenizer, ids) == [START, *[END] * len(texts)]
        if family in SPACED_EACH:
            # Each text is encoded as if it stood alone.
            def plain(text: str) -> list[int]:
                return tokenizer.encode(text, add_special_tokens=False, allow_special=False)

            start, end = (tokenizer.encode(string, add_special_tokens=False) for string in (START, END))
            assert ids == plain("A") + start + [i for text in texts for i in plain(text) + end] + plain("B")
        else:
            rendered = _template(WRAPPED).render(_messages(*texts))
            assert tokenizer.decode(ids, skip_special_tokens=False) == rendered

    @given(text=SPELLED)
    @CHECKS
    def test_completion_text_stays_text_when_asked(
        self, families: dict[str, Tokenizer], family: str, text: str
    ) -> None:
        tokenizer = families[family]
        ids = tokenizer.encode(text, add_special_tokens=False, allow_special=False)
        assert _controls(tokenizer, ids) == []
        if family != "unigram-unknown":
            assert tokenizer.decode(ids, skip_special_tokens=False) == text

    @given(text=SPELLED)
    @CHECKS
    def test_text_of_the_template_alone_is_encoded_as_ever(
        self, families: dict[str, Tokenizer], family: str, text: str
    ) -> None:
        tokenizer = families[family]
        marks = tokenizer.guard.strings.marks([text])
        assert tokenizer.encode_marked(text, marks) == tokenizer.encode(text, add_special_tokens=False)

    def test_a_chat_has_one_bos(self, families: dict[str, Tokenizer], family: str) -> None:
        tokenizer = families[family]
        bos = tokenizer.id_to_token(1)
        template = ChatTemplate("{{ bos_token }}" + JOINED, {"bos_token": bos})
        for content in ("dog", f"{bos}dog", f"{bos[:2]}", ""):
            ids = template.encode_chat(tokenizer, _messages(content, bos[2:]))
            assert [i for i in ids if i == 1] == [1]
            assert ids[0] == 1


FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
FLAGGED = st.lists(
    st.sampled_from(["<x>", "<x", ">", "<xx>", "<p>", "<p><x>", "q", "a", "b", " ", "  ", "\n", "_", "é"]), max_size=10
).map("".join)


@cache
def _flagged(prepends: bool, is_spaced: bool, flag: str | None) -> Tokenizer:
    """Characters as tokens, a control token with a flag, others that begin or end alike, and a plain one."""
    characters = ["▁", *"<>xpqab_\né"]
    tokens = ["<unk>", *characters, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    library = LibraryTokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    if is_spaced:
        steps: list[Any] = [normalizers.Prepend("▁")] if prepends else []
        library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    else:
        scheme = "first" if prepends else "never"
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    library.decoder = decoders.Metaspace()
    flags = {"normalized": False} if flag is None else {"normalized": False, flag: True}
    added = [AddedToken("<x>", special=True, **flags)]
    added += [AddedToken("<xx>", special=True), AddedToken("<p><x>", special=False, normalized=False)]
    added += [AddedToken("<p>", special=True), AddedToken("q", special=True)]
    library.add_tokens(added)
    form = TextForm(byte_level=False, byte_fallback=True, strip_leading_space=prepends)
    return Tokenizer(TokenizerParts(library, form, None, (), (), (), {}, None), 300)


KINDS = st.tuples(st.booleans(), st.booleans(), st.sampled_from([None, *FLAGS]))


class TestFlags:
    @given(kind=KINDS, text=FLAGGED)
    @settings(CHECKS, max_examples=400)
    def test_text_of_the_template_alone_is_encoded_as_the_library_does(
        self, kind: tuple[bool, bool, str | None], text: str
    ) -> None:
        tokenizer = _flagged(*kind)
        marks = tokenizer.guard.strings.marks([text])
        assert tokenizer.encode_marked(text, marks) == tokenizer.encode(text)

    @given(kind=KINDS, texts=st.lists(FLAGGED, min_size=1, max_size=3))
    @settings(CHECKS, max_examples=400)
    def test_messages_cannot_make_a_control_token(self, kind: tuple[bool, bool, str | None], texts: list[str]) -> None:
        prepends, is_spaced, _ = kind
        tokenizer = _flagged(*kind)
        ids = _template(JOINED).encode_chat(tokenizer, _messages(*texts))
        assert _controls(tokenizer, ids) == []
        # A space goes before the first text, and also after a plain token, where spaces are put before each text.
        has_plain = is_spaced and "<p><x>" in "".join(texts)
        # The other form loses the text's own leading space, as the library has it.
        if not prepends or (is_spaced and not has_plain):
            assert tokenizer.decode(ids, skip_special_tokens=False) == "".join(texts)


def test_a_plain_token_that_holds_a_control_string_stays_whole() -> None:
    tokenizer = _flagged(False, True, None)
    for text in ("a<p><x>b", "<x><p><x>"):
        marks = tokenizer.guard.strings.marks([text])
        assert tokenizer.encode_marked(text, marks) == tokenizer.encode(text)
    # In a user's text it counts as well: it is no control token.
    ids = tokenizer.encode("a<p><x>b", allow_special=False)
    assert [tokenizer.id_to_token(i) for i in ids] == ["a", "<p><x>", "b"]


def test_a_control_token_of_one_character_can_be_spelled() -> None:
    tokenizer = _flagged(False, True, None)
    ids = ChatTemplate("q" + JOINED).encode_chat(tokenizer, _messages("aqb"))
    assert _controls(tokenizer, ids) == ["q"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == "qaqb"


def test_the_model_may_know_control_strings_as_words(from_gguf: Build, trained_metadata: dict[str, Any]) -> None:
    """A control string of letters is one word for the splitting, and whole words are looked up."""
    tokens = [*trained_metadata["tokenizer.ggml.tokens"], "stopword"]
    types = [*trained_metadata["tokenizer.ggml.token_type"], 3]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.pre": "llama-bpe"}
    tokenizer = from_gguf(trained_metadata | metadata)
    assert tokenizer.encode("stopword")[-1] == len(tokens) - 1
    ids = tokenizer.encode("stopword", add_special_tokens=False, allow_special=False)
    assert _controls(tokenizer, ids) == []
    assert tokenizer.decode(ids) == "stopword"


def test_a_control_string_that_has_no_other_tokens_is_refused(from_hf: Build, tmp_path: Path) -> None:
    library = LibraryTokenizer(models.BPE({"a": 0, "q": 1}, []))
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["q"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = from_hf(tmp_path)
    with pytest.raises(RequestError, match="spells the control token 'q', which this tokenizer cannot encode"):
        tokenizer.encode("aqa", allow_special=False)


def test_merges_that_make_a_control_string_are_left_out(from_hf: Build, tmp_path: Path) -> None:
    library = LibraryTokenizer(models.BPE({"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4}, [("<", "s"), ("<s", ">")]))
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}), encoding="utf-8")
    tokenizer = from_hf(tmp_path)
    assert tokenizer.encode("<s>") == [4]
    assert tokenizer.encode("<s>", allow_special=False) == [3, 2]


class TestMarks:
    def test_broken_text_keeps_its_length_and_can_be_restored(self) -> None:
        strings = ControlStrings(["<a>", "<ab>", "[x]"])
        text = "1<a>2<ab>[x]<a"
        marks = strings.marks([text])
        broken = strings.broken(text, marks)
        assert len(broken) == len(text)
        assert not strings.are_risked_by(broken)
        assert marks.restored(broken) == text
        assert marks.restored(json.dumps(broken)) == json.dumps(text)

    @pytest.mark.parametrize(
        ("text", "is_at_risk"),
        [("", False), ("<b>", False), ("a<a>", True), ("<", True), ("x<a", True), ("<a  \n", True), ("<a x", False)],
    )
    def test_risk_is_a_whole_string_or_an_open_end(self, text: str, is_at_risk: bool) -> None:
        assert ControlStrings(["<a>", "[x]"]).are_risked_by(text) is is_at_risk

    def test_marks_avoid_the_texts(self) -> None:
        text = "".join(map(chr, range(0xF0002, 0xF0005))) + "\\udb80\\udc05"
        marks = ControlStrings(["<a>"]).marks([text])
        assert marks.mark_of("<") == chr(0xF0006)
        assert marks.restored(text) == text

    def test_nothing_is_at_risk_without_control_strings(self) -> None:
        assert not ControlStrings([]).are_risked_by("<a>")
