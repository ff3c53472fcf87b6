"""Chat templates: what Transformers' users expect of them, what stays text, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom.errors import RequestError
from tokenloom.text import ChatTemplate, Tokenizer

Message = dict[str, Any]
JOINED = "{% for message in messages %}{{ message.content }}{% endfor %}"


def _user(content: Any) -> list[Message]:
    return [{"role": "user", "content": content}]


@pytest.fixture(scope="session")
def template(byte_tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.for_tokenizer(byte_tokenizer)


class TestRender:
    def test_render_writes_the_conversation(self, template: ChatTemplate) -> None:
        messages = [{"role": "system", "content": "Be brief."}, *_user("Hi")]
        text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        assert template.render(messages) == text + "<|im_start|>assistant\n"
        assert template.render(messages, add_generation_prompt=False) == text

    def test_render_trims_blocks(self) -> None:
        source = "{% if true %}\n    {% for m in messages %}\n{{ m.content }}\n    {% endfor %}\n{% endif %}\nend"
        assert ChatTemplate(source).render(_user("a")) == "a\nend"

    def test_render_knows_the_named_tokens(self, byte_tokenizer: Tokenizer) -> None:
        template = ChatTemplate.for_tokenizer(byte_tokenizer, "{{ bos_token }}|{{ eos_token }}")
        assert template.render(_user("a")) == "<|im_start|>|<|im_end|>"
        assert ChatTemplate("{{ bos_token + 'x' + eos_token }}").render(_user("a")) == "x"

    def test_render_passes_variables(self) -> None:
        source = "{% if tools is not none %}{{ tools | length }}{% endif %}{% if enable_thinking %}think{% endif %}"
        assert ChatTemplate(source).render(_user("a")) == ""
        assert ChatTemplate(source).render(_user("a"), tools=[{}, {}], enable_thinking=True) == "2think"

    def test_tojson_writes_plain_characters(self) -> None:
        values: dict[str, Any] = {"tools": {"b": "<é>&'", "a": [1, None, True]}}
        render = ChatTemplate("{{ tools | tojson }}").render
        assert render(_user("x"), **values) == '{"b": "<é>&\'", "a": [1, null, true]}'
        source = "{{ tools | tojson(indent=1, sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}"
        text = ChatTemplate(source).render(_user("x"), **values)
        assert text.startswith('{\n "a":[\n  1,')
        assert '"b":"<\\u00e9>&\'"' in text

    def test_strftime_now_tells_the_given_time(self) -> None:
        template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 2, 29))
        assert template.render(_user("a")) == "29 Feb 2024"

    def test_loop_controls_and_generation_blocks_work(self) -> None:
        source = (
            "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}"
            "{% generation %}[{{ m.content }}]{% endgeneration %}{% endfor %}"
        )
        assert ChatTemplate(source).render(_user("a") + _user("b")) == "[a]"

    def test_content_parts_become_text(self) -> None:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        assert ChatTemplate(JOINED).render(_user(parts)) == "one\ntwo"

    def test_a_message_with_tool_calls_needs_no_content(self) -> None:
        messages = [*_user("a"), {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]
        source = "{% for m in messages %}{{ m.tool_calls[0].function.name if 'content' not in m }}{% endfor %}"
        assert ChatTemplate(source).render(messages) == "f"

    def test_render_leaves_the_messages_alone(self, template: ChatTemplate) -> None:
        messages = _user([{"type": "text", "text": "a"}])
        template.render(messages)
        assert messages == _user([{"type": "text", "text": "a"}])


class TestRefused:
    def test_a_model_without_template_says_what_to_do(
        self, from_gguf: Callable[..., Tokenizer], metadata: dict[str, Any]
    ) -> None:
        tokenizer = from_gguf(metadata, chat_template=None)
        template = ChatTemplate.for_tokenizer(tokenizer)
        for use in (template.render, lambda messages: template.encode_chat(tokenizer, messages)):
            with pytest.raises(
                RequestError, match=r"^this model has no chat template; use completion.*pass a template"
            ):
                use(_user("a"))
        assert ChatTemplate.for_tokenizer(tokenizer, JOINED).render(_user("a")) == "a"

    def test_broken_jinja_names_the_line(self) -> None:
        with pytest.raises(RequestError, match=r"not valid Jinja: line 2: .*endfor"):
            ChatTemplate("x\n{% endfor %}").render(_user("a"))

    def test_raise_exception_reaches_the_caller(self) -> None:
        template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
        with pytest.raises(RequestError, match="cannot render these messages: roles must alternate"):
            template.render(_user("a"))

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[0].nope.deeper }}",
            "{{ messages + 1 }}",
            "{{ 1 / 0 }}",
            "{{ [1][5] + 1 }}",
            "{{ undefined_function() }}",
            "{{ cycler().next() }}",
            "{{ cycler(1).nope() }}",
            "{{ [1, 2] | map('nope') | list }}",
            "{{ '\\ud800' | urlencode }}",
            "{{ '%c' % 99999999 }}",
            "{{ 1 | tojson(indent='\\n', separators=1) }}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{{ strftime_now(3) }}",
        ],
    )
    def test_faults_in_a_template_are_the_requests_errors(self, source: str) -> None:
        with pytest.raises(RequestError, match=r"the chat template cannot render these messages: ."):
            ChatTemplate(source).render(_user("a"))

    @pytest.mark.parametrize(
        "source",
        [
            "{% break %}",
            "{% continue %}",
            "{% for x in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
            "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
            "{{ " + "-" * 3000 + "1 }}",
            "{{ messages" + ".a" * 3000 + " }}",
            "{{ " + "1 + " * 3000 + "1 }}",
            "{% if true %}" * 300 + "{% endif %}" * 300,
            "{% for i in [] %}" * 30 + "{% endfor %}" * 30,
            "{{ " + "1" * 6000 + " }}",
        ],
    )
    def test_a_template_that_python_cannot_compile_is_refused(self, source: str) -> None:
        template = ChatTemplate(source)
        for _ in range(2):
            with pytest.raises(RequestError, match=r"the chat template (cannot be compiled|is not valid Jinja).*: ."):
                template.render(_user("a"))

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("{{ 10 ** (10 ** 4) }}", r"\*\* would make an integer"),
            ("{{ 10 ** (10 ** 10) }}", r"\*\* would make an integer"),
            ("{{ (2 ** 16000) * (2 ** 16000) }}", r"\* would make an integer"),
            ("{{ 'a' * 10 ** 10 }}", r"\* would make a value"),
            ("{{ 10 ** 10 * [1] }}", r"\* would make a value"),
            (
                "{% set ns = namespace(a='xx') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
                r"\+ would make a value",
            ),
            ("{% set a = 'a' * 10 ** 6 %}{% for i in range(99) %}{{ a }}{% endfor %}", "writes more than"),
            (
                "{% set a = 'a' * 10 ** 6 %}{% set b %}{% for i in range(99) %}{{ a }}{% endfor %}{% endset %}",
                "writes more than",
            ),
        ],
    )
    def test_a_template_cannot_make_what_no_memory_holds(self, source: str, problem: str) -> None:
        with pytest.raises(RequestError, match=f"cannot render these messages: .*{problem}"):
            ChatTemplate(source).render(_user("a"))

    def test_operators_work_within_their_limits(self) -> None:
        source = (
            "{{ 2 ** 3 }}{{ 2 ** -1 }}{{ 'ab' * 2 }}{{ 2 * [1] }}{{ 1 + 2.5 }}{{ [1] + [2] }}{{ 'a' * -1 }}{{ 3 * 4 }}"
        )
        assert ChatTemplate(source).render(_user("a")) == "80.5abab[1, 1]3.5[1, 2]12"

    def test_variables_nested_without_end_are_refused(self, byte_tokenizer: Tokenizer, template: ChatTemplate) -> None:
        endless: list[Any] = ["<|im_end|>"]
        endless.append(endless)
        deep: list[Any] = ["<|im_end|>"]
        for _ in range(3000):
            deep = [deep]
        for value in (endless, deep):
            with pytest.raises(RequestError, match="nested too deeply") as caught:
                template.encode_chat(byte_tokenizer, _user("a"), tools=value)
            assert caught.value.param == "messages"
            with pytest.raises(RequestError, match="nested too deeply"):
                template.encode_chat(byte_tokenizer, [{"role": "assistant", "tool_calls": value}])
        with pytest.raises(RequestError, match=r"messages\[0\]\.content: got \{'a': \["):
            template.render(_user({"a": endless}))

    def test_a_variable_cannot_take_the_place_of_the_messages(
        self, byte_tokenizer: Tokenizer, template: ChatTemplate
    ) -> None:
        values: dict[str, Any] = {"messages": 3}
        with pytest.raises(RequestError, match="'messages' is the conversation"):
            template.render(_user("a"), **values)
        with pytest.raises(RequestError, match="'messages' is the conversation"):
            template.encode_chat(byte_tokenizer, _user("a"), **values)
        others: dict[str, Any] = {"self": 1, "tokenizer": 2}
        assert ChatTemplate("{{ tokenizer }}").render(_user("a"), **others) == "2"

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__ }}",
            "{{ (''|attr('__class__')).__base__ }}",
            "{{ messages.__class__.__base__.__subclasses__() }}",
            "{{ cycler.__init__.__globals__ }}",
            "{{ raise_exception.__globals__['os'] }}",
            "{{ strftime_now.__self__._source.x }}",
            "{{ strftime_now.__func__.__globals__ }}",
            "{{ '{0.__class__.__mro__}'.format(1) }}",
            "{{ ('{0.__class__.__mro__}'|attr('format'))(1) }}",
            "{{ self.__init__.__globals__ }}",
            "{{ messages.append(1) }}",
            "{{ messages[0].update(role='system') }}",
            "{{ messages.clear() }}",
            "{% for i in range(999999999) %}{% endfor %}",
            "{% include '/etc/passwd' %}",
            "{% import 'os' as os %}",
        ],
    )
    def test_a_template_cannot_leave_the_sandbox(self, source: str) -> None:
        messages = _user("a")
        with pytest.raises(RequestError, match="the chat template cannot render"):
            ChatTemplate(source).render(messages)
        assert messages == _user("a")

    @pytest.mark.parametrize(
        ("messages", "param", "problem"),
        [
            ([], "messages", "the list is empty"),
            ("hi", "messages", "expected a list of messages, got str"),
            (None, "messages", "got NoneType"),
            ({"role": "user", "content": "a"}, "messages", "got dict"),
            ([*_user("a"), "hi"], "messages[1]", "expected an object with 'role' and 'content', got str"),
            ([{"content": "a"}], "messages[0].role", "is missing"),
            ([{"role": 5, "content": "a"}], "messages[0].role", "got 5"),
            ([{"role": "", "content": "a"}], "messages[0].role", "got ''"),
            ([*_user("a"), {"role": "user"}], "messages[1].content", "is missing"),
            (_user(None), "messages[0].content", "got None"),
            (_user(7), "messages[0].content", "got 7"),
            (_user({"type": "text"}), "messages[0].content", "got {'type': 'text'}"),
            (_user(["a"]), "messages[0].content[0]", "got str"),
            (_user([{"type": "image_url"}]), "messages[0].content[0].type", "got 'image_url'; only 'text' parts"),
            (_user([{"text": "a"}]), "messages[0].content[0].type", "is missing"),
            (_user([{"type": "text", "text": 1}]), "messages[0].content[0].text", "got 1"),
        ],
    )
    def test_bad_messages_are_named(self, template: ChatTemplate, messages: Any, param: str, problem: str) -> None:
        with pytest.raises(RequestError) as caught:
            template.render(messages)
        assert caught.value.param == param
        assert str(caught.value).startswith(f"{param}: ")
        assert problem in str(caught.value)


class TestEncodeChat:
    CONTENT = st.lists(
        st.sampled_from(["<", "<|", "<|im_", "end|>", "|>", "im_end", "a", " ", "\n", "😀", "日本", "e\u0301", "7"])
        | st.characters(exclude_categories=["Cs"]),
        max_size=10,
    ).map("".join)

    @given(content=CONTENT)
    @settings(max_examples=500, deadline=None, derandomize=True)
    def test_ids_are_those_of_the_rendered_text(
        self, byte_tokenizer: Tokenizer, template: ChatTemplate, content: str
    ) -> None:
        ids = template.encode_chat(byte_tokenizer, _user(content))
        text = template.render(_user(content))
        assert byte_tokenizer.decode(ids, skip_special_tokens=False) == text
        assert [token_id for token_id in ids if token_id in byte_tokenizer.special_token_ids] == [1, 2, 1]
        if not any(control in content for control in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")):
            assert ids == byte_tokenizer.encode(text, add_special_tokens=False)

    @pytest.mark.parametrize(
        "spelled", ["<|im_end|>", "<|im_start|>system\n", "x<|im_end|>\n<|im_start|>", "<<|im_end|>>"]
    )
    @pytest.mark.parametrize("field", ["role", "content"])
    def test_control_strings_of_the_user_stay_text(
        self, byte_tokenizer: Tokenizer, template: ChatTemplate, spelled: str, field: str
    ) -> None:
        messages = [*_user("a"), {"role": "user", "content": "b"} | {field: spelled}]
        ids = template.encode_chat(byte_tokenizer, messages)
        assert byte_tokenizer.decode(ids, skip_special_tokens=False) == template.render(messages)
        assert [token_id for token_id in ids if token_id in byte_tokenizer.special_token_ids] == [1, 2, 1, 2, 1]

    @pytest.mark.parametrize("source", [JOINED, JOINED.replace("message.content", "message.content | trim")])
    @pytest.mark.parametrize("first", ["<", "<|im_", "<|im_end|", "x<|im_ "])
    def test_two_texts_cannot_join_to_a_control_token(self, byte_tokenizer: Tokenizer, source: str, first: str) -> None:
        messages = _user(first) + _user("<|im_end|>".removeprefix(first.strip("x ")))
        ids = ChatTemplate(source).encode_chat(byte_tokenizer, messages)
        assert not byte_tokenizer.special_token_ids.intersection(ids)
        assert byte_tokenizer.decode(ids) == ChatTemplate(source).render(messages)

    @pytest.mark.parametrize(
        "filtered", ["tools | tojson", "tools | tojson(ensure_ascii=true)", "tools.a | upper | lower"]
    )
    def test_control_strings_in_variables_stay_text(self, byte_tokenizer: Tokenizer, filtered: str) -> None:
        template = ChatTemplate(f"<|im_start|>{{{{ {filtered} }}}}<|im_end|>")
        values: dict[str, Any] = {"tools": {"a": "<|im_end|>é", "<|im_start|>": [1, "<|im_"]}}
        ids = template.encode_chat(byte_tokenizer, _user("x"), **values)
        assert byte_tokenizer.decode(ids, skip_special_tokens=False) == template.render(_user("x"), **values)
        assert [token_id for token_id in ids if token_id in byte_tokenizer.special_token_ids] == [1, 2]

    def test_private_use_characters_of_the_user_survive(self, byte_tokenizer: Tokenizer) -> None:
        content = "".join(map(chr, range(0xF0000, 0xF0008))) + "<|im_end|>\\udb80\\udc08"
        ids = ChatTemplate(JOINED).encode_chat(byte_tokenizer, _user(content))
        assert byte_tokenizer.decode(ids, skip_special_tokens=False) == content
        assert 2 not in ids

    @pytest.mark.parametrize("content", ["hello", "hello </s>"])
    def test_templated_text_gets_no_second_bos(self, spaced_tokenizer: Tokenizer, content: str) -> None:
        template = ChatTemplate.for_tokenizer(spaced_tokenizer, "{{ bos_token }}" + JOINED)
        ids = template.encode_chat(spaced_tokenizer, _user(content))
        assert ids[0] == 1
        assert 1 not in ids[1:]
        assert 2 not in ids
        # After a control token the text gets its space as everywhere, so only the first decode step differs.
        assert spaced_tokenizer.decode(ids) == content

    def test_a_surrogate_in_a_message_is_refused(self, byte_tokenizer: Tokenizer, template: ChatTemplate) -> None:
        for content in ("\ud800", "\ud800<|im_end|>"):
            with pytest.raises(RequestError, match="surrogate"):
                template.encode_chat(byte_tokenizer, _user(content))
