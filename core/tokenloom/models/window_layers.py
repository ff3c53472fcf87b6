"""The windows of families that switch them on by `use_sliding_window`, for the layers of one type (Qwen, SmolLM3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenloom.checkpoint.fields import Fields
from tokenloom.model_config import ModelConfig
from tokenloom.models.config_fields import read_layer_types, read_window, windows_of

__all__ = ["SWITCHED_WINDOW_KEYS", "read_switched_windows", "switched_windows_json"]

SWITCHED_WINDOW_KEYS = frozenset({"layer_types", "sliding_window", "use_sliding_window"})


def read_switched_windows(
    fields: Fields, num_layers: int, default_window: int | None, slides: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """The window of each layer.

    Args:
        fields: content of config.json.
        num_layers: of the model.
        default_window: what an absent `sliding_window` means, once windows are switched on.
        slides: whether a layer of this number has the window, where there is no `layer_types`.
    """
    is_on = fields.flag("use_sliding_window", False)
    window = read_window(fields, default_window) if is_on else None
    types = read_layer_types(fields, num_layers) or tuple(
        "sliding_attention" if window is not None and slides(index) else "full_attention" for index in range(num_layers)
    )
    return windows_of(fields, types, window)


def switched_windows_json(config: ModelConfig) -> dict[str, Any]:
    """The keys that make `read_switched_windows` return the config's windows."""
    window = next((window for window in config.windows if window is not None), None)
    types = ["full_attention" if window is None else "sliding_attention" for window in config.windows]
    return {"use_sliding_window": window is not None, "sliding_window": window, "layer_types": types}
