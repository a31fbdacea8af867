"""What the walks that are left out must not leave out."""

import inspect
from collections.abc import Sequence
from dataclasses import replace

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.bridge import worker as bridge
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadCodec

from perdure.contracts.turns import Usage
from perdure.temporal.client import DATA_CONVERTER
from perdure.worker.queues import skip_idle_payload_visits

WALKS = [("decode_activation", "activation"), ("encode_completion", "completion")]


class Marks(PayloadCodec):
    """Marks what it encodes."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata={"encoding": b"marked"}, data=each.data) for each in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata=each.metadata, data=b"unmarked") for each in payloads]


def task() -> WorkflowActivation:
    activation = WorkflowActivation()
    activation.jobs.add().initialize_workflow.arguments.add().data = b"marked"
    return activation


def answer() -> WorkflowActivationCompletion:
    completion = WorkflowActivationCompletion()
    result = completion.successful.commands.add().complete_workflow_execution.result
    result.metadata["encoding"] = b"json/plain"
    result.data = b'"completed"'
    return completion


@pytest.mark.parametrize(("name", "message"), WALKS)
def test_the_sdks_patched_functions_exist_with_the_expected_arguments(name: str, message: str) -> None:
    skip_idle_payload_visits()
    function = getattr(bridge, name)
    assert [*inspect.signature(function).parameters][:2] == [message, "data_converter"]
    assert function.__module__ == "temporalio.bridge.worker"
    skip_idle_payload_visits()
    assert getattr(bridge, name) is function, "to ask twice wraps once"


async def test_without_a_codec_an_answer_is_what_the_sdk_itself_would_return() -> None:
    skip_idle_payload_visits()
    skipped, walked = answer(), answer()
    metrics = await bridge.encode_completion(skipped, DATA_CONVERTER, False, 1)
    theirs = await inspect.unwrap(bridge.encode_completion)(walked, DATA_CONVERTER, False, 1)
    assert skipped == walked == answer()
    assert metrics.payload_count == theirs.payload_count == 0


async def test_with_a_codec_incoming_payloads_are_decoded_and_outgoing_encoded() -> None:
    skip_idle_payload_visits()
    coded = replace(DATA_CONVERTER, payload_codec=Marks())
    completion, activation = answer(), task()
    await bridge.encode_completion(completion, coded, False, 1)
    await bridge.decode_activation(activation, coded, False, 1)
    assert completion.successful.commands[0].complete_workflow_execution.result.metadata["encoding"] == b"marked"
    assert activation.jobs[0].initialize_workflow.arguments[0].data == b"unmarked"


def test_the_shared_converter_writes_what_the_sdks_own_writes() -> None:
    value = Usage(input_tokens=3)
    ours, theirs = DATA_CONVERTER.payload_converter, pydantic_data_converter.payload_converter
    assert ours.to_payloads([value, None, b"raw"]) == theirs.to_payloads([value, None, b"raw"])
    assert ours.from_payloads(theirs.to_payloads([value]), [Usage]) == [value]
