"""The one way to Temporal: its own client environment, our data converter."""

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import GrpcCompression


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
        data_converter=pydantic_data_converter,
        runtime=runtime(metrics_address),
        grpc_compression=GrpcCompression.NONE,
    )
