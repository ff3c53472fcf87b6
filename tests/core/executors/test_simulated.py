"""`executor=simulated`, composed and built as a user does it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tokenloom.clock import MonotonicClock, VirtualClock
from tokenloom.compose import compose_config
from tokenloom.engine import Engine
from tokenloom.engine_builder import build_engine
from tokenloom.engine_output import EngineOutput
from tokenloom.errors import CapabilityError, ConfigError, OutOfMemoryError
from tokenloom.executors.device_presets import load_preset
from tokenloom.request import FinishReason, Request
from tokenloom.sampling_params import SamplingParams


def build(*overrides: str) -> tuple[Engine, VirtualClock]:
    clock = VirtualClock()
    config = compose_config(["executor=simulated", "debug.checks=full", *overrides])
    return build_engine(config.engine, clock=clock), clock


def request(number: int, num_prompt: int, num_output: int, **params: object) -> Request:
    return Request(
        f"r{number}",
        [(number * 31 + index) % 1000 for index in range(num_prompt)],
        SamplingParams(max_tokens=num_output, ignore_eos=True, **params),  # type: ignore[arg-type]
        seed=number,
        max_total_tokens=num_prompt + num_output,
    )


def run(engine: Engine, *requests: Request) -> list[EngineOutput]:
    for each in requests:
        engine.add_request(each)
    outputs: list[EngineOutput] = []
    for _ in range(5_000):
        if not engine.has_work():
            return outputs
        outputs += engine.step()
    raise AssertionError("work left")


def test_every_token_lands_when_the_costs_say_so() -> None:
    engine, clock = build("executor.device=h100_8b")
    outputs = run(engine, request(0, 100, 3))
    costs, kv_bytes = load_preset("h100_8b").costs, 131_072
    step = costs.step_s + costs.prefill_token_s * 100 + costs.kv_byte_s * 100 * kv_bytes
    first = step + costs.attention_pair_s * (100 * 101 // 2)
    second = first + costs.step_s + costs.decode_row_s + costs.kv_byte_s * 101 * kv_bytes
    third = second + costs.step_s + costs.decode_row_s + costs.kv_byte_s * 102 * kv_bytes
    assert [output.landed_s for output in outputs] == pytest.approx([first, second, third], rel=1e-12)
    assert clock.now() == pytest.approx(third, rel=1e-12)
    assert outputs[-1].times.first_token_s == pytest.approx(first, rel=1e-12)
    assert engine.stats.times_s["forward"] == pytest.approx(third, rel=1e-12)


def test_equal_runs_give_equal_outputs_whatever_runs_beside_them() -> None:
    alone = run(build()[0], request(3, 50, 20))
    engine, _ = build("scheduler.max_num_batched_tokens=32", "cache.num_blocks=24")
    crowd = run(engine, *(request(number, 50, 20) for number in range(8)))
    assert engine.stats.num_preemptions > 0
    tokens = [token for output in crowd if output.request_id == "r3" for token in output.token_ids]
    assert tokens == [token for output in alone for token in output.token_ids]
    assert len(set(tokens)) > 10


def test_drafts_are_accepted_at_the_rate_asked_for() -> None:
    def speculate(*overrides: str) -> Engine:
        engine, _ = build("spec_decode=ngram", "spec_decode.policy=fixed", "cache.num_blocks=400", *overrides)
        run(engine, *(request(number, 10, 200) for number in range(20)))
        return engine

    always, never = speculate("executor.acceptance=[1.0]"), speculate("executor.acceptance=[0.0]")
    assert always.stats.num_accepted_tokens == always.stats.num_draft_tokens > 0
    assert never.stats.num_accepted_tokens == 0 < never.stats.num_draft_tokens
    assert always.stats.num_steps < never.stats.num_steps
    # Of chains of one draft, just so many are accepted.
    single = speculate("executor.acceptance=[0.7]", "spec_decode.policy.num_draft_tokens=1")
    assert single.stats.num_accepted_tokens / single.stats.num_draft_tokens == pytest.approx(0.7, abs=0.04)


def test_a_drafter_with_rates_of_its_own_decides() -> None:
    def accepted(*overrides: str) -> float:
        engine, _ = build("spec_decode.policy.num_draft_tokens=1", "cache.num_blocks=400", *overrides)
        run(engine, *(request(number, 10, 200) for number in range(20)))
        return engine.stats.num_accepted_tokens / engine.stats.num_draft_tokens

    assert accepted("spec_decode=synthetic", "spec_decode.acceptance=[0.3]") == pytest.approx(0.3, abs=0.04)
    assert accepted("spec_decode=ngram") == pytest.approx(0.7, abs=0.04)
    with pytest.raises(ConfigError, match=r"executor\.acceptance=\[0\.5\]: spec_decode=synthetic has rates of its own"):
        build("spec_decode=synthetic", "executor.acceptance=[0.5]")


def test_proposing_takes_its_time() -> None:
    def last_s(*overrides: str) -> float:
        engine, clock = build("spec_decode=ngram", "spec_decode.policy.num_draft_tokens=2", *overrides)
        run(engine, request(0, 10, 2))
        return clock.now()

    # The first of two steps proposes one draft, all that fits beside the last token; the second one proposes none.
    assert last_s("executor.draft_step_s=1.0") - last_s() == pytest.approx(1.0, abs=1e-9)


def test_the_draft_policy_is_told_what_proposing_took() -> None:
    engine, _ = build("spec_decode=ngram", "spec_decode.policy.num_draft_tokens=2", "executor.draft_step_s=0.25")
    run(engine, request(0, 10, 12))
    assert engine.stats.times_s["propose"] > 0.0
    assert engine.stats.times_s["propose"] % 0.25 == pytest.approx(0.0, abs=1e-9)


def test_layers_of_a_drafter_take_kv_memory_of_their_own() -> None:
    """Drafts find room behind the frontier in a second pool; where it is short, less is drafted, nobody preempted."""
    ample, _ = build("spec_decode=ngram", "spec_decode.policy=fixed", "executor.drafter_layers=2")
    target, own = ample.facts.kv_groups
    assert (own.is_drafter, own.pool_id, len(own.layers)) == (True, 1, 2)
    assert own.page_bytes * 16 == target.page_bytes
    short, _ = build(
        "spec_decode=ngram", "spec_decode.policy=fixed", "executor.drafter_layers=2", "cache=none", "cache.num_blocks=4"
    )
    for engine in (ample, short):
        run(engine, request(0, 10, 38))
    assert short.stats.num_preemptions == 0
    assert ample.stats.num_draft_tokens >= short.stats.num_draft_tokens > 0
    with pytest.raises(ConfigError, match=r"executor\.drafter_layers=2: spec_decode=none has no drafter"):
        build("executor.drafter_layers=2")


@pytest.mark.parametrize("loss", [0.0, 0.5, 1.0])
def test_swapped_requests_come_back_and_lost_ones_are_computed_again(loss: float) -> None:
    engine, _ = build("cache.num_blocks=24", "cache=none", "scheduler.preempt_mode=swap", f"executor.swap_loss={loss}")
    outputs = run(engine, *(request(number, 50, 40) for number in range(8)))
    assert [output.finish_reason for output in outputs if output.finish_reason] == [FinishReason.LENGTH] * 8
    stats = engine.stats
    assert stats.num_preemptions > 0
    assert stats.times_s["transfer"] > 0.0
    assert (stats.num_lost_swaps > 0) == (loss > 0.0)
    assert (stats.num_recomputed_tokens > 0) == (loss > 0.0)
    alone = run(build()[0], request(3, 50, 40))
    tokens = [token for output in outputs if output.request_id == "r3" for token in output.token_ids]
    assert tokens == [token for output in alone for token in output.token_ids]


def test_a_swap_takes_its_time() -> None:
    """Half the bandwidth, twice the time in transfers."""
    transfer_s = []
    for device in ("h100_8b", "a100_8b"):
        engine, _ = build(
            "cache.num_blocks=24", "cache=none", "scheduler.preempt_mode=swap", f"executor.device={device}"
        )
        run(engine, *(request(number, 50, 40) for number in range(8)))
        transfer_s.append(engine.stats.times_s["transfer"])
    assert transfer_s[1] == pytest.approx(2 * transfer_s[0])


def test_facts_are_those_of_the_preset() -> None:
    facts = build("cache.block_size=32", "model.max_model_len=4096")[0].facts
    assert facts.kv_groups[0].page_bytes == 131_072 * 32
    assert (facts.max_model_len, facts.vocab_size, facts.dtype) == (4096, 128_256, "bfloat16")
    free_bytes = 80 * 10**9 - load_preset("h100_8b").model.weight_bytes
    assert facts.num_blocks == (int(free_bytes * 0.3) // (131_072 * 32),)
    assert build("cache.num_blocks=77")[0].facts.num_blocks == (77,)


def test_memory_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(OutOfMemoryError, match=r"lower cache\.num_blocks"):
        build("executor.device=l4_8b", "cache.num_blocks=1000000")


def test_a_preset_file_is_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    values = {**load_preset("cpu_2core_135m").model_dump(), "name": "mine"}
    path.write_text(yaml.safe_dump(values))
    assert build(f"executor.device={path}")[0].facts.device == "simulated mine"


def test_a_real_clock_is_refused() -> None:
    config = compose_config(["executor=simulated"])
    with pytest.raises(ConfigError, match="tokenloom simulate"):
        build_engine(config.engine, clock=MonotonicClock())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dtype=float16", "model.dtype=float16"),
        ("model.device=cpu", "model.device=cpu"),
        ("model=hf:some/model", "model.source=hf:some/model"),
        ("quant=int8", "quant=int8"),
        ("model.max_model_len=200000", "131072"),
    ],
)
def test_settings_that_the_preset_has_fixed_are_refused(override: str, message: str) -> None:
    with pytest.raises(CapabilityError, match=message):
        build(override)


def test_a_request_that_needs_logits_fails_alone() -> None:
    engine, _ = build()
    outputs = run(engine, request(0, 10, 3, logprobs=2), request(1, 10, 3))
    last = {output.request_id: output for output in outputs}
    assert last["r0"].finish_reason is FinishReason.ERROR
    assert "logprobs" in (last["r0"].error or "")
    assert last["r1"].finish_reason is FinishReason.LENGTH
