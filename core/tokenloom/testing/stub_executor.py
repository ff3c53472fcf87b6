"""An executor without a model: tokens are a pure function of the sequence so far, and all it is told is checked.

Beside tokens it keeps what lies in every KV slot (`stub_memory.py`), so that a request that reads another one's memory
fails at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from tokenloom.batch import BlockTableUpdate, NewRow, RowPlan, RowResult, StepPlan, StepResult, TokenLogprobs
from tokenloom.interfaces.executor import Executor, KVGroupSpec, ModelFacts, StepHandle
from tokenloom.testing.stub_memory import StubMemory, StubRow
from tokenloom.testing.stub_model import StubModel

__all__ = ["Drafts", "Faults", "StubExecutor"]

Drafts = Callable[[str, Sequence[int], int], tuple[list[int], list[int]]]
"""(request_id, verified tokens, max_drafts) -> (draft ids, parents or [] for a chain)."""


@final
class _Landed(StepHandle):
    def __init__(self, result: StepResult, error: Exception | None, on_result: Callable[[], None]) -> None:
        self._result = result
        self._error = error
        self._on_result = on_result

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        self._on_result()
        if self._error is not None:
            raise self._error
        return self._result


@dataclass(slots=True)
class Faults:
    """What goes wrong on purpose.

    Attributes:
        row_errors: request_id -> number of output tokens at which the row fails.
        launch_error_step, result_error_step: step that raises from `launch`, or from its handle's `result`.
        lost_exports: requests whose KV never arrives in host memory.
    """

    row_errors: dict[str, int] = field(default_factory=dict)
    launch_error_step: int | None = None
    result_error_step: int | None = None
    lost_exports: set[str] = field(default_factory=set)


@final
class StubExecutor(Executor):
    """Runs steps on a `StubModel` at depth 1; every broken promise of the core is an AssertionError."""

    def __init__(
        self,
        model: StubModel,
        *,
        num_blocks: Sequence[int],
        block_size: int,
        groups: Sequence[KVGroupSpec],
        max_model_len: int = 256,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        drafts: Drafts | None = None,
    ) -> None:
        self.model = model
        self.faults = Faults()
        self.plans: list[StepPlan] = []
        self.is_closed = False
        self._groups = tuple(groups)
        self._block_size = block_size
        self._num_blocks = tuple(num_blocks)
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._drafts = drafts
        self._rows: dict[str, StubRow] = {}
        self.memory = StubMemory(model, groups, num_blocks, block_size, self._rows)
        self._is_open = False

    def model_facts(self) -> ModelFacts:
        return ModelFacts(
            max_model_len=self._max_model_len,
            vocab_size=self.model.vocab_size,
            eos_token_ids=(),
            kv_groups=self._groups,
            num_blocks=self._num_blocks,
            block_root=b"stub",
        )

    @property
    def request_ids(self) -> list[str]:
        """Requests that the executor still remembers."""
        return list(self._rows)

    def close(self) -> None:
        self.is_closed = True

    def launch(self, plan: StepPlan) -> StepHandle:
        assert not self._is_open, f"step {plan.step_id} launched before the last one landed"
        assert not self.plans or plan.step_id > self.plans[-1].step_id, f"step {plan.step_id} launched out of order"
        assert plan.num_tokens <= self._max_num_batched_tokens, f"{plan.num_tokens} tokens exceed the budget"
        self.plans.append(plan)
        if plan.step_id == self.faults.launch_error_step:
            raise RuntimeError("launch failed on purpose")
        lost = self.memory.export(plan.transfers, self.faults.lost_exports)
        for request_id in plan.removed:
            assert request_id in self._rows, f"{request_id} removed, but never ran or removed twice"
            del self._rows[request_id]
        assert len({row.request_id for row in plan.rows}) == len(plan.rows), "a request has two rows"
        for row in plan.rows:
            self._update(row)
        assert len(self._rows) <= self._max_num_seqs, f"{len(self._rows)} requests hold memory"
        self.memory.restore(plan.transfers)
        self.memory.step(plan)
        rows = tuple(self._finish_row(row) for row in plan.rows)
        error = RuntimeError("result failed on purpose") if plan.step_id == self.faults.result_error_step else None
        self._is_open = True
        times_s = {"forward": 0.001, **({"transfer": 0.0005} if plan.transfers else {})}
        return _Landed(StepResult(plan.step_id, rows, times_s, lost), error, self._close_step)

    def _close_step(self) -> None:
        self._is_open = False

    # ---- what the plan says ----

    def _update(self, plan: RowPlan) -> None:
        name = plan.request_id
        if plan.new is not None:
            assert name not in self._rows, f"{name} joins twice"
            self._rows[name] = self._join(plan.new, plan.num_computed_tokens)
        assert name in self._rows, f"{name} is scheduled but was never introduced"
        row = self._rows[name]
        start, count = plan.num_computed_tokens, plan.num_scheduled_tokens
        assert start == row.num_computed, f"{name}: starts at {start}, {row.num_computed} are computed"
        num_own = count - len(plan.draft_token_ids)
        assert count >= 1, f"{name}: {count} tokens scheduled"
        assert start + num_own <= len(row.tokens), f"{name}: {start} + {num_own} exceed {len(row.tokens)} tokens"
        assert plan.samples == (start + num_own == len(row.tokens)), f"{name}: samples={plan.samples}"
        assert not plan.draft_token_ids or plan.samples, f"{name}: drafts verified before its own tokens"
        num_drafts = len(plan.draft_token_ids)
        assert plan.draft_token_ids == row.drafts[:num_drafts], f"{name}: other drafts than were proposed"
        assert plan.draft_parents == row.parents[:num_drafts], f"{name}: other parents than were proposed"
        assert len(row.tokens) + num_drafts <= self._max_model_len + 1, f"{name}: drafts beyond max_model_len"
        assert len(plan.block_updates) == len(self._groups), f"{name}: {len(plan.block_updates)} block updates"
        for group, update in enumerate(plan.block_updates):
            row.tables[group] = self._new_table(plan, group, row.tables[group], update)

    def _join(self, new: NewRow, num_computed: int) -> StubRow:
        prefixes: list[int] = []
        for token_id in new.token_ids:
            prefixes.append(self.model.extend(prefixes[-1] if prefixes else 0, token_id))
        assert 1 <= new.num_prompt_tokens <= len(new.token_ids), f"{new.num_prompt_tokens} of {len(new.token_ids)}"
        assert num_computed < len(new.token_ids), "a row joins with nothing to compute"
        tables: list[list[int]] = [[] for _ in self._groups]
        # KV that comes back from host memory may lack the entries of tokens that were not known then.
        frontiers = [min(num_computed, len(new.token_ids) - group.lookahead) for group in self._groups]
        return StubRow(new, list(new.token_ids), prefixes, tables, num_computed, frontiers)

    def _new_table(self, plan: RowPlan, group: int, old: list[int], update: BlockTableUpdate) -> list[int]:
        name, window = f"{plan.request_id} in group {group}", self._groups[group].window
        num_null, num_kept = update.num_null_blocks, update.num_kept_blocks
        assert 0 <= num_null <= num_kept, f"{name}: {update}"
        assert plan.new is not None or num_kept <= len(old), f"{name}: keeps {num_kept} of {len(old)} blocks"
        first_visible = 0 if window is None else max(0, plan.num_computed_tokens - window + 1)
        assert num_null * self._block_size <= first_visible, f"{name}: {num_null} null blocks hide visible tokens"
        table = [0] * num_null + old[num_null:num_kept] + list(update.new_block_ids)
        held = [block_id for block_id in table if block_id]
        assert len(set(held)) == len(held), f"{name}: a block twice in {table}"
        assert all(0 < b < self._num_blocks[self._groups[group].pool_id] for b in update.new_block_ids), (
            f"{name}: {update}"
        )
        assert len(table) <= -(-self._max_model_len // self._block_size) + 1, f"{name}: {len(table)} blocks"
        end = plan.num_computed_tokens + plan.num_scheduled_tokens
        assert len(table) * self._block_size >= end, f"{name}: {len(table)} blocks for {end} slots"
        return table

    # ---- what comes out ----

    def _finish_row(self, plan: RowPlan) -> RowResult:
        name, row = plan.request_id, self._rows[plan.request_id]
        num_own = plan.num_scheduled_tokens - len(plan.draft_token_ids)
        row.drafts, row.parents = (), ()
        if not plan.samples:
            row.num_computed += num_own
            self.memory.catch_up(row)
            return RowResult(name, [])
        if self.faults.row_errors.get(name, -1) == len(row.tokens) - row.new.num_prompt_tokens:
            return RowResult(name, [], error="failed on purpose")
        emitted, path = self._verify(plan, row)
        self.memory.move_accepted(plan, row, num_own, path)
        for token_id in emitted:
            row.tokens.append(token_id)
            row.prefixes.append(self.model.extend(row.prefixes[-1], token_id))
        row.num_computed += num_own + len(path)
        self.memory.catch_up(row)
        if self._drafts is not None and plan.max_drafts > 0:
            ids, parents = self._drafts(name, row.tokens, plan.max_drafts)
            assert len(ids) <= plan.max_drafts, f"{len(ids)} drafts of at most {plan.max_drafts}"
            row.drafts, row.parents = tuple(ids), tuple(parents)
        logprobs = tuple(TokenLogprobs(t, -1.0) for t in emitted) if row.new.params.logprobs is not None else ()
        return RowResult(name, emitted, len(path), row.drafts, row.parents, logprobs)

    def _verify(self, plan: RowPlan, row: StubRow) -> tuple[list[int], list[int]]:
        """Tokens emitted, and the accepted nodes on the way."""
        parents = plan.draft_parents or tuple(range(-1, len(plan.draft_token_ids) - 1))
        prefix, node, emitted, path = row.prefixes[-1], -1, list[int](), list[int]()
        while True:
            num_outputs = len(row.tokens) + len(emitted) - row.new.num_prompt_tokens
            is_early = num_outputs < row.new.params.min_tokens
            emitted.append(self.model.next_token(prefix, row.new.forbidden_stop_ids if is_early else ()))
            prefix = self.model.extend(prefix, emitted[-1])
            children = [
                i for i, parent in enumerate(parents) if parent == node and plan.draft_token_ids[i] == emitted[-1]
            ]
            if not children:
                return emitted, path
            node = children[0]
            path.append(node)
