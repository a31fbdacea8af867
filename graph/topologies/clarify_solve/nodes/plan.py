"""planning_transformation_node: a plan of work on the tables as XML, checked; or a question (S4-18 to S4-32)."""

from dataclasses import dataclass, replace

from pydantic import JsonValue

from contracts.digests import sha256_hex
from contracts.messages import MessageRef, Patch
from graph.nodes.ask_object import Got, ask_object, note
from graph.nodes.reading import error_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.nodes.prompts import asked, at_fault, at_the_cap, described
from graph.topologies.clarify_solve.nodes.tools import done, told_faults
from graph.topologies.clarify_solve.shapes import PLAN, PLAN_XML
from graph.topologies.clarify_solve.state import bucket, counted, left, list_of, number, text_of

NO_QUESTION = "No question may be asked any more: early_exit must be false. Decide what is open yourself."
"""At the cap (S4-20), and always where the data stays with a client (S4-17)."""
ANOTHER = "The last plan could not be used. Make another one, not the same again."


@dataclass(frozen=True, slots=True)
class Planning:
    """One entry: the plan, one more call where its XML is missing, the check of the XML."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """An entry that follows a reply is not counted (S4-22); every other is (S4-29)."""
        if error_of(state) is not None:
            return {}
        entries = number(state, "entries") + (0 if text_of(state, "replied") else 1)
        own = left(entries=entries, replied=None, planned="failed", fault=None)
        said = self._said(state)
        got = await ask_object(state, ports, PLAN, said)
        if got.value is None:
            told = got.problem.message if got.problem else "the model gave no plan that could be read"
            return _patch(state, got, own, left(fault=told))
        value = got.value
        asks = {name: value[name] for name in ("question", "options", "visualization", "suggestions")}
        own = _both(own, left(**asks, early_exit="yes" if value["early_exit"] is True else "no"))
        if value["early_exit"] is True and not _closed(state):
            return _patch(state, got, own, left(planned="asks"))
        xml = str(value["xml"]).strip()
        if not xml and str(value["transformation"]).strip():
            more = await ask_object(state, ports, PLAN_XML, [*said, note(f"The plan: {value['transformation']}")])
            got = replace(more, tokens=got.tokens + more.tokens, cost_microusd=got.cost_microusd + more.cost_microusd)
            xml = str((more.value or {}).get("xml", "")).strip()
            if not xml:
                return _patch(state, got, own, left(planned="xsd", fault="the plan came without its XML"))
        return _patch(state, got, own, await self._checked(state, ports, xml))

    def _said(self, state: State) -> list[MessageRef]:
        fault = text_of(state, "fault")
        said = [described(state), *at_fault("plan", fault), *asked(state)]
        if _closed(state):
            said.append(note(NO_QUESTION))
        return [*said, note(ANOTHER)] if fault else said

    async def _checked(self, state: State, ports: Ports, xml: str) -> Patch:
        """What becomes of the XML. None at all leaves the table as it is (S4-31); the same again is no new try."""
        if not xml:
            return left(planned="ok", plan_xml="")
        digest, tried = sha256_hex(xml), list_of(state, "tried")
        if digest in tried:
            return left(planned="xsd", fault=text_of(state, "fault") or "this plan was tried before")
        remembered: list[JsonValue] = [*tried, digest]
        checked = await done(state, ports, "check_plan", xml=xml)
        if checked.ends:
            return checked.ends | left(planned="failed")
        if checked.fault or checked.output.get("ok") is not True:
            return left(planned="xsd", tried=remembered, fault=checked.fault or told_faults(checked.output))
        return left(planned="ok", tried=remembered, plan_xml=xml)


def _closed(state: State) -> bool:
    return at_the_cap(state) or bool(bucket(state, "input").get("is_client"))


def _both(one: Patch, other: Patch) -> Patch:
    first, second = one.get("processing"), other.get("processing")
    joined = {**(first if isinstance(first, dict) else {}), **(second if isinstance(second, dict) else {})}
    return {**one, **other, "processing": joined}


def _patch(state: State, got: Got, own: Patch, more: Patch) -> Patch:
    return {**got.cost, **counted(state, "planning"), **_both(own, more)}
