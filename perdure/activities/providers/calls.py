"""Puts the tool calls of a streamed answer together from their pieces."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_CALLS_SENT = 512
"""Limit of the calls in one answer that are read. More are a runaway model. The first 64 run
(perdure/activities/model_answer.py)."""
_SERVER_TOOL_ID = "srvtoolu_"
"""The ids of Anthropic's calls of its own tools, which it has run itself."""
_MAX_REPEATS = 64
_UNREAD = -1
"""The position of a call beyond the limit."""


@dataclass(slots=True)
class OpenCall:
    """A call whose pieces still arrive."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    joined_id: str = ""
    """The other id of the piece with which the arguments began."""
    empty_id: str = ""
    """The id of a call without arguments that came before this one at the same index."""

    def so_far(self) -> str:
        """Returns the arguments so far."""
        self.arguments = ["".join(self.arguments)]
        return self.arguments[0]


@dataclass(slots=True)
class CallReader:
    """The calls of one answer."""

    calls: list[OpenCall] = field(default_factory=list)
    has_unread: bool = False
    """True if the answer had more calls than are read."""
    _position: dict[int, int] = field(default_factory=dict)
    """Maps the provider's index of a call to its position in `calls`."""

    def add(self, index: object, id_: str, name: str, arguments: str) -> None:
        """Adds a piece to a call, or starts another one."""
        if not isinstance(index, int):
            if self.has_unread:
                return
            index = len(self.calls) if name else len(self.calls) - 1
        position = self._position.get(index)
        if position == _UNREAD:
            return
        known = self.calls[position] if position is not None else None
        if known is None or starts_another_call(known, id_, name, arguments):
            if len(self.calls) >= MAX_CALLS_SENT:
                self.has_unread, self._position[index] = True, _UNREAD
                return
            self._position[index] = len(self.calls)
            call = OpenCall(id_, name or (known.name if known else ""))
            self.calls.append(call)
        else:
            call = known
            _note_ids(call, id_, name, arguments)
            call.id, call.name = call.id or id_, joined_name(call.name, name)
        call.arguments.append(arguments)

    def drop_server_calls(self) -> None:
        """Drops the calls of tools that the provider has run itself."""
        self.calls = [call for call in self.calls if not call.id.startswith(_SERVER_TOOL_ID)]

    def whole(self) -> Iterator[tuple[str, str, str]]:
        """Yields each call's id, name and arguments. A missing or repeated id is replaced."""
        seen: set[str] = set()
        separate = list(self._separate())
        self.has_unread = self.has_unread or len(separate) > MAX_CALLS_SENT
        for position, (call_id, name, arguments) in enumerate(separate[:MAX_CALLS_SENT]):
            id_ = call_id if call_id and call_id not in seen else f"call_{position}"
            while id_ in seen:
                id_ += "_"
            seen.add(id_)
            yield id_, name, arguments

    def _separate(self) -> Iterator[tuple[str, str, str]]:
        for call in self.calls:
            if call.empty_id:
                yield call.empty_id, call.name, ""
            yield call.id, call.name, without_repeats(call.so_far())


def starts_another_call(known: OpenCall, id_: str, name: str, arguments: str) -> bool:
    """Returns whether a piece on the index of the `known` call starts another call.

    Some servers send every call on index 0; others send a new id, and the name again, with every piece of one call.
    Arguments that are whole JSON are the end of a call. Without arguments so far, a new id is another call if the name
    is another one, or if the piece has no arguments or whole ones. A piece without a name starts a call only with a new
    id and an object, after an object that is not empty.
    """
    if not (name or id_) or (id_ and id_ == known.id):
        return False
    has_new_id, so_far = bool(id_ and known.id), known.so_far()
    if not name:
        begins = has_new_id and arguments.lstrip().startswith("{") and so_far.strip() != "{}"
        return begins and is_whole_json(so_far)
    if is_whole_json(so_far):
        return has_new_id or bool(arguments.strip())
    if not has_new_id:
        return False
    return name != known.name or not (so_far + arguments).strip() or (not so_far.strip() and is_whole_json(arguments))


def _note_ids(call: OpenCall, id_: str, name: str, arguments: str) -> None:
    """Finds a call without arguments before another one of the same tool. Arguments began under a new id with the
    name, and continue under it or without one: a server with a new id for each piece would have sent a third."""
    if call.joined_id:
        if id_ in ("", call.joined_id) and arguments and not call.empty_id:
            call.empty_id, call.id = call.id, call.joined_id
    elif name and id_ and call.id and id_ != call.id and arguments.strip() and not call.so_far().strip():
        call.joined_id = id_


def joined_name(known: str, piece: str) -> str:
    """Returns a call's name after another piece of it. A name that is repeated whole stays itself."""
    return known if piece == known else known + piece


def is_whole_json(text: str) -> bool:
    """Returns whether `text` is a JSON value to which nothing can be added, so not a number."""
    end = text.rstrip()[-1:]
    if not end or end not in '}]"le':
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def without_repeats(arguments: str) -> str:
    """Returns the arguments of a call whose object was sent again, or after an empty one. Different objects stay as
    they are: the call is not valid, and the model receives the error."""
    rest, texts = arguments.strip(), dict[str, str]()
    for number in range(_MAX_REPEATS):
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return arguments
        if not isinstance(value, dict):
            return arguments
        texts.setdefault(json.dumps(value, sort_keys=True), rest[:end])
        rest = rest[end:].lstrip()
        if not (rest or number):
            return arguments
        if not rest:
            break
    if len(texts) > 1:
        texts.pop("{}", None)
    return next(iter(texts.values())) if len(texts) == 1 and not rest else arguments
