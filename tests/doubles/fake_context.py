"""A context assembly in memory: a registry, its tools as functions, verdicts, and the outputs that turns leave."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from perdure.contracts import context_assembly
from perdure.contracts.calls import ModelCallRequest, ModelReply
from perdure.contracts.errors import Problem
from perdure.contracts.turns import Usage
from perdure.contracts.values import digest_of
from perdure.core.agents.safety_keywords import safety_keywords_in
from perdure.core.calls.context_assembly import completeness_of, given_by, merge_arguments, merge_outputs, slice_hash

Args = dict[str, JsonValue]
WARM: Args = {"tone": "warm", "guidance": "Go slowly."}
CALM: dict[str, Args | Problem] = {"safety": {"hijacked": False}, "intent": {"intent": "ask"}, "empathy": WARM}
INTERVENTION = "Please talk to somebody now."


class Broken(Exception):
    """A tool gives no output."""


@dataclass(slots=True)
class FakeContext:
    """What a conversation has; it outlives its turns, and each may say another thing."""

    registry: Sequence[context_assembly.PipelineToolConfig]
    tools: Mapping[str, Callable[[Args], JsonValue]]
    said: list[str] = field(default_factory=lambda: ["hello"])
    verdicts: dict[str, Args | Problem] = field(default_factory=lambda: dict(CALM))
    turn_id: str = "turn-1"
    acknowledgements: tuple[str, ...] = ("thanks",)
    danger: Mapping[str, Sequence[str]] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)  # by tool, where it is another one than before
    outputs: dict[tuple[str, str], Args] = field(default_factory=dict)  # by turn and tool
    bundles: list[context_assembly.Bundle] = field(default_factory=list)
    given: list[tuple[str, Args]] = field(default_factory=list)  # (tool, arguments) of every run
    asked: list[str] = field(default_factory=list)  # the questions that were put to the model

    @property
    def plan(self) -> context_assembly.PlannedAssembly:
        names = {config.name for config in self.registry}
        return context_assembly.PlannedAssembly(
            tools=tuple(
                context_assembly.PlannedTool(
                    name=config.name, dependencies=tuple(each for each in config.dependencies if each in names),
                    optional=config.optional, hears=config.hears, injects=config.inject_inputs,
                    basis=self.bases.get(config.name, config.name),
                )
                for config in self.registry
            ),
            threshold=0.4,
            intents=("ask", "book"),
            default_intent="ask",
            intervention=INTERVENTION,
        )  # fmt: skip

    @property
    def memory(self) -> context_assembly.ContextMemory:
        newest = {bundle.tool: bundle for bundle in self.bundles}
        return context_assembly.ContextMemory(
            slice_hash=slice_hash(self.said, self.acknowledgements),
            kept=tuple(newest.values()),
            danger=safety_keywords_in(self.said[-1], "", self.danger),
        )

    @property
    def ran(self) -> list[str]:
        return [tool for tool, _ in self.given]

    def verdict(self, ask: ModelCallRequest) -> ModelReply:
        self.asked.append(ask.stage)
        said = self.verdicts[ask.stage]
        usage = Usage(input_tokens=3, output_tokens=1)
        if isinstance(said, Problem):
            return ModelReply(problem=said, usage=usage)
        return ModelReply(value=said, usage=usage)

    def assemble(self, ask: context_assembly.AssembleAsk) -> context_assembly.Assembled:
        config = next(each for each in self.registry if each.name == ask.tool)
        sources = [self.outputs[source.turn_id, source.tool] for source in ask.sources]
        heard: Args = {"said": [*self.said]} if config.hears else {}
        args = merge_arguments(config.defaults, config.inject_inputs, merge_outputs(sources), heard)
        self.given.append((ask.tool, args))
        try:
            output = self.tools[ask.tool](args)
            completeness = completeness_of(output)
        except (Broken, ValueError) as error:
            return context_assembly.Assembled(
                tool=ask.tool, problem=Problem(code="bundle_failed", message=f"{ask.tool}: {error}")
            )
        assert isinstance(output, dict)
        bundle = context_assembly.Bundle(
            tool=ask.tool, turn_id=self.turn_id, completeness=completeness, slice_hash=ask.slice_hash,
            upstream=ask.upstream, digest=digest_of(output),
            gives=given_by(output, {key for each in self.registry for key in each.inject_inputs}),
        )  # fmt: skip
        self.outputs[self.turn_id, ask.tool] = output
        self.bundles.append(bundle)
        return context_assembly.Assembled(tool=ask.tool, bundle=bundle)
