"""Walks of the SDK's that are left out where they would change nothing (ADR 8).

temporalio 1.35 visits every payload of every workflow task and of every answer three times each: for a codec, for an
external storage, for references to it. Without codec and storage each visit puts back what it found, and all of them
took 11 % of the CPU of a turns worker (measured).
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from temporalio.bridge import worker as bridge
from temporalio.converter import DataConverter
from temporalio.converter._extstore import StorageOperationMetrics

Walk = Callable[..., Awaitable[StorageOperationMetrics]]


def skip_idle_walks() -> None:
    """From now on workers of this process walk only where their converter has a codec or a storage."""
    for name in ("decode_activation", "encode_completion"):
        walk = getattr(bridge, name)
        if not hasattr(walk, "__wrapped__"):
            setattr(bridge, name, _only_where_needed(walk))


def _only_where_needed(walk: Walk) -> Walk:
    @wraps(walk)
    async def walk_or_not(
        message: Any, data_converter: DataConverter, *more: Any, **named: Any
    ) -> StorageOperationMetrics:
        if data_converter.payload_codec is None and data_converter.external_storage is None:
            return StorageOperationMetrics()
        return await walk(message, data_converter, *more, **named)

    return walk_or_not
