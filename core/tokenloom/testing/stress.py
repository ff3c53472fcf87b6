"""The stress test: random traffic over every combination of scheduling and cache plugins, until so many steps ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from tokenloom.testing.stress_case import Combination, StressCase, all_combinations, draw_case
from tokenloom.testing.stress_run import StressCounts, run_case

__all__ = ["StressFailure", "StressReport", "run_stress", "shrink"]


@final
@dataclass(frozen=True, slots=True)
class StressFailure:
    """A case that failed.

    Attributes:
        case: which; its number and the seed make it again.
        error: type and text of what was raised.
        kept: indices of the requests that are enough for an error of the same type.
        seed: of the run.
    """

    seed: int
    case: StressCase
    error: str
    kept: tuple[int, ...]

    @property
    def arguments(self) -> str:
        """Command line arguments that run exactly this again."""
        return f"--seed {self.seed} --case {self.case.number} --requests {' '.join(map(str, self.kept))}"


@final
@dataclass(slots=True)
class StressReport:
    """What came of a run."""

    seed: int
    next_case: int = 0
    counts: dict[Combination, StressCounts] = field(default_factory=dict)
    failures: list[StressFailure] = field(default_factory=list)

    @property
    def total(self) -> StressCounts:
        """Over all combinations."""
        return self.sum_by(lambda _: "")[""] if self.counts else StressCounts()

    @property
    def num_missed(self) -> int:
        """Combinations that no case had."""
        return len(all_combinations()) - len(self.counts)

    def sum_by(self, name: Callable[[Combination], str]) -> dict[str, StressCounts]:
        """Figures summed over the combinations to which `name` gives the same one."""
        sums: dict[str, StressCounts] = {}
        for combination, counts in sorted(self.counts.items()):
            sums.setdefault(name(combination), StressCounts()).add(counts)
        return sums


def run_stress(
    report: StressReport,
    num_steps: int,
    *,
    max_failures: int = 5,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Runs cases one after the other until they have run `num_steps` engine steps in all.

    Args:
        report: begins with the seed and the first case, and takes what comes of each.
        num_steps: at least so many.
        max_failures: ends after so many cases that failed.
        progress: told the steps so far.
    """
    done = 0
    while done < num_steps and len(report.failures) < max_failures:
        case = draw_case(report.seed, report.next_case)
        try:
            counts = run_case(case)
        except Exception as error:  # noqa: BLE001 - whatever fails, in the core or in a plugin, is a finding
            report.failures.append(StressFailure(report.seed, case, _text(error), shrink(case, error)))
            continue
        finally:
            report.next_case += 1
        report.counts.setdefault(case.combination, StressCounts()).add(counts)
        done += counts.num_steps
        progress(done)


def shrink(case: StressCase, error: Exception, max_runs: int = 200) -> tuple[int, ...]:
    """Leaves requests out as long as the case still raises an error of this type; returns those that it takes."""
    kept, size, num_runs = list(range(len(case.requests))), max(1, len(case.requests) // 2), 0
    while size >= 1 and num_runs < max_runs:
        is_smaller = False
        for first in range(0, len(kept), size):
            rest = kept[:first] + kept[first + size :]
            num_runs += 1
            if _fails_alike(case, rest, error):
                kept, is_smaller = rest, True
                break
        if not is_smaller:
            size //= 2
    return tuple(kept)


def _fails_alike(case: StressCase, kept: Sequence[int], error: Exception) -> bool:
    try:
        run_case(case, kept)
    except Exception as other:  # noqa: BLE001 - as above
        return type(other) is type(error)
    return False


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
