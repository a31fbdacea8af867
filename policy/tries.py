"""How often a model is asked for an object, and in which form (S4-23, S4-24).

Six tries at most: a JSON schema first, then a function to call, three times over. What only another set-up could mend
(a key, a model's name) ends them at once.
"""

from contracts.errors import Problem
from contracts.model import OutputForm
from policy.budget import TURN_CODES
from policy.day_budget import DAY_CODES
from policy.refusals import STOPPED

ROUNDS = 3
TRIES: tuple[OutputForm, ...] = (OutputForm.JSON_SCHEMA, OutputForm.FUNCTION) * ROUNDS
"""The forms in their order, one a call."""
HOPELESS = frozenset(
    {
        *("model_auth", "model_billing", "model_not_found", "model_setup", "model_budget", STOPPED.code),
        *TURN_CODES,
        *DAY_CODES,
    }
)
"""Problems that another try would meet again."""


def is_hopeless(problem: Problem) -> bool:
    """Whether no further try is worth its price."""
    return problem.code in HOPELESS
