"""What the processes of a server tell each other beside the requests, pickled over a pipe to the supervisor each."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.server.settings import ServerSettings

__all__ = ["ChildFailed", "Composed", "Drain", "EngineDown", "EngineReady", "EngineUp", "Serving"]


@dataclass(frozen=True, slots=True)
class Composed:
    """Engine to supervisor: the configuration is valid.

    Attributes:
        settings: of the server.
        config: the whole configuration, pickled, for the engines to come; the supervisor itself never opens it, since
            that would load torch.
    """

    settings: ServerSettings
    config: bytes


@dataclass(frozen=True, slots=True)
class EngineReady:
    """Engine to supervisor: requests can come. `model` describes it in some words."""

    model: str


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """Any child to supervisor: it cannot start, or go on, and ends.

    Attributes:
        message: what is wrong, for the user.
        is_mistake: whether what was asked for is wrong, and not what happened.
    """

    message: str
    is_mistake: bool


@dataclass(frozen=True, slots=True)
class EngineUp:
    """Supervisor to front end: an engine can be reached at an address. `num_restarts`: how many came before it."""

    address: str
    num_restarts: int


@dataclass(frozen=True, slots=True)
class EngineDown:
    """Supervisor to front end: the engine is dead."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Supervisor to front end: take no more connections; end what still runs after so many seconds, and exit."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Serving:
    """Front end to supervisor: it accepts connections, has an engine, and has loaded the model's tokenizer."""
