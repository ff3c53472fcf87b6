"""The keys of `tokenloom serve`: everything under `server.`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from tokenloom.errors import ConfigError
from tokenloom.server.api_key import ApiKey
from tokenloom.settings_base import Settings, UserPath

__all__ = ["ServeSettings", "ServerSettings", "read_api_keys"]

_COMMENT = re.compile(r"(?:^|\s)#.*")
"""A secret may hold the sign."""

_Seconds = Annotated[float, Field(gt=0)]


class ServerSettings(Settings):
    """How the server listens, whom it lets in, and how it behaves when things go wrong."""

    host: Annotated[str, Field(min_length=1)] = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 is every address of this machine."
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=8000, description="TCP port to listen on; 0 takes a free one and prints it."
    )
    workers: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="Front-end processes, which parse, tokenize and write; the engine has its own."
    )
    served_model_names: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Names that clients may use for the model, the first one is reported; [] takes the source's.",
        examples=[["my-model"]],
    )
    api_keys: tuple[SecretStr, ...] = Field(
        default=(),
        description="Keys that clients must show, each alone or as name:secret; [] lets everybody in. A command line "
        "can be read by others on the machine: api_keys_file is safer.",
        examples=[["alice:s3cret"]],
    )
    api_keys_file: UserPath | None = Field(
        default=None,
        description="File with further keys, one a line, as in api_keys; '#' at the beginning or behind a "
        "space begins a comment.",
    )
    shared_prefix_cache: bool = Field(
        default=False, description="Whether API keys find each other's cached prefixes; false keeps them apart."
    )
    cors_origins: tuple[str, ...] = Field(
        default=(),
        description="Web origins whose pages may call the server, '*' for all.",
        examples=[["https://example.com"]],
    )
    max_body_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=2 * 1024 * 1024, description="Largest request body, bytes."
    )
    max_prompt_chars: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Longest prompt, characters, refused before it is tokenized; null takes 64 for each token of "
        "max_model_len.",
    )
    tool_parser: str = Field(
        default="auto",
        description="How the model writes tool calls: hermes, llama3_json, pythonic, none; auto tells it from the chat "
        "template.",
    )
    reasoning_parser: str = Field(
        default="auto",
        description="How the model marks its thoughts: qwen3, deepseek_r1, none; auto tells it from the chat template.",
    )
    read_timeout_s: _Seconds = Field(
        default=30.0, description="How long a client may take to send its request, seconds."
    )
    write_timeout_s: _Seconds = Field(
        default=60.0, description="How long a client may take nothing of an answer that waits, seconds; then it ends."
    )
    drain_timeout_s: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="After SIGTERM or Ctrl-C, how long running requests may take to end, seconds."
    )
    step_timeout_s: _Seconds | None = Field(
        default=300.0,
        description="An engine that shows no sign of life for longer, in a step or idle, is ended and restarted, "
        "seconds; null waits.",
    )
    max_engine_restarts: Annotated[int, Field(ge=0)] = Field(
        default=5, description="How often in a row the engine is restarted before the server gives up."
    )
    restart_backoff_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=1.0, description="Pause before the second restart in a row, seconds; it doubles from there."
    )
    fallback_scheduler: str | None = Field(
        default=None,
        description="Scheduler plugin, e.g. fcfs, that takes over from one that made an illegal plan; null keeps that "
        "one. Either way the requests of that moment fail.",
    )
    retry_after_s: Annotated[int, Field(ge=0)] = Field(
        default=1, description="What clients are told to wait when the server is full or the engine is away, seconds."
    )
    vllm_metric_names: bool = Field(default=False, description="Whether /metrics has vLLM's names, too.")
    metrics_tenant_label: bool = Field(default=False, description="Whether /metrics counts by tenant, too.")
    otel_endpoint: str | None = Field(
        default=None,
        description="OpenTelemetry collector (OTLP over HTTP) for a span of each request; null: none.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="What the processes write to stderr."
    )
    access_log: bool = Field(default=False, description="Whether each HTTP request is logged.")


class ServeSettings(Settings):
    """Keys of `tokenloom serve`."""

    server: ServerSettings = ServerSettings()


def read_api_keys(settings: ServerSettings) -> tuple[ApiKey, ...]:
    """All API keys, those of the file behind the others.

    Raises:
        ConfigError: the file cannot be read, or holds no key, or one cannot be used.
    """
    keys = [key.get_secret_value() for key in settings.api_keys]
    if settings.api_keys_file is not None:
        try:
            text = Path(settings.api_keys_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"server.api_keys_file={settings.api_keys_file}: it cannot be read: {error}") from error
        lines = (_COMMENT.sub("", line).strip() for line in text.splitlines())
        found = [line for line in lines if line]
        if not found:
            raise ConfigError(f"server.api_keys_file={settings.api_keys_file}: it holds no key; write one a line")
        keys += found
    return tuple(map(ApiKey.parse, keys))
