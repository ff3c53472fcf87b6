"""The order in which `tokenloom bench spec` runs engines: one after the other, and so again in each repetition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, final

from tokenloom.bench.attempt import Failure, attempt
from tokenloom.bench.spec_run import CategoryRun, SpecWork, run_category, warm_up
from tokenloom.llm import LLM

__all__ = ["EngineTurns", "LoadEngine"]

_Result = TypeVar("_Result")
LoadEngine = Callable[[str], tuple[LLM, SpecWork]]
"""An engine's name -> it, loaded anew, and what it is given."""


@final
@dataclass(slots=True)
class EngineTurns:
    """Runs all engines A, B, C over all categories, `repetitions` times.

    What a machine does for a while befalls all of them: A B C A B C, each loaded anew, for a drafter that learns must
    not know the answers of the repetition before. Side by side the three are loaded at once, and each category runs on
    one after the other. Every engine first runs the same untimed requests. One that fails does not take the others with
    it, but those that are compared with it.

    Attributes:
        names: the engines in order.
        baseline_of: for each drafter's name, that of the one without drafts that it is compared with.
        repetitions: how often.
        side_by_side: load all at once.
        load: makes an engine.
        say: told what runs now.
        failures: why an engine has no result, by its name.
    """

    names: Sequence[str]
    baseline_of: Mapping[str, str]
    repetitions: int
    side_by_side: bool
    load: LoadEngine
    say: Callable[[str], None]
    failures: dict[str, str] = field(default_factory=dict)

    def run(self) -> dict[str, list[dict[str, CategoryRun]]]:
        """By the name of an engine that did not fail, for each repetition, its categories."""
        runs: dict[str, list[dict[str, CategoryRun]]] = {name: [] for name in self.names}
        groups = [list(self.names)] if self.side_by_side else [[name] for name in self.names]
        for number in range(self.repetitions):
            for group in groups:
                for name, done in self._run_group(group, f"run {number + 1}/{self.repetitions}").items():
                    runs[name].append(done)
        return {name: done for name, done in runs.items() if name not in self.failures}

    def _run_group(self, names: Sequence[str], label: str) -> dict[str, dict[str, CategoryRun]]:
        runs: dict[str, dict[str, CategoryRun]] = {}
        with ExitStack() as open_engines:
            loaded: dict[str, tuple[LLM, SpecWork]] = {}
            for name in filter(self._is_wanted, names):
                engine = self._attempt(name, partial(self._open, name, open_engines, label))
                if engine is not None:
                    loaded[name], runs[name] = engine, {}
            categories = dict.fromkeys(category for _, work in loaded.values() for category in work.prompts)
            for category in categories:
                for name in filter(self._is_wanted, list(loaded)):
                    llm, work = loaded[name]
                    say = partial(self._say, name, label, category)
                    done = self._attempt(name, partial(run_category, llm, work, category, say))
                    if done is not None:
                        runs[name][category] = done
        return {name: done for name, done in runs.items() if name not in self.failures}

    def _open(self, name: str, open_engines: ExitStack, label: str) -> tuple[LLM, SpecWork]:
        llm, work = self.load(name)
        open_engines.enter_context(llm)
        warm_up(llm, work, partial(self._say, name, label))
        return llm, work

    def _is_wanted(self, name: str) -> bool:
        return name not in self.failures and self.baseline_of.get(name, name) not in self.failures

    def _attempt(self, name: str, run: Callable[[], _Result]) -> _Result | None:
        done = attempt(run)
        if isinstance(done, Failure):
            self.failures[name] = done.reason
            return None
        return done

    def _say(self, name: str, label: str, category: str, num_tokens: int) -> None:
        self.say(f"{name}, {label}: {category}, {num_tokens} tokens")
