"""The one way to Temporal: its own client environment, our data converter."""

from typing import Final

from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter
from temporalio.envconfig import ClientConfig
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import GrpcCompression

_PYDANTIC: Final = PydanticPayloadConverter()


class SharedPayloadConverter(CompositePayloadConverter):
    """The SDK's converter for pydantic models, made once: the SDK asks for a new one for each run of a workflow and for
    each of its tasks, and each would compile a serializer and begin with no type known."""

    def __init__(self) -> None:
        super().__init__(*_PYDANTIC.converters.values())


DATA_CONVERTER: Final = DataConverter(payload_converter_class=SharedPayloadConverter)


def runtime(metrics_address: str = "") -> Runtime | None:
    """A runtime that serves the SDK's own metrics, where an address is given."""
    if not metrics_address:
        return None
    return Runtime(telemetry=TelemetryConfig(metrics=PrometheusConfig(bind_address=metrics_address)))


async def connect(metrics_address: str = "") -> Client:
    """A client by TEMPORAL_ADDRESS, namespace, TLS and API key, or by the profile file of `temporalio.envconfig`.

    Raises: RuntimeError where the server does not answer.
    """
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "127.0.0.1:7233")
    return await Client.connect(
        **config,
        data_converter=DATA_CONVERTER,
        runtime=runtime(metrics_address),
        grpc_compression=GrpcCompression.NONE,
    )
