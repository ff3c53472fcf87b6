"""Mistakes of users and of drafters, on the tiny model: refused by name, and nobody else is hurt."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from tests.e2e.preempting_scheduler import PreemptingConfig
from tokenloom import LLM, SamplingParams
from tokenloom.batch import SchedulePlan
from tokenloom.cli import main
from tokenloom.errors import ConfigError, OverloadedError, PluginContractError, RequestError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.spec_decode import DraftBatch, Proposal
from tokenloom_spec_decode.ngram import NgramDrafter

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


@pytest.mark.parametrize("prompt", [None, 5, b"abc", {"a": 1}, np.array([1, 2]), [None], [[1], "a", 3.5]])
def test_what_is_no_prompt_is_refused(build_llm: Callable[..., LLM], prompt: Any) -> None:
    llm = build_llm()
    with pytest.raises(RequestError, match="prompt"):
        llm.generate(prompt, GREEDY)
    assert not llm.engine.has_work()


@pytest.mark.parametrize("params", [{"temperature": 0}, [None], [GREEDY, GREEDY], "greedy", 0])
def test_what_are_no_params_is_refused(build_llm: Callable[..., LLM], params: Any) -> None:
    with pytest.raises(RequestError, match="params"):
        build_llm().generate("a", params)


def test_empty_list_of_prompts_gives_an_empty_list(build_llm: Callable[..., LLM]) -> None:
    assert build_llm().generate([], GREEDY) == []


def test_a_call_that_finds_the_queue_full_starts_nothing(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm("scheduler.max_num_seqs=1", "scheduler.max_queued_requests=2")
    alone = [output.outputs[0].token_ids for output in llm.generate(["a", "b", "c"], GREEDY)]
    stream = llm.stream("one", GREEDY)
    next(stream)
    waiting = llm.stream("two", GREEDY)
    with pytest.raises(OverloadedError, match="1 requests wait, 3 more"):
        llm.generate(["a", "b", "c"], GREEDY)
    assert llm.engine.num_waiting == 1
    with pytest.raises(OverloadedError):
        llm.generate("a", SamplingParams(n=3, seed=1, max_tokens=4))
    with pytest.raises(RequestError, match="4 requests at once"):
        llm.generate(["a", "b", "c", "d"], GREEDY)
    assert llm.engine.num_waiting == 1
    stream.close()
    waiting.close()
    assert [output.outputs[0].token_ids for output in llm.generate(["a", "b", "c"], GREEDY)] == alone


@final
class Collecting(Scheduler):
    """fcfs that lets the garbage collector run in the middle of each step."""

    def __init__(self, context: SchedulerContext) -> None:
        self._inner = PreemptingConfig(stride=1000).build(context)

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        gc.collect()
        return self._inner.schedule(view, ledger)

    def observe(self, event: Any) -> None:
        self._inner.observe(event)


@final
class CollectingConfig(PreemptingConfig):
    """Builds it."""

    def build(self, context: SchedulerContext) -> Scheduler:
        return Collecting(context)


def test_stream_collected_in_mid_step_is_dropped_afterwards(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm(scheduler=PluginChoice("scheduler", "preempting", CollectingConfig(max_num_seqs=8)))
    expected = llm.generate("stay", GREEDY)[0].outputs[0].token_ids
    stream = llm.stream("abandoned", GREEDY)
    next(stream)
    cycle: list[Any] = [stream]
    cycle.append(cycle)
    del stream, cycle
    assert llm.generate("stay", GREEDY)[0].outputs[0].token_ids == expected
    llm.generate("one more", GREEDY)
    assert not llm.engine.has_work()
    assert llm.engine.kv_usage()["active"] == 0


def misbehave(monkeypatch: pytest.MonkeyPatch, propose: Callable[[DraftBatch], Any]) -> None:
    monkeypatch.setattr(NgramDrafter, "propose", lambda self, batch: propose(batch))


def test_drafter_cannot_write_to_the_tokens_that_it_reads(
    build_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scribble(batch: DraftBatch) -> list[Proposal]:
        for tokens in batch.token_ids:
            tokens[:] = 0
        return [Proposal() for _ in batch.token_ids]

    misbehave(monkeypatch, scribble)
    with pytest.raises(PluginContractError, match=r"spec_decode=ngram broke the rule 'propose\(\).*read-only"):
        build_llm("spec_decode=ngram").generate("abc", GREEDY)


@pytest.mark.parametrize(
    ("proposal", "rule"),
    [
        (Proposal((320,)), "token ids of the target"),
        (Proposal((-1,)), "token ids of the target"),
        (Proposal((1,) * 9), "at most max_drafts"),
        (Proposal((1, 2), (0, 0)), "parents come before"),
        (Proposal((1, 1), (-1, -1)), "siblings have distinct tokens"),
    ],
)
def test_illegal_proposals_are_refused_by_name(
    build_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, proposal: Proposal, rule: str
) -> None:
    misbehave(monkeypatch, lambda batch: [proposal for _ in batch.request_ids])
    with pytest.raises(PluginContractError, match=rf"spec_decode=ngram broke the rule.*{rule}"):
        build_llm("spec_decode=ngram").generate("abc", GREEDY)


def test_tree_drafts_are_verified_and_compacted(build_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that hides the right tokens in a tree, among wrong ones, changes nothing but the number of steps."""
    prompt = [5, 6, 7] * 4
    plain = build_llm("cache=none").generate([prompt], GREEDY.with_changes(max_tokens=40))[0].outputs[0].token_ids
    truth = prompt + plain

    def tree(batch: DraftBatch) -> list[Proposal]:
        proposals = []
        for tokens, room in zip(batch.token_ids, batch.max_drafts, strict=True):
            first, second = [*truth[len(tokens) : len(tokens) + 2], 0, 0][:2]
            # Nodes 0 and 1 are children of the root, 2 and 3 of node 1: the accepted path is 1, 3.
            wrong = [(first + 1) % 320, (second + 1) % 320]
            ids, parents = (wrong[0], first, wrong[1], second), (-1, -1, 1, 1)
            proposals.append(Proposal(ids[:room], parents[:room]))
        return proposals

    misbehave(monkeypatch, tree)
    for cache in ("none", "hash"):
        llm = build_llm("spec_decode=ngram", f"cache={cache}", "cache.block_size=4")
        found = llm.generate([prompt], GREEDY.with_changes(max_tokens=40))[0].outputs[0]
        assert found.token_ids == plain
        assert llm.engine.stats.num_steps < 20
        assert llm.engine.stats.num_accepted_tokens > 20


def test_more_threads_than_cpus_are_refused(build_llm: Callable[..., LLM]) -> None:
    with pytest.raises(ConfigError, match=r"engine.num_threads=100000 exceeds"):
        build_llm("engine.num_threads=100000")


def test_words_of_the_command_line_mean_what_they_say(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"model={tiny_folder}", "model.dtype=float32", "cache.num_blocks=100", "engine.num_threads=1"]
    with LLM(str(tiny_folder), dtype="float32", num_blocks=100, num_threads=1, show_progress=False) as llm:
        whole = llm.generate("hello", GREEDY.with_changes(max_tokens=90))[0].outputs[0].text
    letter = next(c for c in whole[1:] if c.isascii() and c.isalpha())
    assert main(["generate", "hello", *words, "max_tokens=90", "ignore_eos=true", f"stop={letter}"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == whole[: whole.index(letter)].rstrip("\n")
    workload = tmp_path / "work.json"
    workload.write_text('[{"prompt": [1], "max_tokens": 1}]')
    assert main(["bench", "throughput", *words, f"workload={workload}", f"output={workload}"]) == 2
    assert "workload and output name the same file" in capsys.readouterr().err
    assert main(["bench", "throughput", *words, f"workload={workload}", f"output={tmp_path}"]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert main(["config", "model="]) == 2
    assert "no model is named" in capsys.readouterr().err
