"""Random small JSON schemas, for property tests: what matches them is short."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["schemas"]

_NAMES = st.sampled_from(["a", "b", "größe", 'q"uote', "\\", "x y", "日"])
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-50, 50),
    st.text(st.characters(codec="utf-8"), max_size=3),
    st.floats(-9, 9).map(lambda x: round(x, 7)),
)


@st.composite
def _strings(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["length", "pattern", "format"]))
    if kind == "pattern":
        return {"type": "string", "pattern": draw(st.sampled_from(["^[ab]{1,3}$", "^\\d-é?$", "^(x|yy|\\n)$"]))}
    if kind == "format":
        return {"type": "string", "format": draw(st.sampled_from(["date", "ipv4", "uuid"]))}
    least = draw(st.integers(0, 2))
    return {"type": "string", "minLength": least, "maxLength": least + draw(st.integers(0, 3))}


@st.composite
def _numbers(draw: st.DrawFn) -> dict[str, Any]:
    least = draw(st.integers(-100, 100))
    bounds = {
        draw(st.sampled_from(["minimum", "exclusiveMinimum"])): least,
        "maximum": least + draw(st.integers(2, 500)),
    }
    kind = draw(st.sampled_from(["integer", "multiple", "number"]))
    if kind == "number":
        return {"type": "number", **bounds}
    return {"type": "integer", **bounds} | ({"multipleOf": draw(st.integers(1, 2))} if kind == "multiple" else {})


def _arrays(items: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    fixed = {"type": st.just("array"), "items": items, "maxItems": st.integers(1, 2)}
    tuples = {"type": st.just("array"), "prefixItems": st.lists(items, min_size=1, max_size=2), "items": st.just(False)}
    return st.one_of(st.fixed_dictionaries(fixed, optional={"minItems": st.just(1)}), st.fixed_dictionaries(tuples))


@st.composite
def _objects(draw: st.DrawFn, values: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(_NAMES, values, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _combined(parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(_arrays(parts), _objects(parts), several.map(lambda options: {"anyOf": options}))


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of draft 2020-12 that llguidance takes and that can be met."""
    leaves = st.one_of(
        _strings(),
        _numbers(),
        st.lists(_VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
        _VALUES.map(lambda value: {"const": value}),
        st.just({"type": ["boolean", "null"]}),
    )
    return st.recursive(leaves, _combined, max_leaves=6)
