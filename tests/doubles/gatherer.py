"""The desk's agent in the topology `context_assembly`: one optional tool of the context, which the desk has already."""

from perdure.contracts.agents import PublishedAgent
from perdure.contracts.context_assembly import ContextAssembly, PipelineToolConfig
from perdure.contracts.values import digest_of
from tests.doubles.target import app_agents

ASSEMBLY = ContextAssembly(
    pipeline="p",
    registry=(PipelineToolConfig(name="look", optional=True),),
    intents=("ask",),
    default_intent="ask",
    intervention="Talk to somebody.",
)


def gatherer() -> PublishedAgent:
    agent = next(agent for _, agent in app_agents()[0] if agent.definition.id == "desk")
    definition = agent.definition.model_copy(update={"topology": "context_assembly", "assembly": ASSEMBLY})
    return agent.model_copy(update={"definition": definition, "version": digest_of(definition.model_dump(mode="json"))})
