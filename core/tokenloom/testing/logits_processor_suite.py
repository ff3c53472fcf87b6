"""The conformance suite of logits processors: rows by themselves, no state, nothing lifted, drafts like output."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tokenloom.testing.draft_stubs import OracleDrafter
from tokenloom.testing.footprint import bytes_leaked
from tokenloom.testing.processor_calls import GUARD, GuardedCall, ProcessorCase, same_numbers
from tokenloom.testing.processor_rig import VOCAB_SIZE, Ends, ProcessorRig
from tokenloom.testing.surroundings import generators_untouched
from tokenloom.testing.tiny_engine import TinySettings

__all__ = ["LogitsProcessorSuite"]

_CHAIN = ((7, 1, 2, 3), ())
_TREE = ((7, 2, 2, 1, 2, 7), (-1, -1, 0, 0, 1, 3))
"""Drafts and parents; two nodes hold the same token at the same depth behind different siblings."""


class LogitsProcessorSuite(ProcessorRig):
    """Tests of the contract in `tokenloom.interfaces.logits_processor`::

        class TestMine(LogitsProcessorSuite):
            plugin = "my_processor"
            settings = {"amount": 2.0}

    Every test runs with the settings given and with others that the Config takes: other values of its bool, int,
    float, None and Literal fields, one at a time, and `other_settings`. Required fields get such values too. A request
    may bring all that the Config takes, so a value that cannot work is one for the Config to refuse. The vocabulary
    has 64 tokens. "The same" logits are equal ones, not near ones.
    """

    # ---- one call ----

    def test_process_changes_logits_in_place(self) -> None:
        """No logit changed, whatever the tokens and the settings.

        `process` writes into the tensor that it is given; a result that is returned or bound to the name is lost. A
        plugin that does something only where certain tokens stand names such in `sequences`.
        """
        cases = self.cases()
        before = torch.stack([case.logits for case in cases])
        assert not same_numbers(self.call(cases), before), (
            f"no logit of {len(cases)} rows changed, {cases[0]} among them"
        )

    def test_process_writes_no_other_memory(self) -> None:
        """Logits in front of the rows or behind them changed. The tensor may be a part of a larger one."""
        call = GuardedCall(self.cases(), self.target())
        call.run(self.processor())
        for name, guards in (("in front of", call.buffer[0]), ("behind", call.buffer[-1])):
            changed = (guards != GUARD).nonzero().flatten().tolist()
            assert not changed, f"logits of tokens {changed} in the memory {name} the rows were changed"

    def test_logits_of_earlier_calls_are_left_alone(self) -> None:
        """A later call changed logits that an earlier one was given: by then, tokens are sampled from them."""
        processor, cases = self.processor(), self.cases()
        first = GuardedCall(cases, self.target())
        first.run(processor)
        before = first.buffer.cpu().clone()
        GuardedCall(cases[::-1], self.target()).run(processor)
        after = first.buffer.cpu()
        changed = [row for row in range(len(before)) if not same_numbers(before[row], after[row])]
        assert not changed, f"a second call changed the rows {changed} of the first call's logits"

    def test_process_leaves_generators_alone(self) -> None:
        """`process` drew from a generator of the whole process, or seeded it: of torch, numpy or `random`.

        Whoever else draws there gets other numbers then.
        """
        processor, cases = self.processor(), self.cases()
        with generators_untouched("process()"):
            self.call(cases, processor)

    def test_process_leaves_tokens_and_rows_as_they_are(self) -> None:
        """Token ids, the list of rows or settings were changed by the call.

        The tokens are the engine's own, and all that it knows of a request; views of them stay read-only.
        """
        call = GuardedCall(self.cases(), self.target())
        memory, rows = call.memory.copy(), list(call.rows)
        settings = [row.settings.model_copy(deep=True) for row in rows]
        call.run(self.processor())
        changed = [str(case) for case, now, was in zip(call.cases, call.memory, memory) if (now != was).any()]
        assert not changed, f"token ids were overwritten, for one of {changed[0]}"
        is_same = len(rows) == len(call.rows) and all(now is was for now, was in zip(call.rows, rows))
        assert is_same, "the sequence of rows that was passed is in another order, or has other rows"
        assert [row.settings for row in rows] == settings, "settings were changed"

    def test_process_writes_neither_nan_nor_inf(self) -> None:
        """NaN or +inf was written: a request that names the plugin ends with an error there.

        Logits may be all equal, far apart, or -inf but for one: mind differences and products with -inf, and divisions.
        """
        cases = self._with_hard_logits()
        for case, row in zip(cases, self.call(cases)):
            wrong = (row.isnan() | row.isposinf()).nonzero().flatten().tolist()
            assert not wrong, f"token {wrong[0]} got {float(row[wrong[0]])} from {_number(case, wrong[0])}: {case}"

    def test_what_is_forbidden_stays_forbidden(self) -> None:
        """A logit of -inf became a finite one. What a request's earlier processor has forbidden no later one allows."""
        cases = self._with_hard_logits()
        for case, row in zip(cases, self.call(cases)):
            lifted = (case.logits.isneginf() & row.isfinite()).nonzero().flatten().tolist()
            assert not lifted, (
                f"tokens {lifted} were forbidden, token {lifted[0]} is at {float(row[lifted[0]])}: {case}"
            )

    def test_the_shortest_sequences_are_served(self) -> None:
        """`process` failed for a prompt of a few tokens, or before there is output. A prompt has one token at least."""
        for num_prompt_tokens in (1, 2, 3):
            for num_output_tokens in (0, 1, 2):
                tokens = (5,) * (num_prompt_tokens + num_output_tokens)
                for case in self.cases([(tokens, num_prompt_tokens)]):
                    self.call([case])

    # ---- a row by itself ----

    def test_a_row_does_not_depend_on_its_company(self) -> None:
        """A row's logits differ between a call of its own and one with others.

        Each row brings its tokens, its prompt's length and its settings. Nothing of the first row holds for the next,
        sequences padded to one length gain no tokens, and arithmetic may not depend on the number of rows.
        """
        processor, cases = self.processor(), self.cases()
        together = self.call(cases, processor)
        for index, case in enumerate(cases):
            self._expect(self.call([case], processor), together[index : index + 1], [case], "alone", "in company")

    def test_a_row_does_not_depend_on_its_place(self) -> None:
        """The same rows in reversed order got other logits: row i of the logits belongs to rows[i]."""
        cases = self.cases()
        turned = self.call(cases[::-1]).flip(0)
        self._expect(self.call(cases), turned, cases, "in one order", "in the reversed one")

    def test_only_the_tokens_of_the_row_are_read(self) -> None:
        """Results changed with what lies in memory around a row's tokens: other requests, and drafts in flight."""
        cases = self.cases()
        plain, other = (
            GuardedCall(cases, self.target(), filler=filler).run(self.processor()) for filler in (0, VOCAB_SIZE - 1)
        )
        self._expect(plain, other, cases, "with zeros around the tokens", f"with {VOCAB_SIZE - 1} there")

    # ---- no state ----

    def test_equal_calls_give_equal_results(self) -> None:
        """The same object, called twice with the same rows, gave two results. Count no calls and draw no numbers."""
        processor, cases = self.processor(), self.cases()
        first = self.call(cases, processor)
        self._expect(first, self.call(cases, processor), cases, "at first", "when asked again")

    def test_earlier_calls_leave_no_trace(self) -> None:
        """An object that had been called before gave other results than a new one.

        Sequences grow, lose drafts that were rejected, come back after a preemption, and belong to other requests at
        the next call: a memo must be keyed by all that a result depends on.
        """
        processor, cases = self.processor(), self.cases()
        others = [
            case.with_tokens([*((t + 1) % 32 for t in case.token_ids[:-1]), case.token_ids[-1]]) for case in cases
        ]
        shorter = [case.with_tokens(case.token_ids[:-1]) for case in cases]
        for rows in (cases, others, cases[::-2], shorter, cases):
            what = ("by a new object", "by one that was called before")
            self._expect(self.call(rows), self.call(rows, processor), rows, *what)

    def test_calls_take_no_memory(self) -> None:
        """The object kept growing with the number of calls. It lives as long as the engine: a memo needs a bound."""
        processor, case = self.processor(), self.cases()[0]

        def step(number: int) -> None:
            tokens = [(number // 60**place) % 60 for place in range(3)]
            self.call([case.with_tokens([*case.token_ids, *tokens])], processor)

        leaked = bytes_leaked(processor, step, 2_000)
        assert not leaked, f"it grows by {leaked} bytes with every call"

    def test_tokens_are_not_kept_after_the_call(self) -> None:
        """Results changed when the memory of earlier tokens held those of other requests.

        `LogitsRow.token_ids` is a view that is valid in the call alone. Its address does not say whose tokens it holds.
        """
        processor, cases = self.processor(), self.cases()
        others = [case.with_tokens([(token + 1) % VOCAB_SIZE for token in case.token_ids]) for case in cases]
        first = GuardedCall(cases, self.target())
        first.run(processor)
        found = GuardedCall(others, self.target(), memory=first.memory).run(processor)
        self._expect(self.call(others), found, others, "in new memory", "where other tokens lay before")

    def test_settings_of_the_first_request_do_not_enter(self) -> None:
        """Two objects, built with different settings, gave different results for the same rows.

        `build` is called on the settings of whichever request comes first, and the object serves all of them.
        """
        cases, configs = self.cases(), self.tried_settings()
        expected = self.call(cases, self.processor(configs[0]))
        for config in configs[1:]:
            found = self.call(cases, self.processor(config))
            self._expect(expected, found, cases, f"built with {configs[0]!r}", f"built with {config!r}")

    # ---- through the core ----

    @pytest.mark.parametrize(("drafts", "parents"), [_CHAIN, _TREE], ids=["chain", "tree"])
    def test_drafts_count_as_output(self, drafts: Sequence[int], parents: Sequence[int]) -> None:
        """A position behind drafts got other logits than with the same tokens as output.

        Several rows of one call may belong to one request, with the same settings and other tokens at the end: one
        answer for each request is not enough.
        """
        cases = self.cases()
        found = self.verified(cases, drafts, parents)
        for place, path in enumerate(self.paths(drafts, parents)):
            written = [case.with_tokens((*case.token_ids, *path)) for case in cases]
            self._expect(self.call(written), found[:, place], written, "as output", f"as the drafts {path}")

    def test_requests_get_the_same_tokens_in_company(self) -> None:
        """Through the engine, requests that name the plugin got other tokens side by side than alone, or in chunks."""
        expected = self.generate_alone()
        for settings in (TinySettings(), TinySettings(budget=7, max_num_seqs=3)):
            _expect_ends(expected, self.generate(self.engine(settings)), f"in company, {settings}")

    def test_preempted_requests_get_the_same_tokens(self) -> None:
        """With so little memory that requests preempt one another, tokens changed.

        A request that comes back has the same tokens and the same prompt's length, in other memory.
        """
        expected = self.generate_alone()
        engine = self.engine(TinySettings(num_blocks=16, budget=16))
        _expect_ends(expected, self.generate(engine), "with preemptions")
        is_long = all(error is None for _, error in expected.values())
        assert not is_long or engine.engine.stats.num_preemptions > 0, "nothing was preempted: the test proves nothing"

    @pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
    def test_drafts_change_no_token(self, is_tree: bool) -> None:
        """Through the engine, tokens changed with drafts, some right and some wrong, that were verified on the way."""
        expected = self.generate_alone()
        truth = {name: tokens for name, (tokens, _) in expected.items()}
        drafter = OracleDrafter(truth, lambda _name, length: length % 4, VOCAB_SIZE, as_tree=is_tree)
        engine = self.engine(TinySettings(), drafter)
        _expect_ends(expected, self.generate(engine), "with drafts")
        assert engine.engine.stats.num_draft_tokens > 0, "nothing was drafted: the test proves nothing"

    def _with_hard_logits(self) -> list[ProcessorCase]:
        """The rows of `cases` with logits that invite NaN: with -inf, all equal, far apart, and all of that."""
        cases: list[ProcessorCase] = []
        for case in self.cases():
            some, one = case.logits.clone(), torch.full_like(case.logits, -torch.inf)
            some[::3] = -torch.inf
            one[case.token_ids[0]] = 1.0
            for logits in (some, one, torch.zeros_like(some), 100 * case.logits):
                cases.append(ProcessorCase(case.token_ids, case.num_prompt_tokens, case.settings, logits))
        return cases

    @staticmethod
    def _expect(
        first: torch.Tensor, second: torch.Tensor, cases: Sequence[ProcessorCase], as_first: str, as_second: str
    ) -> None:
        for case, one, other in zip(cases, first, second, strict=True):
            if not same_numbers(one, other):
                token = int(((one != other) & ~(one.isnan() & other.isnan())).nonzero()[0])
                before, after = float(one[token]), float(other[token])
                raise AssertionError(f"token {token} is at {before!r} {as_first}, at {after!r} {as_second}: {case}")


def _number(case: ProcessorCase, token_id: int) -> str:
    return repr(float(case.logits[token_id]))


def _expect_ends(expected: Ends, found: Ends, what: str) -> None:
    """Equal tokens; a request that ends in error may have lost the tokens of the step in which it did."""
    assert expected.keys() == found.keys(), f"requests {list(expected)} became {list(found)} {what}"
    for name, (tokens, error) in expected.items():
        its_tokens, its_error = found[name]
        is_same = its_tokens == tokens if error is None else its_tokens == tokens[: len(its_tokens)]
        assert is_same, f"{name}: {tokens} alone became {its_tokens} {what}"
        assert its_error == error, f"{name}: {error!r} alone became {its_error!r} {what}"
