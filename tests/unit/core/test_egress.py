"""Where the program may send something: named hosts, over TLS, and never into the network's own workings."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.egress import allowed_target, is_reachable, target_of

HOSTS = ("hooks.example.org", "*.corp.test", "localhost:9000")
PUBLIC = target_of("https://hooks.example.org/x")
LOCAL = target_of("http://localhost:9000/")


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://hooks.example.org/a?b=c", "hooks.example.org", 443),
        ("https://HOOKS.example.org:8443", "hooks.example.org", 8443),
        ("https://a.corp.test/", "a.corp.test", 443),
        ("https://b.a.corp.test./", "b.a.corp.test", 443),
        ("http://localhost:9000/hook", "localhost", 9000),
    ],
)
def test_a_host_that_the_operator_names_is_allowed(url: str, host: str, port: int) -> None:
    target = allowed_target(url, HOSTS)
    assert (target.host, target.port) == (host, port)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.org",
        "//hooks.example.org",
        "https://",
        "https:///x",
        "http://hooks.example.org/",
        "ftp://hooks.example.org/",
        "file:///etc/passwd",
        "https://other.example.org/",
        "https://corp.test/",
        "https://evilcorp.test/",
        "https://hooks.example.org.evil.test/",
        "https://hooks.example.org@evil.test/",
        "https://user:password@hooks.example.org/",
        "https://evil.test\\@hooks.example.org/",
        "https://hooks.example.org/#x",
        "https://hooks.example.org/ x",
        "https://hooks.example.org:0x50/",
        "https://hooks.example.org:99999/",
        "https://[::1/",
        "http://localhost:9001/",
        "http://127.0.0.1:9000/",
        "https://169.254.169.254/latest/meta-data",
        "https://hooks.exämple.org/",
    ],
)
def test_any_other_address_is_refused(url: str) -> None:
    with pytest.raises(CallerError, match="address_refused"):
        allowed_target(url, HOSTS)


@pytest.mark.parametrize(
    ("address", "public", "private"),
    [
        ("93.184.216.34", True, True),
        ("2606:2800:220:1::1", True, True),
        ("10.0.0.7", False, True),
        ("192.168.1.1", False, True),
        ("172.16.0.1", False, True),
        ("fd00::7", False, True),
        ("::ffff:10.0.0.7", False, True),
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("::ffff:127.0.0.1", False, False),
        ("169.254.169.254", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("fe80::1%eth0", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("ff02::1", False, False),
        ("255.255.255.255", False, False),
        ("240.0.0.1", False, False),
        ("no address", False, False),
    ],
)
def test_what_a_name_stands_for_decides_too(address: str, public: bool, private: bool) -> None:
    assert is_reachable(PUBLIC, address, private=False) is public
    assert is_reachable(PUBLIC, address, private=True) is private
    assert is_reachable(LOCAL, address, private=True) is (address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"))


@given(st.text(max_size=60))
def test_whatever_is_allowed_is_one_of_the_named_hosts(text: str) -> None:
    for url in (text, f"https://{text}", f"https://hooks.example.org{text}"):
        try:
            target = allowed_target(url, HOSTS)
        except CallerError:
            continue
        assert target.host in ("hooks.example.org", "localhost") or target.host.endswith(".corp.test")


@given(st.ip_addresses())
def test_without_a_private_network_only_what_is_global_is_gone_to(address: IPv4Address | IPv6Address) -> None:
    if is_reachable(PUBLIC, str(address), private=False):
        assert address.is_global or "ffff:" in str(address)
