"""The faults of a turn by stage, and what they make of its end: `output.outcome` and `output.fault`.

Version 1 has no faults in its state. There, these functions change nothing."""

from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from perdure.contracts.errors import Problem
from perdure.contracts.messages import Patch
from perdure.core.calls.retries import is_permanent
from perdure.graph.nodes.call_model import STOP_CODES, OutputResult
from perdure.graph.nodes.fields import error_of
from perdure.graph.spec import State
from perdure.graph.state import DELETE, replace
from perdure.graph.topologies.clarify_solve.spec import FAULTS, STAGES, object_of, read_bucket, text_of

MAX_FAULT_CHARACTERS = 1_000


class Cause(StrEnum):
    """The cause of a fault. The code of a fault is its stage and its cause."""

    REFUSED = "refused"
    UNANSWERED = "unanswered"
    SPENT = "spent"
    LIMITED = "limited"
    FAILED = "failed"


class TurnOutcome(StrEnum):
    """The result of a turn."""

    DRAWN = "drawn"
    PREPARED = "prepared"
    ANSWERED = "answered"
    NOTHING_TO_DO = "nothing_to_do"
    FAILED = "failed"


_ENDING: Final = frozenset({Cause.REFUSED, Cause.UNANSWERED, Cause.SPENT})
"""The causes that end a turn as `failed`. A spent budget of the turn ends it as `limited`, as in every topology."""
_ADVISING: Final = ("marks", "feedback")
"""The stages without which there is a result, too."""


def reports_faults(state: State) -> bool:
    """Returns whether the topology's version reports its faults."""
    return FAULTS in state


def set_fault(state: State, stage: str, cause: Cause, message: str, problem: Problem | None = None) -> Patch:
    """Returns the patch that stores the fault of a stage. `problem` is the model's own, if it has one."""
    if not reports_faults(state):
        return {}
    fault: dict[str, JsonValue] = {"cause": cause.value, "message": message[:MAX_FAULT_CHARACTERS]}
    if problem is not None:
        fault["problem"] = problem.model_dump(mode="json", exclude_none=True)
    return {FAULTS: {stage: replace(fault)}}


def clear_faults(state: State, *stages: str) -> Patch:
    """Returns the patch that removes the faults of these stages, because another try has passed them."""
    known = read_bucket(state, FAULTS) if reports_faults(state) else {}
    found: dict[str, JsonValue] = {stage: DELETE for stage in stages if stage in known}
    return {FAULTS: found} if found else {}


def has_fault(state: State, stage: str) -> bool:
    """Returns whether a stage has failed."""
    return reports_faults(state) and stage in read_bucket(state, FAULTS)


def set_model_fault(state: State, stage: str, result: OutputResult) -> Patch:
    """Returns the patch with the fault of a structured output that did not come; empty if it came or was stopped."""
    if result.value is not None:
        return {}
    if result.problem is not None:
        return set_problem(state, stage, result.problem)
    message = f"the model gave no answer in the required form in {result.tries} attempts"
    if result.last is not None:
        message += f": {result.last.message}"
    return set_fault(state, stage, Cause.UNANSWERED, message, result.last)


def set_problem(state: State, stage: str, problem: Problem) -> Patch:
    """Returns the patch with the fault of a call that ended with a problem; empty for a stop."""
    status = STOP_CODES.get(problem.code)
    if status == "stopped":
        return {}
    cause = Cause.LIMITED if status else Cause.REFUSED if is_permanent(problem) else Cause.UNANSWERED
    return set_fault(state, stage, cause, problem.message, problem)


def set_end(state: State, stage: str, ends: Patch | None) -> Patch:
    """Returns the patch of a tool call that ended the run, with the fault of its stage."""
    error = (ends or {}).get("error")
    return {} if not error else {**(ends or {}), **set_problem(state, stage, Problem.model_validate(error))}


def fault_messages_of(state: State) -> list[str]:
    """Returns the message of each fault, in the order of the stages."""
    if not reports_faults(state):
        fault = text_of(state, "fault")
        return [fault] if fault else []
    return [str(fault["message"]) for _, fault in _faults(state)]


def fault_of(state: State) -> dict[str, JsonValue] | None:
    """Returns `output.fault`: the fault that ended the turn, or the first one; None if no stage failed."""
    faults = sorted(_faults(state), key=lambda each: not _ends_turn(state, *each))
    return _report(*faults[0]) if faults else None


def faults_of(state: State) -> list[dict[str, JsonValue]]:
    """Returns every fault in the form of `output.fault`, in the order of the stages."""
    return [_report(*each) for each in _faults(state)]


def _report(stage: str, fault: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {"stage": stage, "code": f"{stage}_{fault['cause']}", "message": fault["message"]}


def was_refused(state: State, *stages: str) -> bool:
    """Returns whether a provider has refused a model call of these stages, or of any if none is named."""
    refused = [stage for stage, fault in _faults(state) if fault["cause"] == Cause.REFUSED]
    return any(not stages or stage in stages for stage in refused)


def problem_of(state: State) -> Problem | None:
    """Returns the problem that ends the turn as `failed`, or None. It is the model's own, if it has one."""
    for stage, fault in _faults(state):
        if _ends_turn(state, stage, fault):
            own = Problem(code=str(_report(stage, fault)["code"]), message=str(fault["message"]))
            return Problem.model_validate(fault["problem"]) if "problem" in fault else own
    return None


def outcome_of(state: State) -> TurnOutcome:
    """Returns `output.outcome`."""
    faults = [stage for stage, _ in _faults(state)]
    if error_of(state) is not None or problem_of(state) is not None:
        return TurnOutcome.FAILED
    if object_of(state, "drawn"):
        return TurnOutcome.DRAWN
    if text_of(state, "classified") == "palette" or _is_answered(state):
        return TurnOutcome.ANSWERED
    if any(stage not in _ADVISING for stage in faults):
        return TurnOutcome.FAILED
    return TurnOutcome.PREPARED if object_of(state, "run") else TurnOutcome.NOTHING_TO_DO


def _is_answered(state: State) -> bool:
    return text_of(state, "classified") == "question" and text_of(state, "answered") == "yes"


def _faults(state: State) -> list[tuple[str, dict[str, JsonValue]]]:
    known = read_bucket(state, FAULTS) if reports_faults(state) else {}
    return [(stage, fault) for stage in STAGES if isinstance(fault := known.get(stage), dict)]


def _ends_turn(state: State, stage: str, fault: dict[str, JsonValue]) -> bool:
    """Returns whether the fault ends the turn. The answer to a question comes from the model alone."""
    if stage == "feedback" and text_of(state, "classified") == "question":
        return True
    return stage not in _ADVISING and fault["cause"] in _ENDING
