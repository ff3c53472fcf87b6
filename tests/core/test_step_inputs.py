"""StepInputsBuilder: the tensors of a step say exactly what its plan says."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from tokenloom.batch import BlockTableUpdate, NewRow, RowPlan, StepPlan
from tokenloom.batch_state import BatchState
from tokenloom.interfaces.executor import StepHandle
from tokenloom.sampling_params import SamplingParams
from tokenloom.step_inputs import StepInputs, StepInputsBuilder
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, PreemptAt, build_fcfs, oracle_drafts
from tokenloom.testing.stub_model import full_group

CPU = torch.device("cpu")
BLOCK = 4


def build(
    rows: Sequence[RowPlan], state: BatchState | None = None, windows: Sequence[int | None] = (None,)
) -> StepInputs:
    state = state or BatchState(4, 32, BLOCK, len(windows), 99, CPU)
    state.update(rows)
    return StepInputsBuilder(state, windows, 64, 4, CPU).build(StepPlan(0, tuple(rows)))


def row_of(
    name: str,
    tokens: Sequence[int],
    start: int,
    blocks: Sequence[int],
    *,
    count: int | None = None,
    drafts: Sequence[int] = (),
    parents: Sequence[int] = (),
) -> RowPlan:
    """A new row that computes `count` of its own tokens (all that are left by default) and verifies the drafts."""
    own = len(tokens) - start if count is None else count
    return RowPlan(
        request_id=name,
        num_computed_tokens=start,
        num_scheduled_tokens=own + len(drafts),
        draft_token_ids=tuple(drafts),
        block_updates=(BlockTableUpdate(0, 0, tuple(blocks)),),
        samples=start + own == len(tokens),
        draft_parents=tuple(parents),
        new=NewRow(list(tokens), 1, SamplingParams(temperature=0.0), 0, 0),
    )


def test_prefill_chunk_decode_and_verification_share_a_batch() -> None:
    inputs = build(
        [
            row_of("prefill", [10, 11, 12, 13, 14], 0, [3, 4]),
            row_of("chunk", range(20, 30), 4, [5, 6], count=3),
            row_of("decode", range(40, 46), 5, [7, 8]),
            row_of("verify", range(50, 54), 3, [9, 2], drafts=[60, 61]),
        ]
    )
    assert inputs.token_ids.tolist() == [10, 11, 12, 13, 14, 24, 25, 26, 45, 53, 60, 61]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 4, 5, 6, 5, 3, 4, 5]
    (batch,) = inputs.attention
    assert batch.cu_seqlens_q.tolist() == [0, 5, 8, 9, 12]
    assert batch.seq_lens.tolist() == [5, 7, 6, 6]
    assert batch.slot_mapping.tolist() == [12, 13, 14, 15, 16, 24, 25, 26, 33, 39, 8, 9]
    assert batch.block_table.tolist() == [[3, 4], [5, 6], [7, 8], [9, 2]]
    assert batch.tree_mask is None
    assert (batch.query_lens_cpu, batch.seq_lens_cpu) == ([5, 3, 1, 3], [5, 7, 6, 6])
    assert (batch.cu_seqlens_q.dtype, batch.seq_lens.dtype, batch.block_table.dtype) == (torch.int32,) * 3
    assert (inputs.token_ids.dtype, inputs.positions.dtype, batch.slot_mapping.dtype) == (torch.int64,) * 3
    assert inputs.sampling_ids == ("prefill", "decode", "verify")
    assert inputs.num_logits_rows == (1, 1, 3)
    assert inputs.logits_rows.tolist() == [4, 8, 9, 10, 11]
    assert inputs.logits_offsets == (0, 0, 0, 1, 2)
    assert inputs.first_rows.tolist() == [0, 5, 8, 9]


def test_tables_past_a_sequence_are_the_null_block() -> None:
    inputs = build([row_of("long", range(9), 0, [3, 4, 5]), row_of("short", [1], 0, [6])])
    assert inputs.attention[0].block_table.tolist() == [[3, 4, 5], [6, 0, 0]]


def test_step_of_chunks_alone_samples_nothing() -> None:
    inputs = build([row_of("chunk", range(10), 0, [1], count=3)])
    assert (inputs.sampling_ids, inputs.logits_rows.tolist()) == ((), [])


def test_tree_nodes_share_positions_and_see_their_ancestors_alone() -> None:
    """Root -> 0, 1; 0 -> 2; 2 -> 3; beside a plain row whose mask is causal."""
    inputs = build(
        [
            row_of("plain", range(3), 0, [3]),
            row_of("tree", range(50, 56), 4, [9, 2, 7], drafts=[60, 61, 62, 63], parents=[-1, -1, 0, 2]),
        ]
    )
    assert inputs.positions.tolist() == [0, 1, 2, 4, 5, 6, 6, 7, 8]
    assert inputs.attention[0].slot_mapping.tolist()[3:] == [8, 9, 10, 11, 28, 29]
    assert inputs.logits_offsets == (0, 0, 1, 1, 2, 3)
    mask = inputs.attention[0].tree_mask
    assert mask is not None
    assert mask.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]


def test_chain_beside_a_tree_keeps_its_positions_and_causal_mask() -> None:
    inputs = build(
        [
            row_of("chain", [1, 2], 1, [3], drafts=[7, 8]),
            row_of("tree", [1, 2], 1, [4], drafts=[7, 8], parents=[-1, -1]),
        ]
    )
    assert inputs.positions.tolist() == [1, 2, 3, 1, 2, 2]
    mask = inputs.attention[0].tree_mask
    assert mask is not None
    assert mask[:3].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert inputs.logits_offsets == (0, 1, 2, 0, 1, 1)


def test_buffers_keep_their_addresses() -> None:
    state = BatchState(4, 32, BLOCK, 1, 99, CPU)
    builder = StepInputsBuilder(state, (None,), 64, 4, CPU)
    addresses = set()
    for step, count in enumerate((3, 1, 7)):
        row = row_of(f"r{step}", range(count), 0, [1, 2])
        state.update([row])
        inputs = builder.build(StepPlan(step, (row,)))
        batch = inputs.attention[0]
        tensors = (inputs.token_ids, inputs.positions, batch.slot_mapping, batch.block_table, batch.seq_lens)
        addresses.add(tuple(tensor.data_ptr() for tensor in tensors))
        assert inputs.token_ids.tolist() == list(range(count))
    assert len(addresses) == 1


@pytest.mark.parametrize("seed", range(6))
def test_inputs_of_random_traffic_follow_the_stub(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The plans of an engine that chunks, drafts, preempts, shares blocks and slides windows, step by step."""
    rng = random.Random(seed)
    groups = (full_group(), full_group(1, window=6))
    harness = EngineHarness(
        num_blocks=(40,),
        groups=groups,
        budget=rng.randrange(6, 20),
        max_model_len=48,
        max_num_seqs=5,
        draft_policy=ChosenDrafts(lambda request, _: request.num_tokens % 4),
        drafts=lambda model: oracle_drafts(model, lambda name, length: length % 3),
        scheduler=lambda context: PreemptAt(build_fcfs(context), {"r0": [3, 7, 8], "r2": [5]}),
    )
    state = BatchState(5, 48, BLOCK, 2, harness.model.vocab_size, CPU)
    builder = StepInputsBuilder(state, [group.window for group in groups], 64, 5, CPU)
    executor, launch = harness.executor, harness.executor.launch

    def compared_launch(plan: StepPlan) -> StepHandle:
        state.remove(plan.removed)
        state.update(plan.rows)
        inputs = builder.build(plan)
        handle = launch(plan)
        compare(plan, inputs)
        for row, result in zip(plan.rows, handle.result().rows, strict=True):
            state.append_tokens(state.row(row.request_id), result.token_ids)
        return handle

    def compare(plan: StepPlan, inputs: StepInputs) -> None:
        tokens, slots = list[int](), [list[int]() for _ in groups]
        for index, row in enumerate(plan.rows):
            known, start = executor._rows[row.request_id], row.num_computed_tokens
            end = start + row.num_scheduled_tokens
            tokens += [*known.tokens[start : end - len(row.draft_token_ids)], *row.draft_token_ids]
            for group, batch in enumerate(inputs.attention):
                slots[group] += [executor.memory.slot(known, group, position) for position in range(start, end)]
                num_blocks = -(-end // BLOCK)
                assert batch.block_table[index, :num_blocks].tolist() == known.tables[group][:num_blocks]
        assert inputs.token_ids.tolist() == tokens
        assert [batch.slot_mapping.tolist() for batch in inputs.attention] == slots
        assert [batch.window for batch in inputs.attention] == [None, 6]

    monkeypatch.setattr(executor, "launch", compared_launch)
    prompts = [[1] * rng.choice([0, 8]) + [rng.randrange(9) for _ in range(rng.randrange(1, 9))] for _ in range(10)]
    harness.run(*[harness.request(f"r{i}", prompt, rng.randrange(9, 20)) for i, prompt in enumerate(prompts)])
    harness.check_truth()
    assert harness.engine.stats.num_preemptions > 0
    assert harness.engine.stats.num_accepted_tokens > 0
