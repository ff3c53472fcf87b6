"""How much one field of a body may hold; checked before anything else looks at its value."""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator

__all__ = ["at_most", "check_weight", "free_form"]


def at_most(max_entries: int) -> BeforeValidator:
    """For lists and objects of one kind of thing: pydantic would collect a fault for each wrong entry first."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > max_entries:
            raise ValueError(f"has {len(value)} entries, at most {max_entries} are allowed")
        return value

    return BeforeValidator(check)


def free_form(*, max_values: int, max_chars: int | None = None, max_entries: int | None = None) -> BeforeValidator:
    """For what may hold anything, nested: a template's variables, a plugin's settings, a JSON schema.

    Args:
        max_values: strings, numbers, lists and objects in it, itself included and keys not.
        max_chars: of all its strings and keys together.
        max_entries: of the value itself.
    """

    def check(value: Any) -> Any:
        if max_entries is not None and isinstance(value, list | dict) and len(value) > max_entries:
            raise ValueError(f"has {len(value)} entries, at most {max_entries} are allowed")
        check_weight(value, max_values, max_chars)
        return value

    return BeforeValidator(check)


def check_weight(value: Any, max_values: int, max_chars: int | None = None) -> None:
    """Looks at no more than what is allowed, and raises ValueError if there is more."""
    pending, num_seen, num_chars = [value], 0, 0
    while pending:
        item = pending.pop()
        num_seen += 1
        if isinstance(item, str):
            num_chars += len(item)
        elif isinstance(item, list | dict):
            if num_seen + len(pending) + len(item) > max_values:
                raise ValueError(f"holds more than the {max_values} values that are allowed, nested ones included")
            if isinstance(item, dict):
                num_chars += sum(map(len, item))
            pending.extend(item.values() if isinstance(item, dict) else item)
        if max_chars is not None and num_chars > max_chars:
            raise ValueError(f"holds more than the {max_chars} characters that are allowed")
