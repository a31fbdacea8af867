"""An agent's `approvals:` held against what can come true: a request that nobody can ever decide on is refused here.

Here and not in the policy's own form, since versions that were published without this check must still be read. Who is
there under a name is not known before the app runs; what nobody can be called is.
"""

import re
from collections.abc import Iterator

from pydantic import ValidationError

from contracts.approval_policy import ApprovalPolicy, OnTimeout
from perdure.apps.problems import AppProblem, did_you_mean
from perdure.apps.yaml_file import Place, YamlFile
from policy.seats import ROLES, USER_NAME

_APPROVALS = "approvals"


def unmet_policy(stated: object, file: YamlFile) -> list[AppProblem]:
    """What can never come true of the `approvals:` of `file`; nothing where it has not its form, told elsewhere."""
    try:
        policy = ApprovalPolicy.model_validate(stated)
    except ValidationError:
        return []
    return [file.problem((_APPROVALS, *place), why) for place, why in _unmet(policy)]


def _unmet(policy: ApprovalPolicy) -> Iterator[tuple[Place, str]]:
    for field in ("reviewer_role", "escalation_role"):
        role = getattr(policy, field)
        if role not in ROLES:
            yield (field,), f"unknown role {role!r}{did_you_mean(role, ROLES)}"
    for index, name in enumerate(policy.reviewers):
        if not re.fullmatch(USER_NAME, name):
            yield ("reviewers", index), _NOBODY.format(name)
    if policy.fallback_reviewer and not re.fullmatch(USER_NAME, policy.fallback_reviewer):
        yield ("fallback_reviewer",), _NOBODY.format(policy.fallback_reviewer)
    # An escalation begins a second time of the same length.
    open_seconds = policy.expires_seconds * (2 if policy.on_timeout is OnTimeout.ESCALATE else 1)
    if policy.fallback_reviewer and policy.fallback_after_seconds >= open_seconds:
        yield (
            ("fallback_after_seconds",),
            f"the fallback after {policy.fallback_after_seconds} s never comes: "
            f"the request is over after {open_seconds} s; lower fallback_after_seconds or raise expires_seconds",
        )


_NOBODY = "no user can be called {!r}: a name is small letters, digits, '.', '_' and '-', and begins with a letter"
