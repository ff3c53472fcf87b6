"""No demand of a suite is switched off in silence: what a class that derives from one may not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from tests.testing.planted_victim import victim_info
from tests.testing.suite_runner import make_suite
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import Capabilities
from tokenloom.plugins import default_registry
from tokenloom.testing import SUITES, PluginSuite, SchedulerSuite, VictimSuite
from tokenloom.testing.suite import build_choice
from tokenloom.testing.suite_rules import SuiteType

EXCUSED = pytest.mark.xfail(reason="a bound that the plugin does not state")


class ExampleSuite(PluginSuite):
    limit: ClassVar[int] = 100

    def test_one(self) -> None:
        """Holds."""

    def test_two(self) -> None:
        """Holds."""

    @property
    def block_size(self) -> int:
        return 16

    def scripts(self) -> list[int]:
        return []


class Quiet:
    def test_one(self) -> None:
        """Shadows a demand."""


class Excused:
    @EXCUSED
    def test_one(self) -> None:
        """Says why."""


class Helpful:
    def test_more(self) -> None:
        """A test of its own."""


class Slip:
    setting: ClassVar[Mapping[str, int]] = {"max_chunk_tokens": 5}


class Started:
    def __init__(self) -> None:
        self.started = True


def derive(*bases: type, **attributes: Any) -> type:
    return type("TestMine", bases, attributes)


def quiet(_self: object) -> None:
    """Asserts nothing."""


@pytest.mark.skip(reason="slow")
def skipped(_self: object) -> None:
    """Asserts nothing, in a report with a reason, but not as a demand that fails."""


def uncollected(_self: object) -> None:
    """Is no test to pytest."""


uncollected.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("bases", "attributes", "message"),
    [
        ((ExampleSuite,), {"test_one": quiet}, r"TestMine overrides test_one .*mark\.xfail\(reason="),
        ((ExampleSuite,), {"test_one": None}, "TestMine overrides test_one"),
        ((ExampleSuite,), {"test_one": skipped}, "TestMine overrides test_one"),
        ((Quiet, ExampleSuite), {}, "TestMine overrides by Quiet test_one"),
        ((Helpful, Quiet, ExampleSuite), {}, "TestMine overrides by Quiet test_one"),
        ((type("Off", (), {"test_two": None}), ExampleSuite), {}, "overrides by Off test_two"),
        ((Quiet, derive(Excused, ExampleSuite)), {}, "TestMine overrides by Quiet test_one"),
        ((derive(Excused, ExampleSuite),), {"test_one": quiet}, "TestMine overrides test_one"),
        ((ExampleSuite,), {"test_one": EXCUSED(uncollected)}, "test_one has __test__ = False"),
        ((ExampleSuite,), {"plugin": "mine", "__test__": False}, "no test of it would run"),
        ((type("Hidden", (), {"__test__": False}), ExampleSuite), {"plugin": "mine"}, "no test of it would run"),
        ((Started, ExampleSuite), {}, "has a __init__"),
        ((ExampleSuite,), {"pytestmark": pytest.mark.skip}, "marked skip as a whole; give a reason"),
        ((ExampleSuite,), {"pytestmark": [pytest.mark.slow, pytest.mark.xfail(True)]}, "marked xfail as a whole"),
        ((type("Off", (), {"pytestmark": pytest.mark.skip()}), ExampleSuite), {}, "marked skip as a whole"),
        ((ExampleSuite,), {"capabilities": Capabilities()}, "overrides `capabilities`"),
        ((type("Liar", (), {"info": None}), ExampleSuite), {}, "overrides `info`"),
    ],
)
def test_what_would_switch_a_demand_off_is_refused(
    bases: tuple[type, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        derive(*bases, **attributes)


@pytest.mark.parametrize(
    ("bases", "attributes"),
    [
        ((ExampleSuite,), {"test_one": vars(Excused)["test_one"]}),
        ((Excused, ExampleSuite), {}),
        ((Helpful, ExampleSuite), {"test_another": quiet}),
        ((ExampleSuite, Quiet), {}),
        ((ExampleSuite,), {"__test__": False}),
        ((derive(ExampleSuite, __test__=False),), {"plugin": "mine", "__test__": True}),
        ((ExampleSuite,), {"pytestmark": [pytest.mark.skip("needs a GPU"), pytest.mark.slow]}),
        ((ExampleSuite,), {"limit": 5, "block_size": 8, "_setting": 1, "widths": (1, 2), "script": quiet}),
    ],
)
def test_what_is_on_record_or_an_addition_is_allowed(bases: tuple[type, ...], attributes: dict[str, Any]) -> None:
    assert issubclass(derive(*bases, **attributes), ExampleSuite)


def test_a_class_is_held_to_the_rules_after_it_was_made() -> None:
    mine = derive(ExampleSuite, plugin="mine")
    with pytest.raises(TypeError, match="marked skip as a whole"):
        pytest.mark.skip(mine)
    with pytest.raises(TypeError, match=r"TestMine\.test_one is replaced"):
        mine.test_one = None  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"ExampleSuite\.test_two is deleted"):
        del ExampleSuite.test_two
    with pytest.raises(TypeError, match="no test of it would run"):
        mine.__test__ = False  # type: ignore[attr-defined]
    assert pytest.mark.skip(reason="needs a GPU")(derive(ExampleSuite)) is not None
    assert isinstance(mine, SuiteType)


@pytest.mark.parametrize(
    ("suite", "slip", "meant"),
    [
        (PluginSuite, "setting", "`settings`"),
        (PluginSuite, "plugins", "`plugin`"),
        (ExampleSuite, "limits", "`limit`"),
        (ExampleSuite, "block_sizes", "`block_size`"),
        (SchedulerSuite, "max_wait", "`max_wait_s`"),
    ],
)
def test_a_misspelt_attribute_is_refused(suite: type[PluginSuite], slip: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"sets `{slip}`.*did you mean {meant}"):
        derive(suite, **{slip: {}})


def test_a_misspelt_attribute_of_a_mixin_is_refused() -> None:
    with pytest.raises(TypeError, match="sets `setting`"):
        derive(Slip, ExampleSuite)


@pytest.mark.parametrize("target", SUITES.values())
def test_suites_keep_to_their_own_rules(target: str) -> None:
    module, _, name = target.partition(":")
    suite = vars(__import__(module, fromlist=[name]))[name]
    assert derive(suite, plugin="mine").__name__ == "TestMine"


def test_wrong_settings_of_a_suite_are_refused_in_words() -> None:
    suite = make_suite(VictimSuite, victim_info(), settings={"bugs": "none"})
    with pytest.raises(ConfigError, match=r"there is no setting 'bugs', only bug\. Did you mean 'bug'"):
        suite().make_config()


def test_a_nested_plugin_is_no_text() -> None:
    fcfs = default_registry().get("scheduler", "fcfs").info
    with pytest.raises(ConfigError, match="scheduler=fcfs: victim: must be a nested plugin, got 'last_in'"):
        build_choice(fcfs, {"victim": "last_in"})


def test_settings_take_lists_for_tuples() -> None:
    int8 = default_registry().get("quant", "int8").info
    assert build_choice(int8, {"skip": ["model.layers.0"]}) == build_choice(int8, {"skip": ("model.layers.0",)})
