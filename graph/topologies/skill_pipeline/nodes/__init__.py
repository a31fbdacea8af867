"""The ten nodes of `skill_pipeline`, by their ids."""

from graph.nodes.await_verdict import AwaitVerdict
from graph.nodes.call_model import CallModel
from graph.nodes.fields import INITIAL, SYNTHESIS
from graph.nodes.run_tools import RunTools
from graph.spec import Node
from graph.topologies.skill_pipeline.nodes.call_phase import CallPhase
from graph.topologies.skill_pipeline.nodes.check_approval import CheckApproval
from graph.topologies.skill_pipeline.nodes.format_output import FormatOutput
from graph.topologies.skill_pipeline.nodes.inject_skills import InjectSkills
from graph.topologies.skill_pipeline.nodes.load_memory import LoadMemory
from graph.topologies.skill_pipeline.nodes.select_skills import SKILL_PATTERN, SelectSkills
from graph.topologies.skill_pipeline.nodes.set_system_prompt import SetSystemPrompt

_CALL = CallModel(extract_pattern=SKILL_PATTERN)

NODES: dict[str, Node] = {
    "system_prompt_node": SetSystemPrompt(),
    "memory_node": LoadMemory(),
    "resume_guard": AwaitVerdict(),
    "initial_llm_call": CallPhase(INITIAL, _CALL),
    "tool_node": RunTools(),
    "skill_select_node": SelectSkills(),
    "skill_inject_node": InjectSkills(),
    "approval_node": CheckApproval(),
    "synthesis_llm_call": CallPhase(SYNTHESIS, _CALL),
    "output_format": FormatOutput(),
}
