"""Tables of what load on a server showed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tokenloom.cli.console import print_table
from tokenloom.cli.figure_cells import goodput_of, milliseconds, print_latencies
from tokenloom.load_generator.agreement import Agreement
from tokenloom.load_generator.comparison import Ratio
from tokenloom.load_generator.measure import LoadTest
from tokenloom.load_generator.server_probe import ServerFacts

__all__ = ["print_agreement", "print_capacity", "print_loads", "print_ratios", "print_server", "print_warnings"]


def print_server(server: ServerFacts, test: LoadTest, name: str = "server") -> None:
    """Prints what is measured and how: the choices that were made."""
    traffic = test.traffic
    version = "" if server.version is None else f", version {server.version}"
    slots = "" if traffic.concurrency is None else f", concurrency={traffic.concurrency}"
    form = "token ids" if server.prompt_form == "token_ids" else "text"
    click.echo(f"{name}: {server.endpoint.url}, model {server.endpoint.model}{version}, prompts as {form}")
    click.echo(f"traffic={traffic.kind}{slots}, cut_off={str(test.is_cut_off).lower()}, warmup_s={test.warmup_s:g}")


def print_loads(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints one run in full, or several with a row each."""
    if len(results) == 1:
        _print_one(*results.values())
        return
    columns = (
        "run",
        "requests",
        "completed",
        "refused",
        "failed",
        "req/s",
        "goodput req/s",
        "SLO met",
        "tokens/s",
        "TTFT ms p50",
        "p99",
        "TPOT ms p50",
        "p99",
        "ITL ms p99",
        "E2E ms p50",
        "client CPU",
    )
    print_table(columns, [(name, *_row(result)) for name, result in results.items()])


def print_capacity(by_rate: Mapping[float, Mapping[str, Any]]) -> None:
    """Prints the highest of the rates up to which p99 of TTFT and TPOT met the targets and every request completed."""
    met = list(itertools.takewhile(lambda rate: _meets_targets(by_rate[rate]), sorted(by_rate)))
    click.echo(f"requests/s with all targets met at p99: {f'{met[-1]:g}' if met else f'below {min(by_rate):g}'}")


def print_warnings(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what makes figures doubtful, on stderr."""
    for name, result in results.items():
        for warning in result["warnings"]:
            label = f"{name}: " if len(results) > 1 else ""
            click.secho(f"warning: {label}{warning}", fg="yellow", err=True)


def print_agreement(agreement: Agreement) -> None:
    """Prints how far two servers say the same, and loudly if they do not."""
    rows = [
        (
            "prompts",
            f"{len(agreement.prompts)}, {agreement.share_identical:.0%} with equal answers, {agreement.num_ties} part "
            "where two tokens were as good as equal",
        ),
        (f"equal leading {agreement.unit}", f"{agreement.mean_share:.1%} on average"),
    ]
    if agreement.mean_logprob_difference is not None:
        largest = agreement.max_logprob_difference
        rows.append(("difference of logprobs", f"mean {agreement.mean_logprob_difference:.4f}, largest {largest:.4f}"))
    apart = next((p for p in agreement.prompts if p.at_divergence is not None), None)
    if apart is not None and apart.at_divergence is not None:
        a, b = apart.at_divergence
        rows.append(("first divergence", f"{agreement.unit} {apart.first_divergence}: A {a!r}, B {b!r}"))
    print_table(("agreement", "value"), rows)
    for doubt in agreement.doubts:
        click.secho(f"WARNING: A AND B DO NOT AGREE: {doubt}", fg="red", bold=True, err=True)


def print_ratios(ratios: Sequence[Ratio]) -> None:
    """Prints A, B and A / B of each figure with its spread over pairs."""
    rows = []
    for ratio in ratios:
        spread = ratio.to_dict()
        unit = "" if ratio.better == "higher" else " ms"
        shown = (_amount(value, ratio.better) for value in (ratio.a, ratio.b))
        cells = ("-" if spread[key] is None else f"{spread[key]:.3f}" for key in ("min", "median", "max"))
        rows.append((f"{ratio.figure}{unit}", *shown, *cells, f"{ratio.better} is better"))
    print_table(("figure", "A", "B", "A/B min", "median", "max", ""), rows)


def _print_one(result: Mapping[str, Any]) -> None:
    slo, window, tokens, client = result["slo"], result["window"], result["tokens"], result["client"]
    cached = f", {tokens['num_cached_tokens']} of them cached" if tokens["num_cached_tokens"] else ""
    prompt = "unknown" if tokens["num_prompt_tokens"] is None else f"{tokens['num_prompt_tokens']}{cached}"
    counted = "" if tokens["counted_by"] is None else f", counted by {tokens['counted_by']}"
    rows = [
        (
            "requests",
            f"{result['num_completed']} of {result['num_requests']} completed, {result['num_refused']} refused, "
            f"{result['num_failed']} failed, {result['num_unfinished']} unfinished",
        ),
        (
            "measured window",
            f"{window['start_s']:.2f} .. {window['end_s']:.2f} s of {result['wall_s']:.2f} s; "
            f"{result['num_outside_window']} requests outside",
        ),
        ("requests/s", f"{result['completed_rps']:.3f} (offered {result['offered_rps']:.3f})"),
        ("output tokens/s", f"{result['output_tok_s']:.1f}"),
        ("goodput", goodput_of(slo)),
        ("prompt tokens", prompt),
        ("output tokens", f"{tokens['num_output_tokens']}{counted}"),
        ("sent late, p99", f"{milliseconds(result['send_late_s']['p99'])} ms"),
        (
            "client",
            f"{client['cpu_share']:.1%} of a core, {_us(client['cpu_us_per_chunk'])} per chunk, event loop "
            f"{milliseconds(client['loop_lag_s']['p99'])} ms late (p99)",
        ),
    ]
    for kind, found in {**result["refusals"], **result["failures"]}.items():
        rows.append((kind, f"{found['count']}, first: {found['first']}"))
    print_table(("figure", "value"), rows)
    print_latencies(result["latency"])


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    latency, slo = result["latency"], result["slo"]
    return (
        str(result["num_requests"]),
        str(result["num_completed"]),
        str(result["num_refused"]),
        str(result["num_failed"]),
        f"{result['completed_rps']:.2f}",
        f"{slo['goodput_rps']:.2f}",
        f"{slo['share_met']:.1%}",
        f"{result['output_tok_s']:.1f}",
        *(milliseconds(latency[key][p]) for key in ("ttft_s", "tpot_s") for p in ("p50", "p99")),
        milliseconds(latency["itl_s"]["p99"]),
        milliseconds(latency["e2e_s"]["p50"]),
        f"{result['client']['cpu_share']:.0%}",
    )


def _meets_targets(result: Mapping[str, Any]) -> bool:
    slo, latency = result["slo"], result["latency"]
    p99 = {name: latency[name]["p99"] for name in ("ttft_s", "tpot_s")}
    is_complete = bool(result["num_completed"] == result["num_requests"])
    return is_complete and all(value is None or value <= slo[name] for name, value in p99.items())


def _amount(value: float | None, better: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if better == "higher" else milliseconds(value)


def _us(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds:.0f} us"
