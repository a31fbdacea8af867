"""Values of blocks, their system calls, and the order in which tenants use a process."""

import asyncio
import errno
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.sandbox.inspection import annotation
from perdure.activities.sandbox.jail import DENIED, UnknownArchitecture, deny_filter
from perdure.activities.sandbox.pool import FairQueue
from perdure.activities.sandbox.protocol import MAX_MESSAGE_CHARACTERS, FaultKind, Limits, fault
from perdure.activities.sandbox.worker import MAX_DEPTH, InvalidValue, PrintedText, PrintLimitExceeded, read_value
from perdure.core.text import is_clean
from tests.json_values import JSON

DEEP = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)


def _clean(value: object) -> bool:
    if isinstance(value, dict):
        return all(_clean(part) for part in (*value, *value.values()))
    return all(map(_clean, value)) if isinstance(value, list) else not isinstance(value, str) or is_clean(value)


@given(JSON)
def test_a_value_is_read_unchanged_or_refused_for_its_texts(value: object) -> None:
    text = json.dumps(value)
    if _clean(value):
        read = read_value(text, len(text))
        assert (read.json, read.size_bytes) == (value, len(text))
    else:
        with pytest.raises(InvalidValue):
            read_value(text, len(text))


@pytest.mark.parametrize("text", [7, "[1", "[" * 100_000, "1" * 5_000, DEEP, '"' + "x" * 262_144 + '"'])
def test_a_text_that_is_not_a_value_is_refused_with_its_kind(text: object) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_value(text, 262_144)
    assert refused.value.kind is (FaultKind.OUTPUT if "x" in str(text) else FaultKind.VALUE)


def test_output_is_cut_at_its_bound_and_the_worker_stopped() -> None:
    stopped: list[bool] = []
    printed = PrintedText(10, lambda: stopped.append(True))
    printed("stdout", "12345")
    printed("stderr", "67890")
    assert (printed.text, printed.exceeded, stopped) == ("1234567890", False, [])
    for _ in range(2):
        with pytest.raises(PrintLimitExceeded):
            printed("stdout", "x")
    assert (printed.text, printed.exceeded, stopped) == ("1234567890", True, [True])
    printed = PrintedText(4, lambda: None)
    with pytest.raises(PrintLimitExceeded):
        printed("stdout", "aé漢")
    assert printed.text == "aé", "a character that does not fit is left out whole"


def test_a_message_is_cut_and_cleaned_and_limits_are_the_smaller_of_each() -> None:
    told = fault(FaultKind.RAISED, "\x00" + "x" * 1_000_000, 3).message
    assert len(told) == MAX_MESSAGE_CHARACTERS
    assert told.startswith("\ufffdx") and told.endswith("x…")
    assert Limits(1, 20, 3, 40).within(Limits(10, 2, 30, 4)) == Limits(1, 2, 3, 4)
    with pytest.raises(ValueError):
        Limits(wall_seconds=0)


KINDS = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "unheard-of"])
SCHEMAS = st.recursive(
    st.booleans() | st.fixed_dictionaries({"type": KINDS | st.lists(KINDS, max_size=3)}),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"oneOf": st.lists(inner, max_size=3), "$ref": st.text()})
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(("schema", "told"), [
    *(({"type": "string", "enum": ["a"]}, "str"), ({"type": "integer"}, "int"), ({"type": "number"}, "float")),
    *(({"type": ["number", "null"]}, "None | float"), ({"type": "array"}, "list[Any]"), ({}, "Any")),
    ({"type": "array", "items": {"type": "boolean"}}, "list[bool]"),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, "dict[str, Any]"),
    ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}, "list[int] | str"),
    *(({"oneOf": [{"type": "string"}, {"minimum": 3}]}, "Any"), ({"$ref": "#/$defs/a", "type": "string"}, "Any")),
    (True, "Any"),
])  # fmt: skip
def test_an_annotation_matches_its_schema(schema: Any, told: str) -> None:
    assert annotation(schema) == told


@given(SCHEMAS)
def test_every_annotation_is_one_expression(schema: Any) -> None:
    compile(annotation(schema), "annotation", "eval")


X86, ARM, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NEEDED = {
    "x86_64": {"read": 0, "write": 1, "mmap": 9, "execve": 59, "futex": 202, "exit_group": 231, "getrandom": 318},
    "aarch64": {"read": 63, "write": 64, "mmap": 222, "execve": 221, "futex": 98, "exit_group": 94, "getrandom": 278},
}
"""Without these no program runs."""
AUDIT = {"x86_64": X86, "aarch64": ARM}
CLONE = {"x86_64": 56, "aarch64": 220}


def answer(program: bytes, audit: int, number: int, first: int = 0) -> int:
    """What the kernel would do with a call."""
    data = struct.pack("<IIQQ", number, audit, 0, first)
    steps = list(struct.iter_unpack("<HBBI", program))
    place, held = 0, 0
    for _ in range(10_000):
        code, if_true, if_false, value = steps[place]
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
            place += 1
            continue
        holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
        place += 1 + (if_true if holds else if_false)
    raise AssertionError("the program does not end")


@pytest.fixture(params=AUDIT)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_named_calls_are_refused_and_needed_calls_are_allowed(architecture: str) -> None:
    program = deny_filter(architecture)
    columns = {name: pair[architecture != "x86_64"] for name, pair in DENIED.items()}
    named = {name: number for name, number in columns.items() if number is not None}
    for name, number in named.items():
        assert answer(program, AUDIT[architecture], number) == ERRNO | errno.EPERM, name
    for name, number in NEEDED[architecture].items():
        assert answer(program, AUDIT[architecture], number) == ALLOW, name
    assert not set(NEEDED[architecture].values()) & set(named.values())


def test_calls_from_424_on_are_unknown_and_those_of_another_table_kill(architecture: str) -> None:
    program = deny_filter(architecture)
    assert answer(program, AUDIT[architecture], 423) == ALLOW
    for number in (424, 425, 435, 450, 10_000):
        assert answer(program, AUDIT[architecture], number) == ERRNO | errno.ENOSYS
    for audit in {X86, ARM, I386} - {AUDIT[architecture]}:
        assert answer(program, audit, 0) == KILL
    if architecture == "x86_64":
        assert answer(program, X86, 0x40000000) == KILL


def test_clone_makes_threads_only(architecture: str) -> None:
    program = deny_filter(architecture)
    as_libc_does = 0x3D0F00
    assert answer(program, AUDIT[architecture], CLONE[architecture], as_libc_does) == ALLOW
    for flags in (0, 0x11, 0x10000000, 0x01200011):
        assert answer(program, AUDIT[architecture], CLONE[architecture], flags) == ERRNO | errno.EPERM


def test_the_filter_is_valid_for_the_kernel_and_an_unknown_processor_has_none() -> None:
    steps = list(struct.iter_unpack("<HBBI", deny_filter("x86_64")))
    assert len(steps) < 4096
    for place, (_, if_true, if_false, _) in enumerate(steps):
        assert place + 1 + max(if_true, if_false) <= len(steps)
    with pytest.raises(UnknownArchitecture):
        deny_filter("riscv64")


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def entry_order(at_once: int, arrivals: str) -> str:
    """The order in which tenants of one letter get in, where each leaves before the next comes in."""
    queue = FairQueue(at_once)
    order: list[str] = []

    async def come(tenant_id: str) -> None:
        await queue.enter(tenant_id)
        order.append(tenant_id)

    tasks = [asyncio.create_task(come(tenant_id)) for tenant_id in arrivals]
    await settle()
    assert len(order) == min(at_once, len(arrivals))
    for _ in arrivals:
        queue.leave()
        await settle()
    await asyncio.gather(*tasks)
    return "".join(order)


@pytest.mark.parametrize(("at_once", "arrivals", "order"), [
    (1, "aaaab", "aabaa"), (1, "aaabbc", "aabcab"), (2, "aaaabb", "aaabab"), (3, "ab", "ab"), (1, "", ""),
])  # fmt: skip
async def test_each_tenant_gets_its_turn_however_much_another_queues(at_once: int, arrivals: str, order: str) -> None:
    assert await entry_order(at_once, arrivals) == order


async def test_a_caller_that_stops_waiting_takes_no_place() -> None:
    queue = FairQueue(1)
    await queue.enter("a")
    waiting = [asyncio.create_task(queue.enter(tenant_id)) for tenant_id in "bcd"]
    await settle()
    waiting[0].cancel()
    await settle()
    queue.leave()
    await settle()
    assert [task.done() for task in waiting] == [True, True, False]
    queue.leave()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_place_given_to_a_cancelled_caller_passes_to_the_next() -> None:
    queue = FairQueue(1)
    await queue.enter("a")
    first, second = (asyncio.create_task(queue.enter(tenant_id)) for tenant_id in "bc")
    await settle()
    queue.leave()
    first.cancel()
    await asyncio.wait_for(second, 30)
    with pytest.raises(asyncio.CancelledError):
        await first
    queue.leave()
    await asyncio.wait_for(queue.enter("d"), 30)
