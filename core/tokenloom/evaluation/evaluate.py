"""Runs tasks on a model, or on a reference first and then on what is compared with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from tokenloom.compose import ComposedConfig
from tokenloom.evaluation.divergence import ReferenceStates
from tokenloom.evaluation.intervals import CONFIDENCE, Bootstrap
from tokenloom.evaluation.multiple_choice import Question, answer_questions, choice_figures
from tokenloom.evaluation.perplexity import PerplexityTask, WindowScores, perplexity_figures
from tokenloom.evaluation.prompt_capture import PromptCapture
from tokenloom.evaluation.retrieval import RetrievalPlan, find_needles, retrieval_figures, write_needles
from tokenloom.evaluation.speed import SpeedPlan, measure_speed, memory_figures
from tokenloom.evaluation.texts import EvaluationText
from tokenloom.evaluation.windows import WindowPlan
from tokenloom.llm import LLM

__all__ = ["TASKS", "Evaluation", "EvaluationPlan", "Progress"]

TASKS = ("perplexity", "multiple_choice", "retrieval")

Progress = Callable[[str, int, int], None]
"""Told (what runs, done, in all)."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What to run on every model; None for what is left out.

    Attributes:
        text: scored by windows of `window_plan`.
        window_plan: goes with `text`.
        questions: of multiple choice.
        delimiter: between a question's context and a choice.
        retrieval: what to hide in long prompts.
        speed: the request to time.
        bootstrap: of all intervals.
    """

    text: EvaluationText | None
    window_plan: WindowPlan
    questions: tuple[Question, ...] | None
    delimiter: str
    retrieval: RetrievalPlan | None
    speed: SpeedPlan | None
    bootstrap: Bootstrap


@final
class Evaluation:
    """One plan for any number of models. Use it as a context: what a reference computed is gone at its end."""

    def __init__(self, plan: EvaluationPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._perplexity = None if plan.text is None else PerplexityTask(plan.text.text, plan.window_plan)
        self._kept = ReferenceStates()
        self._reference: WindowScores | None = None

    def run_reference(self, config: ComposedConfig) -> dict[str, Any]:
        """Scores the text by the model that later ones are compared with; nothing else is asked of it.

        Of the reference, later runs keep the weights in memory; its KV cache is freed here.
        """
        assert self._perplexity is not None, "a reference is for perplexity"
        capture = PromptCapture()
        with LLM(config=config, taps=(capture,)) as llm:
            told = self._told("reference")
            self._reference = self._perplexity.score_reference(llm, capture, self._kept, told)
            return self._result(llm, {"perplexity": self._perplexity_figures(self._reference, None)})

    def run(self, config: ComposedConfig, label: str = "") -> dict[str, Any]:
        """Runs all tasks on a model, compared with the reference if there was one.

        Args:
            config: of the model.
            label: what the progress bar calls it.

        Returns:
            Plain data: tasks (figures by name), memory, speed if measured, what was resolved, and the configuration.
        """
        plan, tasks = self._plan, dict[str, Any]()
        capture = None if self._reference is None else PromptCapture()
        with LLM(config=config, taps=() if capture is None else (capture,)) as llm:
            if self._perplexity is not None:
                told = self._told(f"{label} perplexity")
                scores = self._perplexity.score(llm, told, capture, None if capture is None else self._kept)
                tasks["perplexity"] = self._perplexity_figures(scores, self._reference)
            if plan.questions is not None:
                told = self._told(f"{label} multiple choice")
                likelihoods = answer_questions(llm, plan.questions, plan.delimiter, told)
                tasks["multiple_choice"] = choice_figures(plan.questions, likelihoods, plan.bootstrap)
            if plan.retrieval is not None:
                needles = write_needles(llm.tokenizer, plan.retrieval)
                found = find_needles(llm, needles, self._told(f"{label} retrieval"))
                tasks["retrieval"] = retrieval_figures(needles, found, plan.bootstrap)
            result = self._result(llm, tasks)
            if plan.speed is not None:
                result["speed"] = measure_speed(llm, plan.speed, self._told(f"{label} speed"))
            return result

    def close(self) -> None:
        """Removes what the reference left on disk."""
        self._kept.close()

    def __enter__(self) -> Evaluation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _told(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self._progress(what.strip(), done, total)

    def _perplexity_figures(self, scores: WindowScores, reference: WindowScores | None) -> dict[str, Any]:
        text, cut = self._plan.text, self._plan.window_plan
        assert text is not None, "perplexity without a text"
        return {
            **perplexity_figures(scores, self._plan.bootstrap, reference),
            "text": text.name,
            "text_sha256": text.digest,
            "window": cut.size,
            "stride": cut.stride,
        }

    def _result(self, llm: LLM, tasks: dict[str, Any]) -> dict[str, Any]:
        facts = llm.engine.facts
        return {
            "tasks": tasks,
            "confidence": CONFIDENCE,
            "memory": memory_figures(llm),
            "resolved": {
                "device": facts.device,
                "dtype": facts.dtype,
                "operations": facts.operations,
                "weights": list(facts.weight_remarks),
            },
            "config": llm.config.to_dict(),
        }
