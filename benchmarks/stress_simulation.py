"""Runs the stress test: every scheduler x victim x admission x mode x cache x evictor, random traffic, tiny pools.

    python benchmarks/stress_simulation.py --steps 1000000 --seed 0
    python benchmarks/stress_simulation.py --seed 0 --case 17 --requests 0 3

The engine, the policies and the caches are the real ones, with `debug.checks=full`; the model is a stub that knows what
must lie in every KV slot and which tokens every request must yield. Each case draws a combination of plugins and their
settings, block size and count, KV groups, step budgets, drafts, host memory with delays and losses of swaps, and the
traffic: priorities, tenants, targets, shared prefixes, aborts, stop strings and failing rows. In three cases of four
memory is short for what comes. The run fails at a broken invariant, a request that never ends or yields other tokens
than alone, one that waits longer than its scheduler states, or a step without progress; and when something never
preempted, swapped, kept blocks or evicted in many cases in which it could have. A failure is printed with the smallest
traffic that shows it and the arguments that run it again. Ctrl-C ends the run and prints what there is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tokenloom.testing.stress import StressReport, run_stress
from tokenloom.testing.stress_case import draw_case
from tokenloom.testing.stress_coverage import find_gaps, reach_of
from tokenloom.testing.stress_run import run_case

COLUMNS = {
    "cases": "num_cases",
    "steps": "num_steps",
    "requests": "num_requests",
    "ended early": "num_aborted",
    "as victims": "num_aborted_preempted",
    "preempted": "num_preemptions",
    "kept blocks": "num_partial",
    "swapped": "num_swaps",
    "lost": "num_lost_swaps",
    "evicted": "num_evicted",
    "cached tokens": "num_cached_tokens",
    "recomputed": "num_recomputed_tokens",
}


def main() -> int:
    """Runs what the arguments ask for; 1 if anything failed."""
    arguments = parse()
    if arguments.case is not None:
        case = draw_case(arguments.seed, arguments.case)
        print(case)
        print(run_case(case, arguments.requests))
        return 0
    start_s, report = time.perf_counter(), StressReport(arguments.seed, arguments.first_case)
    with progress_bar(arguments.steps) as progress, suppress(KeyboardInterrupt):
        run_stress(report, arguments.steps, max_failures=arguments.max_failures, progress=progress)
    print_report(report, time.perf_counter() - start_s)
    if arguments.output is not None:
        rows = {str(combination): asdict(counts) for combination, counts in sorted(report.counts.items())}
        arguments.output.write_text(json.dumps({"seed": report.seed, "combinations": rows}, indent=1) + "\n")
    return 1 if report.failures or find_gaps(report.counts) else 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000, help="engine steps to run, over all cases")
    parser.add_argument("--seed", type=int, default=0, help="of all cases")
    parser.add_argument("--first-case", type=int, default=0, help="number of the first case, to go on with a run")
    parser.add_argument("--max-failures", type=int, default=5, help="ends after so many cases that failed")
    parser.add_argument("--output", type=Path, help="JSON file for the figures of every combination")
    parser.add_argument("--case", type=int, help="run only this case; an error is shown with its traceback")
    parser.add_argument("--requests", type=int, nargs="*", help="with --case: only these of its requests")
    return parser.parse_args()


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Counts steps on stderr, on a terminal only."""
    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("steps", total=total)
        yield lambda done: bars.update(task, completed=done)


def print_report(report: StressReport, wall_s: float) -> None:
    """Figures by plugin of each kind, and the failures."""
    table = Table("", *COLUMNS, "longest wait / bound")
    parts = (
        report.sum_by(lambda one: f"scheduler={one.scheduler}"),
        report.sum_by(lambda one: f"victim={one.victim or 'none'}"),
        report.sum_by(lambda one: f"admission={one.admission or 'none'}"),
        report.sum_by(lambda one: f"preempt_mode={one.preempt_mode}"),
        report.sum_by(lambda one: f"cache={one.cache}"),
        report.sum_by(lambda one: f"eviction={one.eviction or 'none'}"),
        {"all": report.total},
    )
    for rows in parts:
        for name, counts in rows.items():
            table.add_row(name, *(str(asdict(counts)[key]) for key in COLUMNS.values()), f"{counts.worst_wait:.2f}")
        table.add_section()
    Console(width=170).print(table)
    missed = f", {report.num_missed} combinations not reached" if report.num_missed else ""
    total = report.total
    print(
        f"seed {report.seed}: {total.num_steps} steps in {total.num_cases} cases of {len(report.counts)} combinations"
        f"{missed}; {total.num_steps / wall_s:.0f} steps/s; {len(report.failures)} cases failed; the next "
        f"case is {report.next_case}"
    )
    reached = ", ".join(map(str, reach_of(report.counts)))
    print(f"of the combinations of scheduler, victim, admission and preempt_mode that can: {reached}")
    for gap in find_gaps(report.counts):
        print(f"too tame: {gap}")
    for failure in report.failures:
        print(f"\n{failure.case}\n  {failure.error}\n  again: {sys.argv[0]} {failure.arguments}")


if __name__ == "__main__":
    sys.exit(main())
