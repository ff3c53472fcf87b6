"""Whether two answers agree, and how ratios of two servers are formed."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom.load_generator.agreement import Answer, compare_answers, summarize_agreement
from tokenloom.load_generator.comparison import COMPARED, ratios


def answer(text: str, logprob: float | None = None) -> Answer:
    return Answer(text, tuple(text), None if logprob is None else (logprob,) * len(text))


def test_equal_answers_agree_wholly() -> None:
    found = compare_answers(answer("abcd", -1.0), answer("abcd", -1.25))
    assert (found.share, found.first_divergence, found.at_divergence) == (1.0, None, None)
    assert (found.mean_logprob_difference, found.max_logprob_difference) == (0.25, 0.25)


def test_the_first_divergence_is_found_and_only_equal_tokens_compare_logprobs() -> None:
    a = Answer("abcX", ("a", "b", "c", "X"), (-1.0, -1.0, -1.0, -9.0))
    b = Answer("abcYZ", ("a", "b", "c", "YZ"), (-1.0, -1.5, -1.0, -0.5))
    found = compare_answers(a, b)
    assert (found.num_equal, found.num_units, found.first_divergence, found.at_divergence) == (3, 4, 3, ("X", "YZ"))
    assert found.mean_logprob_difference == pytest.approx(0.5 / 3)
    assert found.max_logprob_difference == 0.5


def test_an_answer_that_ends_early_diverges_there() -> None:
    found = compare_answers(answer("ab"), answer("abcd"))
    assert (found.share, found.first_divergence, found.at_divergence) == (0.5, 2, ("", "cd"))


def test_texts_are_compared_where_tokens_are_not_named_or_spelt_otherwise() -> None:
    assert compare_answers(Answer("abc"), answer("abd")).num_equal == 2
    spelt = Answer("a b", ("a", "\u0120b"), (-1.0, -1.0))
    assert compare_answers(spelt, Answer("a b", ("a", " b"), (-1.0, -1.0))).first_divergence is None
    assert compare_answers(Answer(""), Answer("")).share == 1.0


def test_a_summary_doubts_servers_that_do_not_agree() -> None:
    same = summarize_agreement([answer("abcd", -1.0)] * 2, [answer("abcd", -1.0)] * 2)
    assert (same.unit, same.mean_share, same.share_identical, same.doubts) == ("tokens", 1.0, 1.0, ())
    apart = summarize_agreement([answer("abcd", -1.0), answer("abcd")], [answer("Xbcd", -1.0), answer("abcd")])
    assert (apart.mean_share, apart.share_identical) == (0.5, 0.5)
    assert ["first token" in doubt for doubt in apart.doubts] == [True, False]
    far = summarize_agreement([answer("abcd", -1.0)], [answer("abcd", -2.0)])
    assert "logprobs of equal tokens differ by 1.000" in far.doubts[0]
    assert summarize_agreement([Answer("a")], [Answer("a")]).unit == "characters"


def test_a_divergence_between_tokens_that_were_as_good_as_equal_is_no_doubt() -> None:
    sure, unsure = (2.0, 2.0), (2.0, 0.125)
    a, b = Answer("ab", ("a", "b"), (-1.0, -1.0), sure), Answer("aX", ("a", "X"), (-1.0, -1.0), unsure)
    assert compare_answers(a, b).is_tie
    assert not compare_answers(a, Answer("aX", ("a", "X"), (-1.0, -1.0), sure)).is_tie
    assert not compare_answers(a, a).is_tie
    found = summarize_agreement([a], [b])
    assert (found.mean_share, found.num_ties, found.doubts) == (0.5, 1, ())
    assert summarize_agreement([a], [Answer("aX", ("a", "X"), (-1.0, -1.0), sure)]).doubts


def result(tok_s: float, ttft_s: float | None) -> dict[str, Any]:
    percentile = {"p50": ttft_s, "p99": ttft_s}
    latency = dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s"), percentile)
    return {"output_tok_s": tok_s, "completed_rps": 1.0, "slo": {"goodput_rps": 0.0}, "latency": latency}


def test_ratios_are_formed_pair_by_pair() -> None:
    pairs = [
        (result(10.0, 0.5), result(5.0, 1.0)),
        (result(20.0, 0.5), result(5.0, 0.25)),
        (result(9, 1), result(3, 1)),
    ]
    found = {ratio.figure: ratio for ratio in ratios(pairs)}
    assert list(found) == list(COMPARED)
    tokens = found["output tokens/s"]
    assert (tokens.a, tokens.b, tokens.values) == (10.0, 5.0, (2.0, 4.0, 3.0))
    assert tokens.to_dict() == {
        "better": "higher",
        "a": 10.0,
        "b": 5.0,
        "min": 2.0,
        "median": 3.0,
        "max": 4.0,
        "pairs": [2.0, 4.0, 3.0],
    }
    assert found["TTFT p50"].values == (0.5, 2.0, 1.0)


def test_figures_that_are_not_there_or_zero_have_no_ratio() -> None:
    found = {ratio.figure: ratio for ratio in ratios([(result(10.0, None), result(5.0, 1.0))])}
    assert found["TTFT p50"].values == ()
    assert found["TTFT p50"].to_dict()["median"] is None
    assert found["goodput requests/s"].values == ()
