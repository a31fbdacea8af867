"""A program of a few hundred bytes, without a libc, that makes system calls and writes down what each one answered."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BASE = 0x400000
_HEADERS = 64 + 56
_ARGUMENT_OPCODES = (b"\xbf", b"\xbe", b"\xba", b"\x41\xba", b"\x41\xb8", b"\x41\xb9")
"""mov to edi, esi, edx, r10d, r8d, r9d."""


@dataclass(frozen=True, slots=True)
class Call:
    """A system call by its number; a text among its arguments stands for its address."""

    number: int
    arguments: tuple[int | str, ...] = ()


def write_probe(path: Path, calls: Sequence[Call], ending: bytes = b"") -> None:
    """An executable for x86-64; `ending` is machine code that comes before the answers are written."""
    texts = [argument for call in calls for argument in call.arguments if isinstance(argument, str)]
    size = len(_code(calls, dict.fromkeys(texts, 0), ending))
    places: dict[str, int] = {}
    data = b""
    for text in texts:
        places[text] = _BASE + _HEADERS + size + len(data)
        data += text.encode() + b"\0"
    body = _code(calls, places, ending) + data
    length = _HEADERS + len(body)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", *(b"\x7fELF\x02\x01\x01", 2, 62, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, length, length, 0x1000)
    path.write_bytes(header + segment + body)
    path.chmod(0o755)


def answers(output: bytes) -> list[int]:
    """What each call answered, in order: the negative of an error's number."""
    return list(reversed(struct.unpack(f"<{len(output) // 8}q", output)))


def _code(calls: Sequence[Call], places: dict[str, int], ending: bytes) -> bytes:
    code = b""
    for call in calls:
        for opcode, argument in zip(_ARGUMENT_OPCODES, (*call.arguments, *[0] * 6), strict=False):
            value = places[argument] if isinstance(argument, str) else argument
            code += opcode + struct.pack("<I", value & 0xFFFFFFFF)
        code += b"\xb8" + struct.pack("<I", call.number) + b"\x0f\x05\x50"  # mov eax; syscall; push rax
    write = b"\xb8\x01\0\0\0\xbf\x01\0\0\0\x48\x89\xe6\xba" + struct.pack("<I", 8 * len(calls)) + b"\x0f\x05"
    leave = b"\xb8\x3c\0\0\0\x31\xff\x0f\x05"
    return code + ending + write + leave
