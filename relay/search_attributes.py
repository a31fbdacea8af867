"""The search attributes that an operator filters turns by, registered where the server does not know them yet."""

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from contracts.workflows import SEARCH_AGENT, SEARCH_CONVERSATION, SEARCH_STATUS, SEARCH_TENANT

NAMES = (SEARCH_TENANT, SEARCH_AGENT, SEARCH_CONVERSATION, SEARCH_STATUS)
_log = structlog.get_logger(__name__)


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
