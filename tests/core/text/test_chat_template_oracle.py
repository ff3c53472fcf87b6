"""Chat templates against Transformers' rendering (the oracle): templates written here, with what real ones use."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from tokenloom.errors import RequestError
from tokenloom.text import ChatTemplate

NOW = datetime(2024, 2, 29, 13, 5)
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"city": {"type": "string", "é": "<&>'\""}}}},
    {"type": "function", "function": {"name": "noop", "parameters": {}}},
]
SYSTEM: list[dict[str, Any]] = [{"role": "system", "content": "  Be brief.\n"}]
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": " 1 + 1? "},
    {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2"},
    {"role": "user", "content": "日本 😀 {{ not }} <b>"},
]
CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "function": {"name": "weather", "arguments": {"city": "Łódź", "n": [1, None, 2.5]}}}
        ],
    },
    {"role": "tool", "content": '{"t": 3}', "name": "weather"},
    {"role": "assistant", "content": "Cold.", "reasoning": "3 is cold"},
]
CHATS = {"turns": TURNS, "system": SYSTEM + TURNS, "calls": CALLS, "all": SYSTEM + TURNS + CALLS}

TEMPLATES = {
    "chatml": """\
{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "system apart": """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{%- if system_message %}{{ '<<SYS>>' ~ system_message ~ '<</SYS>>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '[' ~ loop.index0 ~ '/' ~ loop.length ~ '] ' ~ message.role | upper }}: {{ message.content | trim }}
    {%- if not loop.last %}{{ eos_token }}{% endif %}
{% endfor -%}""",
    "macros": """\
{%- macro turn(role, text='', end=true) -%}
    <{{ role }}>{{ text | trim | replace('\\n', ' ') }}{% if end %}</{{ role }}>{% endif %}
{%- endmacro -%}
{%- macro schema(value) -%}
    {%- if value is mapping -%}
        {%- for key, item in value | dictsort -%}{{ key }}={{ schema(item) }};{%- endfor -%}
    {%- else -%}{{ value | string }}{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}{{ turn(message.role, message.content if message.content is defined else '-') }}
{% endfor -%}
{%- if tools -%}{%- for tool in tools -%}{{ schema(tool.function) }}|{%- endfor -%}{%- endif -%}
{%- if add_generation_prompt -%}{{ turn('assistant', end=false) }}{%- endif -%}""",
    "namespace": """\
{%- set ns = namespace(last=-1, found=false, text='') %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if not ns.found and message.role == 'user' %}
        {%- set ns.found = true %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.content is string and '</think>' in message.content %}
        {%- set ns.text = message.content.split('</think>')[-1].lstrip('\\n') %}
    {%- else %}
        {%- set ns.text = message.content | default('none', true) %}
    {%- endif %}
    {%- if loop.index0 >= ns.last %}{{ '*' }}{% endif %}
    {{- message.role[0] ~ ':' ~ ns.text }}
{% endfor %}""",
    "loop controls": """\
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
    {{- loop.cycle('a', 'b') }}{{ loop.previtem.role if loop.previtem is defined }}>{{ message.content }}
{%- else %}nothing
{%- endfor %}""",
    "json": """\
{%- if tools is not none and tools %}{{ tools | tojson }}
{{ tools | tojson(indent=2) }}
{{ tools[0].function | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}
{% endif %}
{%- for message in messages %}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>' }}{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
        {%- for key, value in call.function.arguments.items() %} {{ key }}={{ value }}{% endfor %}{{ '</call>' }}
    {%- endfor %}
{%- endfor %}""",
    "dates and defaults": """\
{%- if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y %H:%M') %}{% endif %}
{{- date_string }} {{ custom | default('unset') }} {{ documents is none }} {{ tools is none }} {{ enable_thinking }}
{%- if enable_thinking is defined and enable_thinking is false %} no thinking{% endif %}""",
    "generation": """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {% generation %}
        {%- set inside = 'set' %}
[{{ message.content }}]{{ eos_token }}
        {%- endgeneration %}{{ inside is defined }}
    {%- else %}{{ message.role }}{% endif %}
{%- endfor %}""",
    "reasoning": """\
{%- for message in messages %}{{ message.role }}
    {%- if message.reasoning_content is defined %}({{ message.reasoning_content }}/{{ message.thinking }}){% endif %}
    {%- if message.content is none %} null{% elif 'content' not in message %} missing{% endif %}
{% endfor %}""",
    "filters": """\
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}
{{ messages | map(attribute='role') | unique | list }} {{ messages | length }} {{ messages[-1].role.title() }}
{{ range(3) | list }} {{ 'a b'.split() }} {{ 7 // 2 }} {{ '%s-%d' | format('x', 5) }} {{ dict(a=1).a }}
{{ messages[0].content is string and messages[0] is mapping }} {{ 'x' in ['x'] and not false }}
{%- set parts = [] %}{% for message in messages %}{% set parts = parts + [message.role] %}{% endfor %}
{{ parts | length }}{% macro wrap() %}{{ caller('c') }}{% endmacro %}
{%- call(x) wrap() %}<{{ x }}>{% endcall %}""",
    "alternation": """\
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate, got ' + message.role + ' at ' ~ loop.index0) }}
    {%- endif %}
    {{- message.content }}
{%- endfor %}""",
    "missing method": "{{ messages[0].content.nothing() }}",
    "undefined value": "{{ nothing.more }}",
}
VARIABLES: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS, "enable_thinking": False},
    {"custom": "é", "date_string": "today", "enable_thinking": True, "documents": [{"title": "t", "text": "x"}]},
]


def _oracle(source: str, messages: list[dict[str, Any]], **variables: Any) -> str | None:
    """What Transformers renders, or None where it refuses."""
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    chat = chat_template_utils._normalize_chat_messages(messages)
    try:
        return chat_template_utils.render_jinja_template([chat], chat_template=source, **named, **variables)[0][0]
    except Exception:  # noqa: BLE001 - whatever it refuses with
        return None


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(name: str, chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return NOW

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    template = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>", "eos_token": "</s>"}, now=lambda: NOW)
    for variables in VARIABLES:
        for prompt in (True, False):
            expected = _oracle(TEMPLATES[name], CHATS[chat], add_generation_prompt=prompt, **variables)
            if expected is None:
                with pytest.raises(RequestError, match="the chat template cannot render"):
                    template.render(CHATS[chat], add_generation_prompt=prompt, **variables)
            else:
                assert template.render(CHATS[chat], add_generation_prompt=prompt, **variables) == expected


def test_most_templates_render_something() -> None:
    """The comparison above would hold if everything were refused."""
    refused = [name for name, source in TEMPLATES.items() if not _oracle(source, CHATS["all"], tools=TOOLS)]
    assert refused == ["alternation", "missing method", "undefined value"]
    assert _oracle(TEMPLATES["alternation"], TURNS)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{{ ns.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% include 'x' %}",
        "{{ '%s' | attr('format') }}{{ messages | attr('__class__') }}",
    ],
)
def test_templates_reach_nothing_outside(source: str) -> None:
    """A checkpoint's template is foreign code."""
    text = ""
    try:
        text = ChatTemplate(source).render(TURNS)
    except RequestError:
        return
    assert "class" not in text
    assert "module" not in text
