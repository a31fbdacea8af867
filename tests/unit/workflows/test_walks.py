"""What the walk that is left out must not leave out."""

import inspect
from collections.abc import Sequence
from dataclasses import replace

from temporalio.api.common.v1 import Payload
from temporalio.bridge import worker as bridge
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadCodec

from workflows.walks import skip_idle_walks


class Marks(PayloadCodec):
    """Marks what it encodes."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata={"encoding": b"marked"}, data=each.data) for each in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [*payloads]


def answer() -> WorkflowActivationCompletion:
    completion = WorkflowActivationCompletion()
    result = completion.successful.commands.add().complete_workflow_execution.result
    result.metadata["encoding"] = b"json/plain"
    result.data = b'"completed"'
    return completion


def test_the_sdk_still_has_the_function_with_the_arguments_that_are_passed_on() -> None:
    skip_idle_walks()
    wanted = ["completion", "data_converter", "encode_headers", "storage_concurrency_limit"]
    assert [*inspect.signature(bridge.encode_completion).parameters] == wanted


async def test_without_a_codec_an_answer_stays_as_the_sdk_itself_would_leave_it() -> None:
    skip_idle_walks()
    skipped, walked = answer(), answer()
    metrics = await bridge.encode_completion(skipped, pydantic_data_converter, False, 1)
    theirs = await inspect.unwrap(bridge.encode_completion)(walked, pydantic_data_converter, False, 1)
    assert skipped == walked == answer()
    assert metrics.payload_count == theirs.payload_count == 0


async def test_with_a_codec_it_is_encoded() -> None:
    skip_idle_walks()
    completion = answer()
    await bridge.encode_completion(completion, replace(pydantic_data_converter, payload_codec=Marks()), False, 1)
    assert completion.successful.commands[0].complete_workflow_execution.result.metadata["encoding"] == b"marked"


def test_to_ask_twice_wraps_once() -> None:
    skip_idle_walks()
    once = bridge.encode_completion
    skip_idle_walks()
    assert bridge.encode_completion is once
