"""The client for Temporal, from Temporal's own environment variables and with Perdure's data converter."""

from collections.abc import Sequence
from typing import Final

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, Interceptor
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter
from temporalio.envconfig import ClientConfig
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import GrpcCompression, RPCError, RPCStatusCode

from perdure.contracts.activities import SEARCH_AGENT, SEARCH_CONVERSATION, SEARCH_STATUS, SEARCH_TENANT

_log = structlog.get_logger(__name__)
_PYDANTIC: Final = PydanticPayloadConverter()
SEARCH_ATTRIBUTES = (SEARCH_TENANT, SEARCH_AGENT, SEARCH_CONVERSATION, SEARCH_STATUS)


class SharedPayloadConverter(CompositePayloadConverter):
    """The SDK's converter for pydantic models, created once.

    The SDK requests a new converter for each workflow run and for each of its tasks. Each would compile a serializer
    and start with an empty cache of types.
    """

    def __init__(self) -> None:
        super().__init__(*_PYDANTIC.converters.values())


DATA_CONVERTER: Final = DataConverter(payload_converter_class=SharedPayloadConverter)


def metrics_runtime(metrics: tuple[str, int] | None) -> Runtime | None:
    """Returns a runtime that serves the SDK's metrics, or None without an address or if the port is in use."""
    if metrics is None:
        return None
    host, port = metrics
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=PrometheusConfig(bind_address=f"{host}:{port}")))
    except (RuntimeError, ValueError) as error:  # The SDK core raises these if the port is in use.
        _log.warning("metrics_not_served", port=port, error=type(error).__name__)
        return None


async def require_namespace(client: Client) -> None:
    """Checks that the namespace exists. A worker reports other faults at its start.

    Raises: SystemExit with instructions, if Temporal has no such namespace.
    """
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            address, name = client.service_client.config.target_host, client.namespace
            raise SystemExit(
                f"Temporal at {address} has no namespace {name}; create it, or set TEMPORAL_NAMESPACE"
            ) from None


async def connect(metrics: tuple[str, int] | None = None, interceptors: Sequence[Interceptor] = ()) -> Client:
    """Connects by TEMPORAL_ADDRESS, namespace, TLS and API key, or by the profile file of `temporalio.envconfig`.

    Raises: RuntimeError if the server does not answer.
    """
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "127.0.0.1:7233")
    return await Client.connect(
        **config,
        data_converter=DATA_CONVERTER,
        runtime=metrics_runtime(metrics),
        grpc_compression=GrpcCompression.NONE,
        interceptors=interceptors,
    )


async def register_search_attributes(client: Client) -> None:
    """Adds the missing search attributes. If a hosted server forbids that, the log states what to add by hand.
    Operators filter turns by the attributes."""
    operator = client.operator_service
    try:
        known = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        missing = [name for name in SEARCH_ATTRIBUTES if name not in known.custom_attributes]
        if missing:
            keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
            await operator.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=client.namespace, search_attributes=dict.fromkeys(missing, keyword)
                )
            )
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            return
        _log.error(
            "search_attributes_not_registered",
            needed=", ".join(SEARCH_ATTRIBUTES),
            what_to_do="add them to the namespace as Keyword attributes with Temporal's own tools",
            error=error.message,
        )
