"""Which addresses are counted together, and which are of this machine."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.request_origin import Proxies, counted_as, is_of_this_machine


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


PROXIES = Proxies.of(("10.0.0.7", "10.1.0.0/16", "fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("198.51.100.1", [], "198.51.100.1"),
        ("198.51.100.1", ["203.0.113.9"], "198.51.100.1"),  # not a proxy: whatever it says
        ("127.0.0.1", ["203.0.113.9"], "127.0.0.1"),  # nor is this machine, unless it is named
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", [""], "10.0.0.7"),
        ("10.0.0.7", ["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.7", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.7", ["1.1.1.1, 203.0.113.9"], "203.0.113.9"),  # what a client claims comes first
        ("10.0.0.7", ["1.1.1.1", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.7", ["203.0.113.9, 10.1.2.3"], "203.0.113.9"),  # a proxy behind a proxy
        ("10.0.0.7", ["9.9.9.9, 203.0.113.9, 10.1.2.3, fd00::5"], "203.0.113.9"),
        ("10.0.0.7", ["10.1.9.9, 10.1.2.3"], "10.1.9.9"),  # a client inside
        ("10.0.0.7", ["203.0.113.9:51234"], "203.0.113.9"),
        ("10.0.0.7", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("10.0.0.7", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.7", ["unknown"], "10.0.0.7"),
        ("10.0.0.7", ["203.0.113.9, unknown"], "10.0.0.7"),
        ("10.0.0.7", ["203.0.113.9, unknown, 10.1.2.3"], "10.1.2.3"),
        ("10.0.0.8", ["203.0.113.9"], "10.0.0.8"),
        ("", ["203.0.113.9"], ""),
    ],
)
def test_a_client_behind_proxies_is_the_last_address_that_no_proxy_has(
    peer: str, forwarded_for: list[str], client: str
) -> None:
    assert PROXIES.client(peer, forwarded_for) == client


@given(st.ip_addresses(), st.lists(st.text(max_size=30), max_size=3))
def test_without_proxies_every_peer_is_the_client_whatever_it_says(
    peer: IPv4Address | IPv6Address, said: list[str]
) -> None:
    assert Proxies().client(str(peer), said) == str(peer)
    assert Proxies().scheme(str(peer), ["https"], "http") == "http"


@given(st.lists(st.ip_addresses(v=4).map(str), max_size=4), st.ip_addresses(v=4).map(str))
def test_what_a_client_writes_before_its_own_address_changes_nothing(claimed: list[str], own: str) -> None:
    if not PROXIES.include(own):
        assert PROXIES.client("10.0.0.7", [", ".join([*claimed, own])]) == own


@pytest.mark.parametrize(
    ("peer", "said", "scheme"),
    [
        ("10.0.0.7", ["https"], "https"),
        ("10.0.0.7", ["HTTPS "], "https"),
        ("10.0.0.7", ["https", "http"], "http"),
        ("10.0.0.7", ["https, http"], "http"),
        ("10.0.0.7", ["wss"], "http"),
        ("10.0.0.7", [], "http"),
        ("198.51.100.1", ["https"], "http"),
    ],
)
def test_only_a_proxy_says_that_a_browser_spoke_tls(peer: str, said: list[str], scheme: str) -> None:
    assert PROXIES.scheme(peer, said, "http") == scheme


@pytest.mark.parametrize("written", ["*", "proxy.example", "10.0.0.7/8", "10.0.0"])
def test_a_proxy_is_an_address_or_a_network(written: str) -> None:
    with pytest.raises(CallerError, match="proxy_invalid"):
        Proxies.of((written,))
