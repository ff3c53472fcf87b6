"""What a cache wants a request to hold from its admission on, checked."""

from __future__ import annotations

from tokenloom.errors import PluginContractError
from tokenloom.interfaces.cache import PrefixCache, Reservation
from tokenloom.plugin_guard import plugin_call
from tokenloom.request import RequestView

__all__ = ["ask_reservation", "check_reservation"]


def ask_reservation(cache: PrefixCache, request: RequestView, plugin: str) -> Reservation:
    """The reservation of a request.

    Raises:
        PluginContractError: the cache asks for one run of block ids, but does not say that it may.
    """
    with plugin_call(plugin, "reservation() returns a Reservation"):
        reservation = cache.reservation(request)
        is_contiguous = reservation.contiguous and reservation.num_blocks > 0
    if is_contiguous and not cache.reserves_runs:
        detail = f"{request.request_id}: {reservation}"
        raise PluginContractError(plugin, "only a cache that reserves_runs asks for contiguous blocks", detail)
    return reservation


def check_reservation(num_tokens: int, max_model_len: int, block_size: int, plugin: str) -> int:
    """Returns the tokens that a cache reserves room for.

    Raises:
        PluginContractError: the longest sequence takes fewer blocks.
    """
    if num_tokens >= max_model_len + block_size:
        detail = f"{num_tokens} tokens reserved, max_model_len is {max_model_len}"
        raise PluginContractError(plugin, "a reservation fits the longest sequence", detail)
    return num_tokens
