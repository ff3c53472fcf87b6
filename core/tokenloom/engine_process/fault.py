"""An error as it crosses from the engine to a front end: its class by a stable name, and all that its answer needs."""

from __future__ import annotations

from typing import Literal

import msgspec

from tokenloom.errors import EngineDeadError, OverloadedError, RequestError, TokenloomError

__all__ = ["Fault", "FaultKind", "fault_of"]

FaultKind = Literal["request", "overloaded", "engine_dead", "internal"]
"""request: what was asked for can never be; overloaded: not now; engine_dead: nobody is there to do it; internal: all
else, whose cause stands in the engine's log."""


class Fault(msgspec.Struct, frozen=True):
    """An error.

    Attributes:
        kind: its class.
        message: what was wrong, for the user.
        param: the field at fault, if there is one.
        code: of `RequestError`, a word for programs.
        retry_after_s: of `OverloadedError`, when trying again may be worth it.
    """

    kind: FaultKind
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None

    def error(self) -> TokenloomError:
        """The same as an exception, on the other side."""
        match self.kind:
            case "request":
                return RequestError(self.message, self.param, code=self.code)
            case "overloaded":
                return OverloadedError(self.message, retry_after_s=self.retry_after_s)
            case "engine_dead":
                return EngineDeadError(self.message)
            case "internal":
                return TokenloomError(self.message)


def fault_of(error: BaseException, param: str | None = None) -> Fault:
    """What crosses of an exception; `param` names the field at fault where the error does not."""
    match error:
        case RequestError():
            return Fault("request", str(error), error.param or param, error.code)
        case OverloadedError():
            return Fault("overloaded", str(error), retry_after_s=error.retry_after_s)
        case EngineDeadError():
            return Fault("engine_dead", str(error))
        case TokenloomError():
            return Fault("internal", str(error))
        case _:
            return Fault("internal", f"{type(error).__name__}: {error}")
