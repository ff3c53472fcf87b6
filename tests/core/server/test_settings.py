"""The keys `server.*`: how they compose, what is said of wrong ones, and that secrets stay secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.errors import ConfigError
from tokenloom.server.api_key import ApiKey
from tokenloom.server.auth import ApiKeys
from tokenloom.server.engine_child import check_parsers, fallback_choice
from tokenloom.server.settings import ServerSettings, ServeSettings, read_api_keys

SECRET = "hunter2"


def compose(*overrides: str) -> ComposedConfig:
    return compose_config(overrides, command=ServeSettings)


def settings_of(*overrides: str) -> ServerSettings:
    return compose(*overrides).extras_of(ServeSettings).server


def test_keys_of_the_block_compose_beside_the_engines() -> None:
    config = compose("server.port=0", "server.host=0.0.0.0", "scheduler.max_num_seqs=3")
    settings = config.extras_of(ServeSettings).server
    assert (settings.port, settings.host, settings.workers) == (0, "0.0.0.0", 1)
    assert config.to_dict()["server"]["port"] == 0
    assert config.sources["server.port"] == "override server.port=0"
    assert config.sources["server.workers"] == "default"


def test_a_block_can_be_given_as_a_mapping() -> None:
    assert settings_of("server={port:1,workers:2}").workers == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("server.prot=1", "server.prot=1: server has no such key"),
        ("server.prot=1", "did you mean server.port"),
        ("port=1", "did you mean server.port?"),
        ("server.port=70000", "server.port=70000: must be less than or equal to 65535"),
        ("server.port=many", "server.port=many: must be a valid integer"),
        ("server.log_level=loud", "must be 'debug', 'info', 'warning' or 'error'"),
        ("server=8000", "server=8000: must be a block with the keys host, port"),
        ("server.step_timeout_s=0", "must be greater than 0"),
        ("server.host=", "server.host"),
        ('server.served_model_names=[""]', "server.served_model_names"),
        ("server.served_model_names=gpt", "must be a list of text, as in server.served_model_names=[my-model]"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_is_allowed(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(override)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("server.tool_parser=hermez", r"server\.tool_parser must be .*'hermez'.* Did you mean 'hermes'\?"),
        ("server.reasoning_parser=qwen4", r"server\.reasoning_parser must be .*'qwen4'.* Did you mean 'qwen3'\?"),
    ],
)
def test_a_parser_that_does_not_exist_is_refused_before_anything_loads(override: str, message: str) -> None:
    check_parsers(settings_of())
    with pytest.raises(ConfigError, match=message):
        check_parsers(settings_of(override))


def test_faults_of_engine_and_server_are_told_together() -> None:
    with pytest.raises(ConfigError) as raised:
        compose("server.port=-1", "cache.block_size=0")
    assert "2 settings are wrong" in str(raised.value)


def test_api_keys_are_never_shown() -> None:
    config = compose(f"server.api_keys=[alice:{SECRET}]")
    assert SECRET not in json.dumps(config.to_dict())
    assert SECRET not in repr(config.extras)
    assert read_api_keys(config.extras_of(ServeSettings).server) == (ApiKey("alice", SECRET),)


@pytest.mark.parametrize(
    "override",
    [
        f"server.api_keys={SECRET}",
        f"server.api_keys=[{SECRET},1]",
        f"server.api_keys=[{SECRET}",
        f"server.api_keys={SECRET}(1)",
        f"server.api_keys={SECRET},other",
        f"server.api_keys:[{SECRET}]",
        f"server.api_keys.x={SECRET}",
        f"server.api_keys=[${{{SECRET}}}]",
        f"server.api_key=[{SECRET}]",
        f"server.api_kyes={SECRET}",
        f"server.secret={SECRET}",
        f"server.key={SECRET}",
        f"srever.key={SECRET}",
        f"key={SECRET}",
        f"server={{api_key: {SECRET}}}",
        f"server={{api_keys: [{SECRET}}}",
        f"servr.api_keys=[{SECRET}]",
        f"api_keys=[{SECRET}]",
        f"~server.api_keys={SECRET}",
        f"server.api_keys@x={SECRET}",
    ],
)
def test_a_fault_in_api_keys_does_not_show_them(override: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(override)
    assert SECRET not in str(raised.value)


def test_what_says_where_a_key_came_from_does_not_show_it() -> None:
    assert SECRET not in str(compose(f"server.api_keys=[{SECRET}]", "server.port=1").sources)


@pytest.mark.parametrize(
    "text", ["", " ", "alice:", "alice: ", ":", "two words", "alice:s\u00e9cret", "a\x00b", "a:b c"]
)
def test_a_key_that_would_open_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.api_keys"):
        ApiKey.parse(text)


@pytest.mark.parametrize(
    ("text", "name", "secret"),
    [("s3cret", "", "s3cret"), (" alice : s3cret ", "alice", "s3cret"), (":s", "", "s"), ("a:b:c", "a", "b:c")],
)
def test_a_key_that_is_taken_opens_the_server(text: str, name: str, secret: str) -> None:
    key = ApiKey.parse(text)
    assert key == ApiKey(name, secret)
    assert ApiKeys([key]).tenant(f"Bearer {secret}").name.startswith(name or "key-")


def test_keys_of_a_file_join_the_others(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nbob:one  # Bob\n\nt#wo\n", encoding="utf-8")
    settings = settings_of("server.api_keys=[zero]", f"server.api_keys_file={file}")
    assert [(key.name, key.secret) for key in read_api_keys(settings)] == [("", "zero"), ("bob", "one"), ("", "t#wo")]


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("# none\n", "holds no key"), ("bob:\n", "empty")]
)
def test_a_file_without_usable_keys_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_api_keys(settings_of(f"server.api_keys_file={file}"))


def test_the_fallback_scheduler_takes_over_the_limits() -> None:
    config = compose("scheduler=sjf", "scheduler.max_num_seqs=3", "server.fallback_scheduler=fcfs")
    choice = fallback_choice(config.engine, config.extras_of(ServeSettings).server, None)
    assert choice is not None
    assert (choice.name, choice.config.model_dump()["max_num_seqs"]) == ("fcfs", 3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("server.fallback_scheduler=fifo",), "server.fallback_scheduler=fifo: "),
        (("server.fallback_scheduler=fcfs", "trace.file=t.jsonl"), "cannot be used with trace.file"),
    ],
)
def test_a_fallback_that_cannot_be_is_refused(overrides: tuple[str, ...], message: str) -> None:
    config = compose(*overrides)
    with pytest.raises(ConfigError, match=message):
        fallback_choice(config.engine, config.extras_of(ServeSettings).server, None)
