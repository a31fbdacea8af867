"""Free ports that stay the same."""

import socket
from pathlib import Path

import pytest

from perdure.local.ports import HOST, PortFile, conflicting_port, free_port, is_free


def test_a_remembered_port_is_below_those_of_outgoing_connections(tmp_path: Path) -> None:
    path, names = tmp_path / "ports.json", [f"part-{number}" for number in range(20)]
    ports = [*map(PortFile(path).take, names)]
    assert len(set(ports)) == 20 and all(port < 32_768 for port in ports)
    assert [*map(PortFile(path).take, names)] == ports


def test_a_port_of_another_process_is_replaced_and_the_new_one_remembered(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    before = PortFile(path).take("postgres")
    with socket.socket() as other:
        other.bind((HOST, before))
        other.listen()
        after = PortFile(path).take("postgres")
    assert after != before
    assert PortFile(path).take("postgres") == after


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"postgres": "x"}', '{"postgres": 99999999}', '{"postgres": -1}'])
def test_a_damaged_file_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(content)
    assert is_free(PortFile(path).take("postgres"))


def test_two_names_never_share_a_port_even_if_they_do_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    shared = PortFile(path).take("a")
    path.write_text(f'{{"a": {shared}, "b": {shared}}}')
    port_file = PortFile(path)
    assert port_file.take("a") != port_file.take("b")


def test_a_part_never_gets_a_reserved_port(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    configured = PortFile(path).take("postgres")
    assert PortFile(path, reserved=(configured,)).take("postgres") != configured


@pytest.mark.parametrize(("lines", "position"), [
    (["can't set frontend HTTP port {1}: address already in use", "bye"], 1),
    (['LOG:  could not bind IPv4 address "127.0.0.1": Address already in use', "FATAL:  no sockets"], 0),
    (["Error: listen EADDRINUSE 127.0.0.1:{1}"], 1),
    (["unable to open database file", "listening on {1}"], None),
    ([], None),
])  # fmt: skip
def test_the_conflicting_port_is_in_the_last_lines(lines: list[str], position: int | None) -> None:
    ports = (free_port(), free_port())
    expected = None if position is None else ports[position]
    assert conflicting_port(ports, [line.format(*ports) for line in lines]) == expected
    assert conflicting_port((), lines) is None
