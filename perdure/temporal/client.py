"""The one way to Temporal: its own client environment, our data converter."""

from typing import Final

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter
from temporalio.envconfig import ClientConfig
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import GrpcCompression, RPCError, RPCStatusCode

from perdure.contracts.activities import SEARCH_AGENT, SEARCH_CONVERSATION, SEARCH_STATUS, SEARCH_TENANT

_log = structlog.get_logger(__name__)
_PYDANTIC: Final = PydanticPayloadConverter()


class SharedPayloadConverter(CompositePayloadConverter):
    """The SDK's converter for pydantic models, made once: the SDK asks for a new one for each run of a workflow and for
    each of its tasks, and each would compile a serializer and begin with no type known."""

    def __init__(self) -> None:
        super().__init__(*_PYDANTIC.converters.values())


DATA_CONVERTER: Final = DataConverter(payload_converter_class=SharedPayloadConverter)


def runtime(metrics: tuple[str, int] | None) -> Runtime | None:
    """A runtime that serves the SDK's own metrics, where an address is given and free."""
    if metrics is None:
        return None
    host, port = metrics
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=PrometheusConfig(bind_address=f"{host}:{port}")))
    except (RuntimeError, ValueError) as error:  # the core says so of a port that is taken
        _log.warning("metrics_not_served", port=port, error=type(error).__name__)
        return None


async def need_namespace(client: Client) -> None:
    """Nothing, where the namespace is there; what else may be wrong, a worker says as it starts.

    Raises: SystemExit with what to do, where Temporal has no such namespace.
    """
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            at, name = client.service_client.config.target_host, client.namespace
            raise SystemExit(
                f"Temporal at {at} has no namespace {name}: make it there, or set TEMPORAL_NAMESPACE"
            ) from None


async def connect(metrics: tuple[str, int] | None = None) -> Client:
    """A client by TEMPORAL_ADDRESS, namespace, TLS and API key, or by the profile file of `temporalio.envconfig`.

    Raises: RuntimeError where the server does not answer.
    """
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "127.0.0.1:7233")
    return await Client.connect(
        **config,
        data_converter=DATA_CONVERTER,
        runtime=runtime(metrics),
        grpc_compression=GrpcCompression.NONE,
    )


# --- The search attributes that an operator filters turns by, registered where the server does not know them yet.

NAMES = (SEARCH_TENANT, SEARCH_AGENT, SEARCH_CONVERSATION, SEARCH_STATUS)


async def register(client: Client) -> None:
    """Add what is missing. A hosted server may not let us: then the log says what to add by hand."""
    operator = client.operator_service
    try:
        known = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        missing = [name for name in NAMES if name not in known.custom_attributes]
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
            needed=", ".join(NAMES),
            what_to_do="add them to the namespace as Keyword, with the server's own tools",
            error=error.message,
        )
