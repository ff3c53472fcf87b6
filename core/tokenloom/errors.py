"""Every error that a user can meet, in one tree.

TokenloomError
├── ConfigError              a setting is unknown, misspelt, of the wrong type or contradicts another one
│   └── CapabilityError      a legal config asks for a combination that a plugin cannot run
├── PluginError              a plugin package cannot be found, imported or trusted
│   ├── ContractVersionError it was written for another contract version
│   └── PluginContractError  it broke a rule of its contract while running
├── NativeBuildError         native code cannot be compiled or loaded on this machine
├── ModelError               a checkpoint, tokenizer or source is missing, corrupt or not supported
├── RequestError             one request can never run as asked (bad parameters, too long)
├── OverloadedError          too much waits already; the same request may be taken later
├── OutOfMemoryError         weights, KV cache or activations do not fit
├── EngineBusyError          the engine was called in mid-step, from another thread or from a plugin
├── EngineDeadError          the engine stopped; requests in flight are lost
└── RemoteServerError        a server that is measured cannot be reached, or fails a plain request

A message says what was wrong, its value, what is allowed and what to try. Bugs of our own are `assert`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CONTEXT_LENGTH_EXCEEDED",
    "CapabilityError",
    "ConfigError",
    "ContractVersionError",
    "EngineBusyError",
    "EngineDeadError",
    "ModelError",
    "NativeBuildError",
    "OutOfMemoryError",
    "OverloadedError",
    "PluginContractError",
    "PluginError",
    "RemoteServerError",
    "RequestError",
    "TokenloomError",
    "did_you_mean",
]


CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""Code of a request whose prompt leaves no room for a token."""


class TokenloomError(Exception):
    """Base of all errors that tokenloom raises on purpose."""


class ConfigError(TokenloomError, ValueError):
    """A setting is unknown, misspelt, of the wrong type, or contradicts another one."""


class CapabilityError(ConfigError):
    """A combination of plugins, model and machine that cannot run. `reasons` holds every reason found."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        lines = "\n".join(f"  - {reason}" for reason in self.reasons)
        super().__init__(f"this combination cannot run:\n{lines}")


class PluginError(TokenloomError):
    """A plugin package cannot be found, imported or trusted."""


class ContractVersionError(PluginError):
    """A plugin was written for a contract version that this core does not speak."""


class PluginContractError(PluginError):
    """A plugin broke a rule of its contract. `plugin` and `rule` name both."""

    def __init__(self, plugin: str, rule: str, detail: str) -> None:
        self.plugin = plugin
        self.rule = rule
        super().__init__(f"plugin {plugin} broke the rule '{rule}': {detail}")


class NativeBuildError(TokenloomError):
    """Native code cannot be compiled or loaded on this machine; the message names what can be used instead."""


class ModelError(TokenloomError):
    """A checkpoint, tokenizer or model source is missing, corrupt or not supported."""


class RequestError(TokenloomError, ValueError):
    """One request can never run as asked.

    Attributes:
        param: names the field at fault, if there is one.
        code: the kind of fault as a word for programs, such as `CONTEXT_LENGTH_EXCEEDED`, where there is one.
    """

    def __init__(self, message: str, param: str | None = None, *, code: str | None = None) -> None:
        self.param = param
        self.code = code
        super().__init__(message)


class OutOfMemoryError(TokenloomError, MemoryError):
    """Weights, KV cache or activations do not fit; the message holds the breakdown."""


class OverloadedError(TokenloomError):
    """A request was refused for now, because too many others wait; try it again later.

    Attributes:
        resource: what is full, e.g. "requests" or "tokens" of the engine's queue; "" if it is not told.
        limit: most of it.
        current: how much of it is taken.
        retry_after_s: when trying again may be worth it, seconds, if that can be said.
    """

    def __init__(
        self,
        message: str,
        *,
        resource: str = "",
        limit: int | None = None,
        current: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.resource = resource
        self.limit = limit
        self.current = current
        self.retry_after_s = retry_after_s
        super().__init__(message)


class EngineBusyError(TokenloomError, RuntimeError):
    """The engine was called in mid-step, from another thread or from a plugin. Nothing was changed."""


class EngineDeadError(TokenloomError):
    """The engine stopped after an internal failure; requests in flight are lost."""


class RemoteServerError(TokenloomError):
    """A server that is measured cannot be reached, or fails a plain request."""


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Returns " Did you mean 'x' or 'y'?" for near matches of `word`, else an empty string."""
    near = difflib.get_close_matches(word, sorted(candidates), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
