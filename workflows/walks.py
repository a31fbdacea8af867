"""A walk of the SDK's that is left out where it would change nothing (ADR 8).

temporalio 1.35 visits every payload of every answer to a workflow task three times: for a codec, for an external
storage, for references to it. Without codec and storage each visit puts back what it found, and took 7 % of the CPU of
a turns worker (measured).
"""

from functools import wraps
from typing import Any

from temporalio.bridge import worker as bridge
from temporalio.converter import DataConverter
from temporalio.converter._extstore import StorageOperationMetrics


def skip_idle_walks() -> None:
    """From now on workers of this process encode an answer only where its converter has a codec or a storage."""
    walk = bridge.encode_completion
    if hasattr(walk, "__wrapped__"):
        return

    @wraps(walk)
    async def encode_completion(completion: Any, data_converter: DataConverter, *more: Any, **named: Any) -> Any:
        if data_converter.payload_codec is None and data_converter.external_storage is None:
            return StorageOperationMetrics()
        return await walk(completion, data_converter, *more, **named)

    bridge.encode_completion = encode_completion
