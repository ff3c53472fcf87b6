"""How the suite of logits processors builds a plugin, the rows it tries, and requests that name it in a tiny engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import pytest
import torch

from tokenloom.batch import NewRow, RowPlan, draft_paths, tree_depths
from tokenloom.batch_state import BatchState
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.logits_processor import LogitsProcessor, LogitsProcessorConfig, LogitsProcessorContext
from tokenloom.interfaces.spec_decode import Drafter
from tokenloom.request import Request
from tokenloom.sampling.processing import process_logits, why_no_token
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.drafter_rig import NoDrafts
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.numeric_device import numeric_device
from tokenloom.testing.processor_calls import GuardedCall, ProcessorCase
from tokenloom.testing.suite import PluginSuite
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings
from tokenloom.testing.varied_settings import varied_settings

__all__ = ["VOCAB_SIZE", "Ends", "ProcessorRig", "TokenSequence"]

VOCAB_SIZE = 64
_MODEL = TinyDecoder(VOCAB_SIZE)
_NUM_OUTPUT_TOKENS = 20
_MAX_ROWS = 96

TokenSequence = tuple[Sequence[int], int]
"""Token ids, and how many of them are the prompt."""

_SEQUENCES: Sequence[TokenSequence] = (
    ((1, 2, 3, 1, 2), 3),
    ((7,) * 9, 4),
    ((0, 63, 0, 63, 0, 63), 2),
    ((31, 17, 2, 40), 1),
    (tuple((7 * place + 3) % 61 for place in range(25)), 6),
    (tuple((place * place) % 5 for place in range(40)), 30),
    ((12, 12, 12), 1),
    (tuple((5 * place + place // 7) % 49 for place in range(150)), 148),
)
"""Of all lengths, so that each has longer and shorter company; each has two output tokens."""

_PROMPTS = ((3, 1, 4), (1, 5, 9, 2, 1, 5), (9, 7, 9) * 3, (3, 2, 3, 8, 4, 6, 2, 6), (7,))

Ends = dict[str, tuple[list[int], str | None]]
"""Per request id, its output tokens, and the message of its error if it ended with one."""

_alone: WeakKeyDictionary[type[ProcessorRig], Ends] = WeakKeyDictionary()


class ProcessorRig(PluginSuite):
    """What the tests of `LogitsProcessorSuite` are made of.

    Attributes:
        device: "cpu" or "cuda"; None takes the CPU if the plugin declares it, else CUDA if the machine has it.
        other_settings: settings to try beside those that follow from the types of the Config's fields.
        sequences: sequences to try beside the kit's, for a plugin that does something only where certain tokens are.
    """

    kind: ClassVar[str] = "logits_processor"
    device: ClassVar[str | None] = None
    other_settings: ClassVar[Sequence[Mapping[str, Any]]] = ()
    sequences: ClassVar[Sequence[TokenSequence]] = ()

    def tried_settings(self) -> list[LogitsProcessorConfig]:
        """Settings that requests may bring; see `varied_settings`."""
        found = varied_settings(self.info, self.settings, self.other_settings)
        for config in found:
            assert isinstance(config, LogitsProcessorConfig), f"the Config is no LogitsProcessorConfig: {config!r}"
        return [cast(LogitsProcessorConfig, config) for config in found]

    def processor(self, first: LogitsProcessorConfig | None = None) -> LogitsProcessor:
        """A new object, built as by a request with these settings."""
        config = self.tried_settings()[0] if first is None else first
        processor = config.build(LogitsProcessorContext(VOCAB_SIZE, self.target()))
        assert isinstance(processor, LogitsProcessor), f"build() returned {processor!r}, which is no LogitsProcessor"
        return processor

    def target(self) -> torch.device:
        """Where the logits are."""
        return numeric_device(self.capabilities, self.device)

    def cases(self, sequences: Sequence[TokenSequence] = _SEQUENCES) -> list[ProcessorCase]:
        """Each sequence with each of the settings; neighbours differ in both."""
        settings = self.tried_settings()
        sequences = [*sequences, *self.sequences]
        pairs = [
            (sequence, settings[(place + turn) % len(settings)])
            for turn in range(len(settings))
            for place, sequence in enumerate(sequences)
        ][:_MAX_ROWS]
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(len(pairs), VOCAB_SIZE, generator=generator) * 4
        return [
            ProcessorCase(tuple(tokens), num_prompt_tokens, config, row)
            for ((tokens, num_prompt_tokens), config), row in zip(pairs, logits, strict=True)
        ]

    def call(self, cases: Sequence[ProcessorCase], processor: LogitsProcessor | None = None) -> torch.Tensor:
        """What a processor, or a new one, makes of some rows: fp32 [len(cases), V]."""
        return GuardedCall(cases, self.target()).run(self.processor() if processor is None else processor)

    # ---- through the core ----

    def verified(self, cases: Sequence[ProcessorCase], drafts: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """The processed logits of a step that verifies the same drafts in every request: fp32 [len(cases), 1 + k, V].

        Every position of a request starts from the logits of its case.
        """
        state = BatchState(len(cases), 256, 4, 0, VOCAB_SIZE, self.target())
        plans: dict[str, RowPlan] = {}
        for number, case in enumerate(cases):
            new = NewRow(
                token_ids=list(case.token_ids),
                num_prompt_tokens=case.num_prompt_tokens,
                params=SamplingParams(temperature=0.0),
                seed=number,
                choice_index=0,
                processors=(self._choice(case.settings),),
            )
            plan = RowPlan(f"r{number}", 0, 1, tuple(drafts), (), True, draft_parents=tuple(parents), new=new)
            state.update([plan])
            plans[plan.request_id] = plan
        num_rows = 1 + len(drafts)
        offsets = [0, *tree_depths(parents or range(-1, len(drafts) - 1))] * len(cases)
        batch = state.sampling(list(plans), [num_rows] * len(cases), offsets, plans)
        logits = torch.stack([case.logits for case in cases]).repeat_interleave(num_rows, dim=0).to(self.target())
        processed = process_logits(logits, batch)
        for row, case in enumerate(case for case in cases for _ in range(num_rows)):
            if bool(processed[row].isnan().any()):
                raise AssertionError(f"{case}, with drafts: {why_no_token(logits, batch, None, row)}")
        return processed.cpu().view(len(cases), num_rows, VOCAB_SIZE)

    @staticmethod
    def paths(drafts: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
        """Per position that is verified, the drafts before it."""
        return draft_paths(RowPlan("", 0, 1, tuple(drafts), (), True, draft_parents=tuple(parents)))

    def generate_alone(self) -> Ends:
        """The kit's requests, each in an engine of its own; once for all tests of a class."""
        if type(self) in _alone:
            return _alone[type(self)]
        ends: Ends = {}
        for number in range(len(_PROMPTS)):
            engine = self.engine(TinySettings())
            self._add(engine, number)
            ends |= self._ends(engine)
        _alone[type(self)] = ends
        return ends

    def generate(self, engine: TinyEngine) -> Ends:
        """The kit's requests side by side."""
        for number in range(len(_PROMPTS)):
            self._add(engine, number)
        return self._ends(engine)

    def engine(self, settings: TinySettings, drafter: Drafter | None = None) -> TinyEngine:
        """A tiny engine on the CPU, with a drafter that is asked for five tokens, or without one."""
        if self.target().type != "cpu":
            pytest.skip("the plugin does not run on the CPU, where the kit's engine runs")
        policy = None if drafter is None else ChosenDrafts(lambda _request, _num_running: 5)
        return TinyEngine(_MODEL, NoDrafts() if drafter is None else drafter, policy, settings)

    def _add(self, engine: TinyEngine, number: int) -> None:
        """Every second request samples; their settings differ."""
        prompt, settings = _PROMPTS[number], self.tried_settings()
        engine.engine.add_request(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=list(prompt),
                params=SamplingParams(temperature=0.9 * (number % 2), max_tokens=_NUM_OUTPUT_TOKENS),
                seed=number,
                max_total_tokens=len(prompt) + _NUM_OUTPUT_TOKENS,
                logits_processors=(self._choice(settings[number % len(settings)]),),
            )
        )

    def _ends(self, engine: TinyEngine) -> Ends:
        tokens = engine.run()
        ends = {name: (tokens.get(name, []), last.error) for name, last in engine.last.items()}
        for name, (_, error) in ends.items():
            assert error is None or f"plugin {self._label}" not in error, f"request {name} failed: {error}"
        return ends

    @property
    def _label(self) -> str:
        return f"{self.kind}={self.info.name}"

    def _choice(self, settings: LogitsProcessorConfig) -> PluginChoice:
        return PluginChoice(self.kind, self.info.name, settings)
