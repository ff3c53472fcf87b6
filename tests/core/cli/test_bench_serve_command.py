"""`tokenloom bench serve` and `tokenloom bench compare` from the command line, against scripted servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.load_generator.fake_server import FakeServer, Reply, completion_events
from tests.core.load_generator.lost_server import lose_server_after

RunCli = Callable[..., tuple[int, str, str]]
SMALL = ("limit=12", "concurrency=3", "prompt_tokens=4", "output_tokens=5")


@pytest.fixture
def url() -> Iterator[str]:
    with FakeServer().running() as base_url:
        yield base_url


def test_a_closed_loop_prints_and_writes_its_figures(run_cli: RunCli, url: str, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    code, out, _ = run_cli("bench", "serve", f"base_url={url}", *SMALL, "api_key=secret", f"output={target}")
    assert code == 0
    for words in ("prompts as token ids", "traffic=closed, concurrency=3, cut_off=true", "counted by usage", "TTFT ms"):
        assert words in out
    assert "secret" not in target.read_text()
    result = json.loads(target.read_text())
    assert (result["num_completed"], len(result["requests"])) == (12, 12)
    assert result["tokens"]["num_output_tokens"] == 60
    assert result["server"] == {
        "base_url": f"{url}/v1",
        "endpoint": "completions",
        "model": "tiny",
        "models": ["tiny"],
        "version": "9.9",
        "prompt_form": "token_ids",
        "extra_body": {},
    }
    assert result["provenance"]["packages"]["tokenloom"]
    assert result["settings"]["prompt_tokens"] == 4
    assert result["window"]["end_s"] == result["load_end_s"] < result["wall_s"]
    for request in result["requests"]:
        assert len(request["chunks_us"]) <= 5


def test_a_sweep_of_rates_has_a_row_each_a_capacity_and_a_plot(run_cli: RunCli, url: str, tmp_path: Path) -> None:
    target, plot = tmp_path / "rates.json", tmp_path / "rates.png"
    words = ("rate=400,800", "limit=20", "prompt_tokens=4", "output_tokens=2", "workload_seed=3")
    code, out, _ = run_cli("bench", "serve", f"base_url={url}", *words, f"output={target}", f"plot={plot}")
    assert code == 0
    assert "requests/s with all targets met at p99: 800" in out
    results = json.loads(target.read_text())
    assert list(results) == ["rate=400", "rate=800"]
    for result in results.values():
        assert (result["num_requests"], result["traffic"]["kind"]) == (20, "poisson")
        due_s = [request["scheduled_s"] for request in result["requests"]]
        assert result["load_end_s"] == pytest.approx(due_s[-1], abs=1e-6)
        assert all(request["sent_s"] >= request["scheduled_s"] - 2e-6 for request in result["requests"])
    slow, fast = ([r["scheduled_s"] for r in result["requests"]] for result in results.values())
    assert slow == pytest.approx([2 * due_s for due_s in fast], abs=2e-6)
    assert plot.stat().st_size > 5_000


def test_a_chat_gets_text_and_extra_fields(run_cli: RunCli, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    server = FakeServer()
    with server.running() as url:
        words = ("endpoint=chat", f"workload={prompts}", "traffic=all", "output_tokens=3", 'extra_body={"top_k": 4}')
        code, out, _ = run_cli("bench", "serve", f"base_url={url}", *words)
    assert code == 0
    assert "prompts as text" in out
    assert {body["messages"][0]["content"] for body in server.streamed} == {"one", "two"}
    assert {(body["max_tokens"], body["top_k"]) for body in server.streamed} == {(3, 4)}


def test_the_arrivals_of_a_trace_are_kept(run_cli: RunCli, url: str, tmp_path: Path) -> None:
    trace, target = tmp_path / "azure.csv", tmp_path / "result.json"
    rows = [f"2023-11-16 18:15:0{second}.0,{4 + second},2" for second in range(5)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    code, _, _ = run_cli("bench", "serve", f"base_url={url}", f"workload={trace}", "rate=100", f"output={target}")
    assert code == 0
    result = json.loads(target.read_text())
    assert result["traffic"]["kind"] == "trace"
    due_s = [request["scheduled_s"] for request in result["requests"]]
    assert due_s == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04], abs=1e-6)


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (Reply([b"busy"], 429, {}), 1, "no request completed"),
        (Reply([b"broken"], 500, {}), 1, "12 requests failed (http_500: 12)"),
        (Reply(completion_events(["x"] * 3)), 0, "generated 36 of the 60 output tokens"),
        (Reply(completion_events(["x"] * 5, has_usage=False)), 0, "chunks were counted instead"),
    ],
)
def test_what_makes_figures_doubtful_is_said(run_cli: RunCli, reply: Reply, code: int, words: str) -> None:
    with FakeServer(lambda number, body: reply).running() as url:
        found, out, err = run_cli("bench", "serve", f"base_url={url}", *SMALL)
    assert found == code
    assert words in err
    assert ("http_" in out) == (reply.status != 200)


def test_ctrl_c_ends_with_the_results_so_far(run_cli: RunCli, tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        events = completion_events(["x"] * 5)
        if number < 5:
            return Reply(events)
        if number == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return Reply(events[:2], hangs=True)

    target = tmp_path / "result.json"
    with FakeServer(script).running() as url:
        code, _, err = run_cli("bench", "serve", f"base_url={url}", *SMALL, f"output={target}")
    assert code == 130
    assert "interrupted: these are the results so far" in err
    result = json.loads(target.read_text())
    assert (result["was_interrupted"], result["num_completed"], result["num_unfinished"]) == (True, 5, 3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("limit", ["99", "99,98"])
def test_figures_of_a_run_that_lost_its_server_are_kept_and_called_partial(
    run_cli: RunCli, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    lose_server_after(5, monkeypatch)
    target = tmp_path / "result.json"
    words = (f"limit={limit}", "concurrency=1", "prompt_tokens=4", "output_tokens=2", f"output={target}")
    code, out, err = run_cli("bench", "serve", f"base_url={url}", *words)
    assert code == 1
    assert "error: the server cannot be reached any more" in err
    assert "these figures are partial" in err
    assert "tokens/s" in out
    result = json.loads(target.read_text())
    assert result["num_completed"] == 5
    assert result["lost"].startswith("the server cannot be reached any more")


def test_a_server_that_is_lost_within_the_warmup_leaves_nothing_but_the_error(
    run_cli: RunCli, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_server_after(5, monkeypatch)
    words = ("limit=99", "concurrency=1", "prompt_tokens=4", "output_tokens=2", "warmup_s=60")
    code, _, err = run_cli("bench", "serve", f"base_url={url}", *words)
    assert code == 1
    assert "error: the server cannot be reached any more" in err


def test_a_run_that_cannot_be_measured_does_not_cost_the_one_before(run_cli: RunCli, url: str, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    words = ("limit=12,4", "concurrency=2", "prompt_tokens=4", "output_tokens=2", "warmup_s=0,30", f"output={target}")
    code, out, err = run_cli("bench", "serve", f"base_url={url}", *words)
    assert code == 2
    assert "nothing is left to measure" in err
    assert "limit=12" not in err
    assert "requests" in out
    assert json.loads(target.read_text())["num_completed"] == 12


def test_failures_are_told_also_where_nothing_is_left_to_measure(run_cli: RunCli) -> None:
    with FakeServer(lambda number, body: Reply([b"broken"], 500, {})).running() as url:
        code, out, _ = run_cli("bench", "serve", f"base_url={url}", *SMALL, "warmup_s=30")
    assert code == 1
    assert "http_500" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "'base_url' must be given"),
        (("base_url=here",), "expected a URL"),
        (("base_url=http://h", "scheduler=fcfs"), "has no key scheduler"),
        (("base_url=http://h", "outputtokens=3"), "Did you mean 'output_tokens'"),
        (("base_url=http://h", "rate=2", "concurrency=4"), "concurrency has no meaning with traffic=poisson"),
        (("base_url=http://h", "concurrency=4", "burstiness=2"), "burstiness has no meaning"),
        (("base_url=http://h", "traffic=poisson"), "needs a rate"),
        (("base_url=http://h", "traffic=trace"), "has no arrivals"),
        (("base_url=http://h", "traffic=all", "cut_off=true"), "cut_off=true"),
        (("base_url=http://h", "traffic=all", "warmup_s=3"), "warmup_s has no meaning"),
        (("base_url=http://h", "limit=4", "concurrency=4"), "never steady"),
        (("base_url=http://h", "num_tenants=2"), "api_key"),
        (("base_url=http://h", "workload=x.txt", "prompt_tokens=4"), "only of workload=generated"),
        (("base_url=http://h", "prompt_form=token_ids", "endpoint=chat"), "takes only text"),
        (("base_url=http://h", "extra_body=[1]"), "expected a JSON object"),
        (("base_url=http://h", "api_key=env:TOKENLOOM_NO_SUCH_KEY"), "no environment variable"),
        (("base_url=http://h", "rate=1", "plot=x.txt"), "must end in"),
        (("base_url=http://h", "rate=1,2", "limit=5,6", "plot=x.png"), "sweep one key only"),
        (("base_url=http://h", "output=nowhere/x.json"), "folder does not exist"),
        (("base_url=http://h", "vocab_size=2"), "vocab_size: must be greater than or equal to 32"),
        (("base_url=http://h", "limit=3,3"), "limit=3 is given twice"),
        (("base_url=http://h", "rate=nan"), "rate"),
        (("base_url=http://h", "rate"), "is not an override"),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(run_cli: RunCli, words: tuple[str, ...], message: str) -> None:
    code, _, err = run_cli("bench", "serve", *words)
    assert code == 2
    assert message in err


def test_a_server_that_is_not_there_is_one_clean_message(run_cli: RunCli) -> None:
    code, out, err = run_cli("bench", "serve", "base_url=http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.startswith("error: no answer from http://127.0.0.1:1/v1: ")


COMPARED = ("limit=8", "concurrency=2", "prompt_tokens=4", "output_tokens=3", "agreement_tokens=4", "repetitions=2")


def test_servers_that_agree_are_compared_in_turn(run_cli: RunCli, tmp_path: Path) -> None:
    target, plot = tmp_path / "pairs.json", tmp_path / "pairs.png"
    a, b = FakeServer(), FakeServer(logprob=-0.625)
    with a.running() as url_a, b.running() as url_b:
        words = (f"a={url_a}", f"b={url_b}", *COMPARED, "a_api_key=hidden", f"output={target}", f"plot={plot}")
        code, out, err = run_cli("bench", "compare", *words)
    assert code == 0
    assert "100.0% on average" in out
    assert "A/B min" in out
    assert "DO NOT AGREE: logprobs of equal tokens differ by 0.125" in err
    assert "hidden" not in target.read_text()
    found = json.loads(target.read_text())
    assert list(found) == ["comparison", "A 1", "B 1", "A 2", "B 2"]
    assert found["comparison"]["agreement"]["mean_share"] == 1.0
    ratio = found["comparison"]["ratios"]["output tokens/s"]
    assert ratio["pairs"] == pytest.approx(
        [found[f"A {n}"]["output_tok_s"] / found[f"B {n}"]["output_tok_s"] for n in (1, 2)]
    )
    # A pair gets the same prompts, another pair gets others.
    pairs = [[sorted(body["prompt"] for body in server.streamed[start:][:8]) for server in (a, b)] for start in (0, 8)]
    assert [of_a == of_b for of_a, of_b in pairs] == [True, True]
    assert pairs[0] != pairs[1]
    assert plot.stat().st_size > 5_000


def test_each_server_is_first_in_every_other_pair(run_cli: RunCli) -> None:
    asked = list[str]()

    def server(name: str) -> FakeServer:
        def answer(number: int, body: dict[str, Any]) -> Reply:
            asked.append(name)
            return Reply(completion_events(["x"]))

        return FakeServer(answer)

    with server("A").running() as a, server("B").running() as b:
        words = (f"a={a}", f"b={b}", *COMPARED, "agreement_prompts=0", "repetitions=3")
        code, _, err = run_cli("bench", "compare", *words)
    assert code == 0, err
    runs = ["".join(sorted(set(asked[-48:][start : start + 8]))) for start in range(0, 48, 8)]
    assert runs == ["A", "B", "B", "A", "A", "B"]


def test_servers_that_do_not_agree_are_told_loudly(run_cli: RunCli) -> None:
    with FakeServer().running() as a, FakeServer(text="abXdef").running() as b:
        code, out, err = run_cli("bench", "compare", f"a={a}", f"b={b}", *COMPARED, "repetitions=1")
    assert code == 0
    assert "tokens 2: A 'cd', B 'Xd'" in out
    assert "WARNING: A AND B DO NOT AGREE: answers agree over 50%" in err


def test_unequal_work_is_told_loudly(run_cli: RunCli) -> None:
    short = FakeServer(lambda number, body: Reply(completion_events(["x"])))
    with FakeServer().running() as a, short.running() as b:
        code, out, err = run_cli("bench", "compare", f"a={a}", f"b={b}", *COMPARED, "agreement_prompts=0")
    assert code == 0
    assert "agreement" not in out
    assert "A GENERATED 3.0 TOKENS PER REQUEST, B 1.0" in err


def test_a_comparison_without_servers_is_refused(run_cli: RunCli) -> None:
    assert run_cli("bench", "compare", "a=http://h")[0] == 2
    assert run_cli("bench", "compare", "a=http://h", "b=http://h", "rate=1,2")[0] == 2


def test_keys_are_explained(run_cli: RunCli) -> None:
    assert "tokenloom bench serve, tokenloom bench compare" in run_cli("explain", "extra_body")[1]
    assert "tokenloom bench throughput" in run_cli("explain", "dump_tokens")[1]


def test_load_on_a_server_needs_no_torch() -> None:
    program = (
        "import sys, tokenloom.cli.bench_serve, tokenloom.cli.bench_compare; "
        "from tokenloom.bench.provenance import client_provenance as c; c(); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
