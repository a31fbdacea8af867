"""Which addresses are counted together, and which are of this machine."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.addresses import counted_as, is_of_this_machine


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("testclient", "testclient"),
        ("x" * 500, "x" * 60),
    ],
)
def test_an_address_is_counted_with_those_that_its_owner_can_take(host: str, name: str) -> None:
    assert counted_as(host) == name


@given(st.ip_addresses())
def test_addresses_of_two_networks_are_counted_apart(address: IPv4Address | IPv6Address) -> None:
    other = type(address)(int(address) ^ (1 << (address.max_prefixlen - 1)))
    assert counted_as(str(address)) != counted_as(str(other))


@pytest.mark.parametrize(
    ("caller", "host", "is_of_it"),
    [
        ("127.0.0.1", "127.0.0.1:8080", True),
        ("127.0.0.1", "LOCALHOST:8080", True),
        ("::1", "[::1]:8080", True),
        ("::ffff:127.0.0.1", "localhost", True),
        ("127.8.9.10", "127.0.0.1", True),
        ("10.0.0.5", "localhost:8080", False),
        ("127.0.0.1", "evil.example:8080", False),  # a name of somebody else's that leads here
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "127.0.0.1@evil.example", False),
        ("127.0.0.1", "10.0.0.5:8080", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "[::1", False),
        ("", "localhost", False),
        ("testclient", "localhost", False),
    ],
)
def test_only_this_machine_asking_itself_is_of_this_machine(caller: str, host: str, is_of_it: bool) -> None:
    assert is_of_this_machine(caller, host) is is_of_it


@given(st.ip_addresses(), st.text(max_size=30))
def test_no_address_but_a_loopback_one_is_of_this_machine_whatever_host_it_names(
    address: IPv4Address | IPv6Address, host: str
) -> None:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    assert not is_of_this_machine(str(address), host) or (mapped or address).is_loopback
