"""The state of `skill_pipeline` (S0-10 to S0-16): what topologies share, and its skills."""

from typing import Final

from graph.nodes.fields import BUDGET, CONTROL, CONVERSATION, IDENTITY, INITIAL, MEMORY, REVIEW
from graph.state import Field, StateSchema

SKILLS: Final = (
    Field("llm_phase", INITIAL),
    Field("extracted", []),
    Field("selected_skill_ids", []),
    Field("injected_skill_ids", []),
    Field("injected_entity_ids", []),
    Field("active_skills", {}),
    Field("skill_injection_done", False),
)

STATE: Final = StateSchema((*IDENTITY, *CONTROL, *CONVERSATION, *BUDGET, *SKILLS, *REVIEW, *MEMORY))
