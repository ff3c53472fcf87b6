"""A loaded engine with what serving it takes: a maker of requests, what front ends must know, compiled grammars."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tokenloom.clock import MonotonicClock
from tokenloom.compose import ComposedConfig
from tokenloom.engine import Engine
from tokenloom.engine_process.grammars import GrammarThread
from tokenloom.engine_process.messages import EngineInfo
from tokenloom.engine_process.tokenizer_file import write_tokenizer
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.llm import LLM
from tokenloom.plugins import Registry
from tokenloom.request_factory import RequestFactory
from tokenloom.structured import CompileTrial, compile_grammar

__all__ = ["ServedEngine", "served_engine"]


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """What an `EngineLoop` runs."""

    engine: Engine
    factory: RequestFactory
    grammars: GrammarThread
    info: EngineInfo


def served_engine(llm: LLM, registry: Registry | None = None, *, tokenizer_file: Path | None = None) -> ServedEngine:
    """Makes a loaded model ready to be served. Nobody else may use `llm` from then on, but for closing it.

    Args:
        llm: the model.
        registry: where logits processors are looked up; the installed plugins by default.
        tokenizer_file: where the tokenizer is written for front ends in other processes; None writes it nowhere.
    """
    if tokenizer_file is not None:
        write_tokenizer(tokenizer_file, llm.tokenizer)
    engine, config = llm.engine, llm.config.engine
    eos_token_ids = tuple(dict.fromkeys((*engine.facts.eos_token_ids, *llm.tokenizer.eos_token_ids)))
    factory = RequestFactory(engine.limits, eos_token_ids, config.engine.seed, MonotonicClock(), registry)

    trial = CompileTrial()

    def compile_spec(spec: GrammarSpec) -> LogitsConstraint:
        vocab_size = engine.limits.vocab_size
        return compile_grammar(spec, llm.tokenizer, vocab_size, eos_token_ids, check_cost=trial.check)

    return ServedEngine(engine, factory, GrammarThread(compile_spec, trial.close), _info(llm, tokenizer_file))


def _info(llm: LLM, tokenizer_file: Path | None) -> EngineInfo:
    config = llm.config.engine
    scheduler = cast(SchedulerConfig, config.scheduler.config)
    return EngineInfo(
        model_path=str(llm.model_path),
        max_model_len=llm.engine.limits.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_queued_requests=scheduler.max_queued_requests,
        block_size=cast(CacheConfig, config.cache.config).block_size,
        plugins={choice.kind: choice.name for choice in config.choices()},
        config=_engine_values(llm.config),
        tokenizer_file=None if tokenizer_file is None else str(tokenizer_file),
    )


def _engine_values(config: ComposedConfig) -> dict[str, object]:
    """The engine's part of the configuration: a command's own keys may hold secrets."""
    values = config.to_dict()
    return {key: values[key] for key in type(config.engine).model_fields}
