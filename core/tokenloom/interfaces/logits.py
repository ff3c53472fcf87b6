"""Contract `logits constraint` 1.0: which tokens may come next, for structured output (grammars, schemas, choices).

Not a plugin kind: the request brings its constraint along, and the core decides where it is applied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CONTRACT_VERSION", "LogitsConstraint"]

CONTRACT_VERSION = (1, 0)


class LogitsConstraint(ABC):
    """The state of one constrained choice of one request: a cursor in its grammar, moved one token at a time.

    Where it is applied. The core applies the mask to the logits before temperature and every filter, at each position
    that is sampled or verified. For a request with drafts d_1..d_k the core asks, in one step::

        logits row      0        1        2      ...   k
        state      committed   +d_1     +d_2     ...  +d_k        allowed_mask at each; `advance` between them
                                                                  then `rollback` by the number of advances

    and stops at the first draft that is not legal: row j-1 is masked, so its sample cannot equal an illegal d_j, and no
    later row is reached. After verification `advance` is called once for each token emitted.

    What the core promises: calls for one object come from one thread, in the order above; `rollback` never takes back a
    token that entered the request; a terminated state is not advanced and its mask not asked for.

    What an implementation promises: `allowed_mask` and `advance` agree (a token is legal exactly if its mask bit is
    set); no method depends on other requests or on the clock; the state lives on the host.

    A mask that allows nothing is legal but ends the request with an error: that row has no finite logit. It is also how
    an implementation gives up on a state that takes far too much time, the one thing for which it may read a clock;
    `failure` says why.
    """

    @abstractmethod
    def allowed_mask(self, out: Tensor) -> None:
        """Writes which tokens are legal at the next position. Does not change the state.

        Args:
            out: bool [vocab_size] on the host, contents undefined; every element must be written. True means legal. The
                end-of-sequence token is a token like any other: legal where the grammar may end.
        """

    @abstractmethod
    def fork(self) -> LogitsConstraint:
        """An independent cursor in the same state.

        A request carries its constraint in the initial state and never moves it. Whoever samples forks it, advances the
        fork over the output tokens there are, and then by each token it emits: so several choices, a preempted request
        that comes back, and another process each have a cursor of their own. Objects must be picklable.
        """

    @abstractmethod
    def advance(self, token_id: int) -> bool:
        """Moves the state past one token.

        Args:
            token_id: the token at the next position, 0 <= token_id < vocab_size.

        Returns:
            True if the token is legal and the state moved; False if it is not, and the state is as before.
        """

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Takes back the last successful advances.

        Args:
            num_tokens: how many, at least 0 and at most the number of drafts of a step; 0 changes nothing. A terminated
                state that is rolled back is no longer terminated.
        """

    @property
    @abstractmethod
    def is_terminated(self) -> bool:
        """Whether the grammar is complete and its end-of-sequence token was accepted: no position follows."""

    @property
    def failure(self) -> str:
        """Why the last mask allows nothing, for the request's error; "" if it allows something or nothing is known."""
        return ""
