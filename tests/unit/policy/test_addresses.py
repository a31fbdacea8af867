"""Which addresses are counted together."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.addresses import counted_as


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
