"""The platform's own rules (S0-70), in force for every agent; a tenant may make them stricter (policy/rules.py)."""

from contracts.skills import Rule, RuleAction, RuleTrigger
from policy.gate import RULE_MUTATING

RULE_FORCE_CLARIFY = "platform:force_clarify_after_failed_resolves"
MUTATING_CAPABILITIES = ("create_entity", "update_entity", "link_entities", "batch_*")
MOST_FAILED_RESOLVES = 3

PLATFORM_RULES = (
    Rule(
        id=RULE_MUTATING,
        on=RuleTrigger.BEFORE_TOOL_CALL,
        when={"capability": [*MUTATING_CAPABILITIES]},
        do=RuleAction.REQUIRE_HITL,
        message="this call changes what is kept of entities, so a person decides",
    ),
    Rule(
        id=RULE_FORCE_CLARIFY,
        on=RuleTrigger.AFTER_TOOL_CALL,
        when={"counter": {"name": "consecutive_failed_resolves", "at_least": MOST_FAILED_RESOLVES}},
        do=RuleAction.REQUIRE_HITL,
        message=f"{MOST_FAILED_RESOLVES} names in a row could not be resolved, so a person says which is meant",
    ),
)
