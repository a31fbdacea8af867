"""Free ports that stay the same."""

import socket
from pathlib import Path

import pytest

from perdure.local.ports import HOST, PortFile, free_port, is_free


def test_a_remembered_port_is_below_those_of_outgoing_connections(tmp_path: Path) -> None:
    path, names = tmp_path / "ports.json", [f"part-{number}" for number in range(20)]
    ports = [*map(PortFile(path).take, names)]
    assert len(set(ports)) == 20 and all(20_000 <= port < 32_768 for port in ports)
    assert [*map(PortFile(path).take, names)] == ports


def test_a_port_taken_by_another_program_is_replaced_and_remembered(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    before = PortFile(path).take("postgres")
    with socket.socket() as other:
        other.bind((HOST, before))
        other.listen()
        after = PortFile(path).take("postgres")
    assert after != before
    assert PortFile(path).take("postgres") == after


def test_no_chosen_port_can_be_taken_by_an_outgoing_connection() -> None:
    ports = [free_port() for _ in range(50)]
    assert all(20_000 <= port < 32_768 for port in ports) and free_port(ports) not in ports


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"postgres": "x"}', '{"postgres": 99999999}', '{"postgres": -1}'])
def test_a_damaged_port_file_only_loses_the_remembered_ports(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(content)
    assert is_free(PortFile(path).take("postgres"))


def test_two_names_never_share_a_port_even_if_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    shared = PortFile(path).take("a")
    path.write_text(f'{{"a": {shared}, "b": {shared}}}')
    book = PortFile(path)
    assert book.take("a") != book.take("b")
