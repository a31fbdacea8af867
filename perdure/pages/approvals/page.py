"""The page of one approval: the exact call, then what a reviewer needs for the decision, then the rest."""

import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from perdure.core.calls.arguments import InvalidArgumentText, parsed_value
from perdure.core.json_schema import field_type, follow_reference
from perdure.core.text import escape_terminal, flat, printable_runs
from perdure.pages.approvals.filters import InboxFilters, filters_of_visit
from perdure.pages.render import page
from perdure.pages.request import BrowserRequest, DraftPost, Form, SignedInVisit
from perdure.schemas.approvals import Approval
from perdure.schemas.identity import Me

_LINE_CHARACTERS = 80
"""Longer texts get a field of several lines."""
_MAX_SCHEMAS = 2_000
"""Maximum parts of a schema that are read for one field. Alternatives can be nested and can refer to themselves."""
_MAX_DEPTH = 6
_FieldKinds = tuple[set[str], list[str], bool]
_MAX_DIFF_LINES = 3_000
"""Longer inputs are shown in full, one below the other, because comparing them takes seconds."""
_CONTEXT_LINES = 2
"""Unchanged lines that are shown around each change."""
_WHOLE_DIFF_LINES = 40
"""Lines of both inputs together. Up to this number all lines are shown, so that the enclosing brackets are visible."""
LONG_CHARACTERS = 6_000
"""Longer arguments must be opened before a decision. Counted as JSON, with hidden characters written out."""
_EXCERPT_CHARACTERS = 1_500
_MAX_SEARCHED = 100
"""Maximum approvals that are searched for the next and the previous one."""
DEFAULT_REJECT_REASONS = ("The arguments are wrong.", "This is not needed.", "This is not allowed here.")
"""Reasons for a rejection if the agent's policy offers none."""
DECISION_LABELS = {"approve": "Approve", "edit": "Edit", "reject": "Reject", "respond": "Respond"}
DECISION_PAST_LABELS = {
    "approve": "approved",
    "edit": "edited and approved",
    "reject": "rejected",
    "respond": "responded to",
}


class Shape(StrEnum):
    """Kinds of form fields for a value."""

    LINE = "line"
    LINES = "lines"
    NUMBER = "number"
    CHOICE = "choice"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Field:
    """One argument in the form."""

    name: str
    key: str
    """The name of the form's field."""
    shape: Shape
    value: str
    is_given: bool
    """True if the call has this argument."""
    required: bool
    nullable: bool
    """True if an empty field can mean null."""
    allowed_values: str
    """The allowed values, in words."""
    meaning: str
    choices: tuple[str, ...] = ()
    fault: str = ""

    @property
    def given_key(self) -> str:
        """The name of the form field that states whether an optional argument is given."""
        return f"gives.{self.key}"


@dataclass(frozen=True, slots=True)
class EditedArguments:
    """The arguments that were read from the fields."""

    args: dict[str, Any]
    faults: Mapping[str, str]
    """Messages by argument."""


def fields_of(
    args: Mapping[str, Any],
    schema: Mapping[str, Any],
    typed: Form | None = None,
    faults: Mapping[str, str] | None = None,
) -> list[Field]:
    """Returns the fields for these arguments, with the earlier input and its faults. The fields are made from the
    tool's schema. A field that is not touched returns its value unchanged. Values that a form would change are edited
    as JSON: texts with a hidden character or another kind of line end. So is every value that is not a text, a number
    or a choice."""
    properties = schema.get("properties")
    declared: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    fields = []
    for number, name in enumerate([*declared, *(name for name in args if name not in declared)]):
        is_required = isinstance(required, list) and name in required
        field = _argument_field(
            name, f"arg.{number}", args, follow_reference(declared.get(name, {}), schema), schema, is_required
        )
        fields.append(_with_typed_text(field, typed, (faults or {}).get(name, "")))
    return fields


def read_fields(args: Mapping[str, Any], schema: Mapping[str, Any], form: Form) -> EditedArguments:
    """Reads the arguments from the form's fields."""
    arguments: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for field in fields_of(args, schema):
        text = form.raw(field.key)
        if text is None:  # the form had no such field, so the value stays
            if field.is_given:
                arguments[field.name] = args[field.name]
            continue
        if not text and not field.required and not form.get(field.given_key):
            continue
        try:
            arguments[field.name] = _parse_value(field, text)
        except InvalidArgumentText as error:
            faults[field.name] = str(error)
    return EditedArguments(arguments, faults)


def _argument_field(
    name: str, key: str, args: Mapping[str, Any], spec: Mapping[str, Any], root: Mapping[str, Any], required: bool
) -> Field:
    is_given = name in args
    kinds, choices, nullable = _read_kinds(spec, root, iter(range(_MAX_SCHEMAS))) or (set(), [], False)
    value = args.get(name)
    shape = _editable_shape(value, kinds, choices) if is_given and value is not None else _choose_shape(kinds, choices)
    if is_given and value is None and not nullable:
        shape = Shape.JSON
    return Field(
        name=name,
        key=key,
        shape=shape,
        value=_field_text(value, shape) if is_given else "",
        is_given=is_given,
        required=required,
        nullable=nullable,
        allowed_values=field_type(spec, root),
        meaning=flat(str(spec.get("description") or ""), 300),
        choices=tuple(choices) if shape is Shape.CHOICE else (),
    )


def _with_typed_text(field: Field, typed: Form | None, fault: str) -> Field:
    text = typed.raw(field.key) if typed is not None else None
    if typed is None or text is None:
        return field
    is_given = field.required or bool(typed.get(field.given_key))
    return Field(
        field.name, field.key, field.shape, text, is_given, field.required, field.nullable, field.allowed_values,
        field.meaning, field.choices, fault,
    )  # fmt: skip


def _read_kinds(
    spec: Mapping[str, Any], root: Mapping[str, Any], budget: Iterator[int], depth: int = 0
) -> _FieldKinds | None:
    """Returns the JSON types that a field can hold, its choices as JSON, and whether null is allowed.

    Returns None if that cannot be found out within `budget` parts.
    """
    if next(budget, None) is None or depth > _MAX_DEPTH:
        return None
    alternatives = spec.get("anyOf") or spec.get("oneOf")
    if isinstance(alternatives, list):
        kinds_read: list[_FieldKinds] = []
        for schema in alternatives:
            alternative = _read_kinds(follow_reference(schema, root), root, budget, depth + 1)
            if alternative is None:
                return None
            kinds_read.append(alternative)
        kinds = {name for names, _, _ in kinds_read for name in names}
        all_choices = [schema for _, choices, _ in kinds_read for schema in choices]
        all_named = all(choices or names == {"null"} for names, choices, _ in kinds_read)
        return (
            kinds - {"null"},
            all_choices if all_named else [],
            "null" in kinds or any(null for _, _, null in kinds_read),
        )
    options = [spec["const"]] if "const" in spec else spec.get("enum")
    declared = spec.get("type")
    kinds = set(map(str, declared)) if isinstance(declared, list) else {str(declared)} if declared else set()
    if isinstance(options, list):
        return kinds, [_to_json(schema) for schema in options if schema is not None], None in options
    if kinds == {"boolean"}:
        return kinds, ["true", "false"], False
    return kinds - {"null"} or kinds, [], "null" in kinds


def _choose_shape(kinds: set[str], choices: list[str]) -> Shape:
    if choices:
        return Shape.CHOICE
    if kinds == {"string"}:
        return Shape.LINE
    return Shape.NUMBER if kinds and kinds <= {"integer", "number"} else Shape.JSON


def _editable_shape(value: Any, kinds: set[str], choices: list[str]) -> Shape:
    """Returns how an existing value is edited, so that it comes back unchanged."""
    shape = _choose_shape(kinds, choices)
    if shape is Shape.CHOICE:
        return shape if _to_json(value) in choices else Shape.JSON
    if shape is Shape.NUMBER:
        return shape if isinstance(value, int | float) and not isinstance(value, bool) else Shape.JSON
    if (
        shape is not Shape.LINE
        or not isinstance(value, str)
        or "\t" in value
        or any(is_hidden for _, is_hidden in printable_runs(value))
    ):
        return Shape.JSON
    return Shape.LINES if "\n" in value or len(value) > _LINE_CHARACTERS else Shape.LINE


def _field_text(value: Any, shape: Shape) -> str:
    if shape in (Shape.LINE, Shape.LINES):
        return str(value) if value is not None else ""
    if value is None and shape is not Shape.JSON:
        return ""
    return json.dumps(value, indent=2 if shape is Shape.JSON else None, ensure_ascii=shape is Shape.JSON)


def _parse_value(field: Field, text: str) -> Any:
    if not text and field.nullable:
        return None
    if field.shape in (Shape.LINE, Shape.LINES):
        return text
    return _parse_number(text) if field.shape is Shape.NUMBER else parsed_value(text)


def _parse_number(text: str) -> Any:
    with suppress(InvalidArgumentText):
        value = parsed_value(text)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    raise InvalidArgumentText("it is not a number")


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a comparison."""

    sign: str
    """`-` for a removed line, `+` for an added one, a blank for an unchanged one, `…` for omitted unchanged lines."""
    text: str


def differences(before: Any, after: Any) -> list[DiffLine]:
    """Returns the lines that differ, with a few lines around them, or all lines if they are few. Empty if nothing
    differs."""
    return _compare_lines(_json_lines(before), _json_lines(after))


def text_differences(before: str, after: str) -> list[DiffLine]:
    """Returns the lines of two texts that differ, as `differences` does."""
    return _compare_lines(before.splitlines(), after.splitlines())


def _compare_lines(old: list[str], new: list[str]) -> list[DiffLine]:
    if len(old) + len(new) > _MAX_DIFF_LINES:
        return [] if old == new else [*(DiffLine("-", text) for text in old), *(DiffLine("+", text) for text in new)]
    lines: list[DiffLine] = []
    context = _CONTEXT_LINES if len(old) + len(new) > _WHOLE_DIFF_LINES else _WHOLE_DIFF_LINES
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        if lines:
            lines.append(DiffLine("…", ""))
        for change, start, end, to_start, to_end in group:
            if change == "equal":
                lines += [DiffLine(" ", text) for text in old[start:end]]
                continue
            lines += [DiffLine("-", text) for text in old[start:end]]
            lines += [DiffLine("+", text) for text in new[to_start:to_end]]
    return lines


def _json_lines(value: Any) -> list[str]:
    # Without commas, a line that is no longer the last one counts as unchanged.
    return json.dumps(value, indent=2, ensure_ascii=False, separators=("", ": ")).split("\n")


@dataclass(frozen=True, slots=True)
class RejectedForm:
    """A form of the page that was not carried out, and the reason."""

    form: Form | None = None
    reason: str = ""
    faults: Mapping[str, str] | None = None
    """Messages by argument."""


async def show_approval(
    visit: BrowserRequest, approval: Approval, rejected: RejectedForm | None = None, *, status: int = 200
) -> HTMLResponse:
    """Returns the page of this approval, with what was typed before."""
    rejected = rejected or RejectedForm()
    text = _approval_json(approval)
    is_opened = not is_long(approval) or _shows_all_arguments(visit, rejected)
    args = (approval.decision or {}).get("args") or approval.args
    before = (approval.revision or {}).get("args_before") or (approval.args if args is not approval.args else None)
    filters = filters_of_visit(visit, rejected.form)
    previous, following = await _neighboring_approvals(visit, approval, filters)
    return page(
        visit,
        "approval.html",
        status=status,
        approval=approval,
        args=args,
        is_opened=is_opened,
        long_characters=len(text),
        excerpt=text[:_EXCERPT_CHARACTERS],
        reviewer_changes=differences(before, args) if before is not None else None,
        changes_since_last=compare_with_last(approval, args),
        preview_lines=preview_differences(approval),
        fields=fields_of(approval.args, approval.args_schema, rejected.form, rejected.faults),
        allowed=approval.allowed_decisions if is_opened else [],
        rejected=rejected,
        typed=rejected.form or Form(()),
        previous=previous,
        following=following,
        past_labels=DECISION_PAST_LABELS,
        reasons=reasons_for(approval),
        roles=visit.me.roles if visit.me else [],
        can_be_withdrawn=can_be_withdrawn(approval, visit.me),
        filters=filters,
        list_query=filters.list_query,
        form_page=f"/review/{approval.id}{filters.list_query}",
    )


def can_be_withdrawn(approval: Approval, me: Me | None) -> bool:
    """Returns whether to show the withdrawal form: the approved call has not started, and the user has another role
    besides requester."""
    is_approved_call = approval.kind == "approval" and approval.status in ("approved", "edited")
    return is_approved_call and me is not None and bool(set(me.roles) - {"requester"})


def reasons_for(*approvals: Approval) -> list[str]:
    """Returns the predefined reasons for rejecting these approvals."""
    return list(dict.fromkeys(reason for each in approvals for reason in each.reject_reasons)) or list(
        DEFAULT_REJECT_REASONS
    )


def is_long(approval: Approval) -> bool:
    """Returns whether the arguments must be opened before a decision."""
    text = _approval_json(approval)
    return len(text) > LONG_CHARACTERS or len(escape_terminal(text)) > LONG_CHARACTERS


def _approval_json(approval: Approval) -> str:
    """Returns everything that the decision is about, as JSON."""
    content = approval.args if approval.kind != "checkpoint" else {"result": approval.result, "args": approval.args}
    return json.dumps(content, indent=2, ensure_ascii=False)


def compare_with_last(approval: Approval, args: Mapping[str, Any]) -> list[DiffLine] | None:
    """Compares the call with the last approved call of its tool. Returns None for the first one."""
    last_approved = approval.last_approved
    return differences(last_approved["args"], args) if last_approved else None


def preview_differences(approval: Approval) -> list[DiffLine] | None:
    """Returns what the call would change according to the tool's preview.

    Returns None if there is no preview or if it failed, and an empty list if nothing would change.
    """
    preview = approval.preview
    return differences(preview["before"], preview["after"]) if preview and not preview.get("fault") else None


def _shows_all_arguments(visit: BrowserRequest, rejected: RejectedForm) -> bool:
    """Returns whether the reviewer has opened all arguments, on this page or before sending the form."""
    return visit.request.query_params.get("whole") == "1" or (
        rejected.form is not None and rejected.form.get("whole") == "1"
    )


async def _neighboring_approvals(
    visit: BrowserRequest, approval: Approval, filters: InboxFilters
) -> tuple[Approval | None, Approval | None]:
    """Returns the approvals before and after this one in the list that it was opened from.

    If it is no longer in that list, the following one is the first of the list.
    """
    listing = visit.api.approvals.list(status="pending", brief=True, limit=_MAX_SEARCHED, **filters.api_parameters)
    approvals = (await listing).items
    index = next((position for position, listed in enumerate(approvals) if listed.id == approval.id), None)
    if index is None:
        return None, approvals[0] if approvals else None
    return approvals[index - 1] if index else None, approvals[index + 1] if index + 1 < len(approvals) else None


router = APIRouter()


@router.get("/review/{approval_id}")
async def approval(visit: SignedInVisit, approval_id: str) -> HTMLResponse:
    """Shows the page of an approval."""
    return await show_approval(visit, await visit.api.approvals.get(approval_id))


@router.post("/review/{approval_id}/draft")
async def draft(post: DraftPost, approval_id: str) -> HTMLResponse:
    """Shows the page again with the text that was typed. Nothing is sent."""
    approval = await post.visit.api.approvals.get(approval_id)
    reason = "Nothing has been sent yet. Your text is below."
    if not approval.allowed_decisions:
        reason = "Nothing was sent: you cannot decide on this request, or it is already decided. Your text is below."
    return await show_approval(post.visit, approval, RejectedForm(post.form, reason))


@router.get("/review/{approval_id}/state")
async def state(
    visit: SignedInVisit, approval_id: str, version: int, status: Annotated[str, Query(max_length=40)]
) -> Response:
    """Returns what has changed since the page was rendered, for its script; 204 if nothing has."""
    approval = await visit.api.approvals.get(approval_id)
    if (approval.version, approval.status) == (version, status):
        return Response(status_code=204)
    list_query, me = filters_of_visit(visit).list_query, visit.me or await visit.api.auth.me()
    return page(
        visit,
        "approval_update.html",
        approval=approval,
        was_open=status == "pending",
        list_query=list_query,
        could_decide=bool(set(me.roles) - {"requester"}),
        can_be_withdrawn=can_be_withdrawn(approval, me),
    )
