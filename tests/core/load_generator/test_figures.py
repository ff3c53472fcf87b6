"""Figures from recorded times, by hand."""

from __future__ import annotations

import pytest

from tests.core.load_generator.records import made
from tokenloom.errors import ConfigError
from tokenloom.load_generator.figures import Window, is_in_time, measured_window, summarize
from tokenloom.load_generator.load_request import Outcome
from tokenloom.simulation.measurements import SloTargets

TARGETS = SloTargets(ttft_s=1.0, tpot_s=0.5)


def test_latencies_are_those_of_the_definitions() -> None:
    records = [
        made(0, 0.0, [1.0, 1.5, 2.5]),  # TTFT 1, TPOT 0.75, E2E 2.5, ITL 0.5 1.0
        made(1, 1.0, [1.5, 1.75], chunk_tokens=[1, 4]),  # TTFT 0.5, TPOT 0.25 / 4, E2E 0.75, ITL 0.25
        made(2, 2.0, [5.0]),  # one token: TTFT and E2E 3, no TPOT, no ITL
    ]
    latency = summarize(records, Window(0.0, 5.0), TARGETS)["latency"]
    assert latency["ttft_s"]["mean"] == pytest.approx(4.5 / 3)
    assert latency["ttft_s"]["p50"] == 1.0
    assert latency["ttft_s"]["p90"] == pytest.approx(1.0 + 0.8 * 2.0)
    assert latency["ttft_s"]["p99"] == pytest.approx(1.0 + 0.98 * 2.0)
    assert (latency["tpot_s"]["count"], latency["tpot_s"]["mean"]) == (2, pytest.approx((0.75 + 0.0625) / 2))
    assert (latency["itl_s"]["count"], latency["itl_s"]["p50"]) == (3, 0.5)
    assert latency["e2e_s"]["max"] == 3.0
    assert (latency["tokens_per_chunk"]["count"], latency["tokens_per_chunk"]["max"]) == (6, 4.0)


def test_throughput_and_goodput_count_the_window() -> None:
    records = [
        made(0, 0.5, [1.0, 2.0, 3.0]),  # due in the warm-up: its tokens count from 2 s on, it does not
        made(1, 2.0, [2.5, 3.0, 3.5]),
        made(2, 4.0, [6.0, 6.25]),  # TTFT missed
        made(3, 5.0, [5.5, 7.5]),  # TPOT missed; its second token and its end come after the window
        made(4, 6.0, [], outcome=Outcome.REFUSED, failure="http_429", message="busy", end_s=6.125),
        made(5, 6.5, [6.75], outcome=Outcome.FAILED, failure="timeout", message="slow"),
        made(6, 6.75, [], outcome=Outcome.FAILED, failure="timeout", message="slower"),
        made(7, 8.0, [8.5]),  # due after the window
    ]
    figures = summarize(records, Window(2.0, 7.0), TARGETS)
    assert (figures["num_requests"], figures["num_outside_window"]) == (6, 2)
    assert (figures["num_completed"], figures["num_refused"], figures["num_failed"]) == (3, 1, 2)
    assert figures["failures"] == {"timeout": {"count": 2, "first": "slow"}}
    assert figures["refusals"] == {"http_429": {"count": 1, "first": "busy"}}
    assert figures["refused_after_s"]["max"] == 0.125
    assert figures["offered_rps"] == 6 / 5
    assert figures["output_tok_s"] == pytest.approx((2 + 3 + 2 + 1 + 1) / 5)
    assert figures["completed_rps"] == pytest.approx(3 / 5)  # 0, 1 and 2 ended within it
    assert (figures["slo"]["num_met"], figures["slo"]["share_met"]) == (1, 1 / 6)
    assert figures["slo"]["goodput_rps"] == 1 / 5
    assert figures["latency"]["ttft_s"]["count"] == 3


def test_lateness_of_the_client_is_told_beside_latencies_from_the_schedule() -> None:
    records = [made(0, 1.0, [3.0], sent_s=2.5), made(1, 2.0, [2.5], sent_s=1.9999995)]
    figures = summarize(records, Window(0.0, 4.0), TARGETS)
    assert figures["latency"]["ttft_s"]["max"] == 2.0
    assert (figures["send_late_s"]["max"], figures["send_late_s"]["p50"]) == (1.5, 0.75)


def test_tokens_are_those_of_the_usage_spread_over_the_chunks() -> None:
    # Two chunks of which each held two tokens, as the usage tells: half of them within the window.
    records = [made(0, 0.0, [1.0, 3.0], num_output_tokens=4, max_tokens=8, num_prompt_tokens=10, num_cached_tokens=6)]
    figures = summarize(records, Window(0.0, 2.0), TARGETS)
    assert (figures["output_tok_s"], figures["total_tok_s"]) == (1.0, 6.0)
    assert figures["latency"]["tpot_s"]["mean"] == pytest.approx(2.0 / 3)
    assert figures["tokens"] == {
        "counted_by": "usage",
        "num_output_tokens": 4,
        "num_asked_tokens": 8,
        "num_chunks": 2,
        "mean_tokens_per_chunk": 2.0,
        "num_prompt_tokens": 10,
        "num_cached_tokens": 6,
    }


@pytest.mark.parametrize(("has_usage", "words"), [((True, False), "usage and chunks"), ((False, False), "chunks")])
def test_it_is_told_how_tokens_were_counted(has_usage: tuple[bool, bool], words: str) -> None:
    records = [made(number, 0.0, [1.0], has_usage=has) for number, has in enumerate(has_usage)]
    assert summarize(records, Window(0.0, 2.0), TARGETS)["tokens"]["counted_by"] == words


def test_unfinished_requests_are_neither_met_nor_missed() -> None:
    records = [made(0, 0.0, [0.5]), made(1, 0.0, [0.5], outcome=Outcome.UNFINISHED)]
    figures = summarize(records, Window(0.0, 1.0), TARGETS)
    assert (figures["num_unfinished"], figures["slo"]["share_met"], figures["output_tok_s"]) == (1, 1.0, 2.0)


def test_targets_of_relaxed_requests_are_longer() -> None:
    assert not is_in_time(made(0, 0.0, [2.0]), TARGETS)
    assert is_in_time(made(0, 0.0, [2.0], slo_factor=2.0), TARGETS)
    assert not is_in_time(made(0, 0.0, [2.0, 4.0], slo_factor=2.0), TARGETS)
    assert not is_in_time(made(0, 0.0, [], outcome=Outcome.FAILED), TARGETS)


def test_nothing_but_failures_has_no_latencies() -> None:
    figures = summarize([made(0, 0.0, [], outcome=Outcome.FAILED, failure="connection")], Window(0.0, 1.0), TARGETS)
    assert figures["latency"]["ttft_s"]["p50"] is None
    assert (figures["output_tok_s"], figures["slo"]["share_met"], figures["tokens"]["counted_by"]) == (0.0, 0.0, None)


def test_a_window_holds_its_ends_and_is_not_empty() -> None:
    window = measured_window(3.0, 1.0)
    assert (window.length_s, window.holds(1.0), window.holds(3.0), window.holds(3.5)) == (2.0, True, True, False)
    with pytest.raises(ConfigError, match=r"cut_off=false"):
        measured_window(1.0, 1.0)
