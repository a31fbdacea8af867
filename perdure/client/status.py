"""The API call for the status of a deployment."""

from perdure.client.requests import Call, get, parsed_as, path
from perdure.schemas.status import DeploymentStatus


def get_status() -> Call[DeploymentStatus]:
    """Returns the status of the deployment, for reviewers, administrators and operators."""
    return get(path("status"), parsed_as(DeploymentStatus))
