"""The engine's process: composes or takes the configuration, loads the model, serves it until told to stop."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import MutableSequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.compose.overrides import value_word
from tokenloom.engine_config import EngineConfig
from tokenloom.engine_process.heartbeat import Heartbeat, period_s
from tokenloom.errors import ConfigError, EngineDeadError, OutOfMemoryError, PluginContractError, TokenloomError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.server.child_process import begin_child, end_child
from tokenloom.server.log_lines import log_to_stderr
from tokenloom.server.reports import ChildFailed, Composed, EngineReady
from tokenloom.server.settings import ServerSettings, ServeSettings, read_api_keys
from tokenloom.server.tools import choose_reasoning_parser, choose_tool_parser

__all__ = ["EngineSetup", "run_engine"]

_RUNTIME_ERRORS = (EngineDeadError, OutOfMemoryError, PluginContractError, OSError)
"""What is not the fault of whoever wrote the configuration."""


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine's process is started with.

    Attributes:
        overrides, config_dir: what to compose; only read where `config` is None.
        config: the pickled configuration of the first engine, for those after it.
        address: where front ends reach it.
        reports: to the supervisor.
        beat: shared memory for one `Heartbeat`.
    """

    overrides: tuple[str, ...]
    config_dir: Path | None
    config: bytes | None
    address: str
    reports: Connection
    beat: MutableSequence[float]


def run_engine(setup: EngineSetup) -> None:
    """Runs the process; its exit code is 0 only where it was told to stop. Does not return."""
    begin_child("tokenloom-eng", "info")
    try:
        _run(setup)
    except (TokenloomError, OSError) as error:
        if os.environ.get("TOKENLOOM_TRACEBACK") == "1":
            traceback.print_exc()
        setup.reports.send(ChildFailed(str(error), not isinstance(error, _RUNTIME_ERRORS)))
        end_child(1)
    end_child(0)


def _run(setup: EngineSetup) -> None:
    config = _config(setup)
    settings = config.extras_of(ServeSettings).server
    log_to_stderr(settings.log_level)
    # What follows loads torch: a mistake in the configuration is told without waiting for it.
    from tokenloom.engine_process.engine_loop import EngineLoop
    from tokenloom.engine_process.served_engine import served_engine
    from tokenloom.engine_process.tokenizer_file import TOKENIZER_SUFFIX
    from tokenloom.engine_process.zmq_link import ZmqEngineLink
    from tokenloom.executors.device_choice import describe_threads
    from tokenloom.llm import LLM
    from tokenloom.observability.engine_live import EngineLive
    from tokenloom.observability.engine_metrics import EngineMetrics
    from tokenloom.observability.profile_observer import ProfileObserver
    from tokenloom.observability.timeline import StepTimeline

    timeline = StepTimeline()
    with LLM(config=config, taps=(timeline,)) as llm:
        file = Path(setup.address.removeprefix("ipc://")).with_suffix(TOKENIZER_SUFFIX)
        served = served_engine(llm, tokenizer_file=file)
        metrics = EngineMetrics(llm.engine, config.engine, has_tenant_label=settings.metrics_tenant_label)
        heartbeat = Heartbeat(setup.beat, period_s(settings.step_timeout_s))
        loop = EngineLoop(
            served,
            ZmqEngineLink(setup.address),
            heartbeat=heartbeat,
            observers=(metrics, EngineLive(llm.engine), ProfileObserver(llm.engine, timeline, served.info.config)),
            fallback=fallback_choice(config.engine, settings, setup.config_dir),
        )
        facts = llm.engine.facts
        threads = f", threads {describe_threads()}" if facts.device == "cpu" else ""
        heartbeat.beat()
        setup.reports.send(EngineReady(f"model {config.engine.model.source}, {facts.device}, {facts.dtype}{threads}"))
        loop.run()


def _config(setup: EngineSetup) -> ComposedConfig:
    if setup.config is not None:
        return cast(ComposedConfig, pickle.loads(setup.config))
    config = compose_config(setup.overrides, config_dir=setup.config_dir, command=ServeSettings)
    settings = config.extras_of(ServeSettings).server
    read_api_keys(settings)
    check_parsers(settings)
    fallback_choice(config.engine, settings, setup.config_dir)
    setup.reports.send(Composed(settings, pickle.dumps(config)))
    return config


def check_parsers(settings: ServerSettings) -> None:
    """Raises ConfigError unless the parsers of tool calls and thoughts exist; what "auto" is, the template tells."""
    choose_tool_parser(settings.tool_parser, None)
    choose_reasoning_parser(settings.reasoning_parser, None)


def fallback_choice(config: EngineConfig, settings: ServerSettings, config_dir: Path | None) -> PluginChoice | None:
    """The scheduler of server.fallback_scheduler, with the limits of the one that it may have to replace.

    Raises:
        ConfigError: there is no such scheduler, or decisions are traced: a trace cannot tell of two schedulers.
    """
    name = settings.fallback_scheduler
    if name is None:
        return None
    if config.trace.file is not None:
        raise ConfigError(
            f"server.fallback_scheduler={name} cannot be used with trace.file={config.trace.file}: a trace holds the "
            "decisions of one scheduler; drop one of them"
        )
    limits = cast(SchedulerConfig, config.scheduler.config)
    words = [f"scheduler.{key}={value_word(getattr(limits, key))}" for key in SchedulerConfig.model_fields]
    try:
        return compose_config([f"scheduler={name}", *words], config_dir=config_dir).engine.scheduler
    except ConfigError as error:
        raise ConfigError(f"server.fallback_scheduler={name}: {error}") from error
