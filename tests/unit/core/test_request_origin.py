"""Where a request comes from: its address, its host and its site."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core import request_origin
from perdure.core.request_origin import (
    AllowedHosts,
    HostValue,
    Proxies,
    counted_as,
    exposure_refusal,
    local_path,
    parse_host,
    probe_refusal,
)

Address = IPv4Address | IPv6Address


@pytest.mark.parametrize(("host", "name"), [
    ("127.0.0.1", "127.0.0.1"), ("::ffff:10.1.2.3", "10.1.2.3"), ("fe80::1%eth0", "fe80::/64"),
    ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
    ("", ""), ("testclient", "testclient"), ("x" * 500, "x" * 60),
])  # fmt: skip
def test_addresses_that_one_client_can_use_are_counted_together(host: str, name: str) -> None:
    assert counted_as(host) == name


@given(st.ip_addresses())
def test_addresses_of_two_networks_are_counted_apart(address: Address) -> None:
    other = type(address)(int(address) ^ (1 << (address.max_prefixlen - 1)))
    assert counted_as(str(address)) != counted_as(str(other))


@pytest.mark.parametrize(("caller", "hosts", "is_of_it"), [
    ("127.0.0.1", ["127.0.0.1:8080", "LOCALHOST:8080"], True),
    ("::1", ["[::1]:8080"], True),
    ("::ffff:127.0.0.1", ["localhost"], True),
    ("127.8.9.10", ["127.0.0.1"], True),
    ("10.0.0.5", ["localhost:8080"], False),
    ("127.0.0.1", ["evil.example:8080", "10.0.0.5:8080", "", "[::1"], False),  # names of another owner lead here
    ("127.0.0.1", ["localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example"], False),
    ("", ["localhost"], False),
    ("testclient", ["localhost"], False),
])  # fmt: skip
def test_only_this_machines_own_requests_count_as_local(caller: str, hosts: list[str], is_of_it: bool) -> None:
    assert {host: request_origin.is_of_this_machine(caller, host) for host in hosts} == dict.fromkeys(hosts, is_of_it)


@given(st.ip_addresses(), st.text(max_size=30))
def test_only_a_loopback_address_counts_as_local(address: Address, host: str) -> None:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    assert not request_origin.is_of_this_machine(str(address), host) or (mapped or address).is_loopback


PROXIES = Proxies.of(("10.0.0.7", "10.1.0.0/16", "fd00::/8"))


@pytest.mark.parametrize(("peer", "forwarded_for", "client"), [
    ("198.51.100.1", ["203.0.113.9"], "198.51.100.1"),  # not a proxy: whatever it says
    ("127.0.0.1", ["203.0.113.9"], "127.0.0.1"),  # nor is this machine, unless it is named
    ("10.0.0.7", [""], "10.0.0.7"),
    ("::ffff:10.0.0.7", ["203.0.113.9"], "203.0.113.9"),
    *(("10.0.0.7", said, "203.0.113.9") for said in (["1.1.1.1, 203.0.113.9"], ["1.1.1.1", "203.0.113.9"])),
    ("10.0.0.7", ["9.9.9.9, 203.0.113.9, 10.1.2.3, fd00::5"], "203.0.113.9"),  # a proxy behind a proxy
    ("10.0.0.7", ["10.1.9.9, 10.1.2.3"], "10.1.9.9"),  # a client inside
    ("10.0.0.7", ["203.0.113.9:51234"], "203.0.113.9"),
    *(("10.0.0.7", [address], "2001:db8::1") for address in ("[2001:db8::1]:443", "2001:db8::1")),
    ("10.0.0.7", ["203.0.113.9, unknown"], "10.0.0.7"),
    ("10.0.0.7", ["203.0.113.9, unknown, 10.1.2.3"], "10.1.2.3"),
    ("10.0.0.8", ["203.0.113.9"], "10.0.0.8"),
    ("", ["203.0.113.9"], ""),
])  # fmt: skip
def test_the_clients_address_is_the_last_that_is_no_proxy(peer: str, forwarded_for: list[str], client: str) -> None:
    assert PROXIES.client(peer, forwarded_for) == client


@given(st.ip_addresses(), st.lists(st.text(max_size=30), max_size=3))
def test_without_proxies_the_peer_is_the_client_whatever_its_headers(peer: Address, said: list[str]) -> None:
    assert Proxies().client(str(peer), said) == str(peer)
    assert Proxies().scheme(str(peer), ["https"], "http") == "http"


@given(st.lists(st.ip_addresses(v=4).map(str), max_size=4), st.ip_addresses(v=4).map(str))
def test_addresses_that_a_client_adds_before_its_own_are_ignored(claimed: list[str], own: str) -> None:
    if not PROXIES.include(own):
        assert PROXIES.client("10.0.0.7", [", ".join([*claimed, own])]) == own


@pytest.mark.parametrize(("peer", "said", "scheme"), [
    ("10.0.0.7", ["https"], "https"), ("10.0.0.7", ["HTTPS "], "https"), ("10.0.0.7", ["https", "http"], "http"),
    ("10.0.0.7", ["https, http"], "http"), ("10.0.0.7", ["wss"], "http"), ("198.51.100.1", ["https"], "http"),
])  # fmt: skip
def test_only_a_proxys_headers_say_that_a_browser_used_tls(peer: str, said: list[str], scheme: str) -> None:
    assert PROXIES.scheme(peer, said, "http") == scheme


@pytest.mark.parametrize("written", ["*", "proxy.example", "10.0.0.7/8", "10.0.0"])
def test_a_proxy_is_an_address_or_a_network(written: str) -> None:
    with pytest.raises(CallerError, match="proxy_invalid"):
        Proxies.of((written,))


LOCAL = AllowedHosts.of((), listens_on="127.0.0.1")
PUBLIC = AllowedHosts.of(
    ("ops.example.org", "intern.example.org:8443", "*.Team.example.org", "[fd00::7]"),
    public_url="https://Perdure.example.org:444",
    listens_on="192.0.2.7",
)


@pytest.mark.parametrize(("text", "found"), [
    ("localhost", HostValue("localhost")),
    ("LocalHost:8080", HostValue("localhost", 8080)),
    ("perdure.example.org.", HostValue("perdure.example.org")),
    ("perdure.example.org.:443", HostValue("perdure.example.org", 443)),
    ("127.0.0.1:65535", HostValue("127.0.0.1", 65_535)),
    ("[0:0:0:0:0:0:0:1]:80", HostValue("::1", 80)),
    ("worker_2.example", HostValue("worker_2.example")),
    *((text, None) for text in (
        "", " localhost", "localhost ", "localhost:", "localhost:0", "localhost:65536", "localhost:080808",
        "localhost:80:80", "localhost:٣", "evil@localhost", "localhost@evil.example", "localhost#evil.example",
        "localhost/evil", "localhost,evil.example", "localhost..", ".localhost", "loc%61lhost", "bücher.example",
        "127.1", "2130706433", "0x7f.1", "127.0.0.1.5", "::1", "[::1", "[::1]x", "[::1%25eth0]", "[127.0.0.1]",
        "a" * 64, "a." * 130 + "b", "http://localhost", "*",
    )),
])  # fmt: skip
def test_a_host_header_is_a_name_or_an_address_with_a_port_at_most(text: str, found: HostValue | None) -> None:
    assert parse_host(text) == found


@pytest.mark.parametrize(("hosts", "answered", "refused"), [
    (LOCAL, ["localhost:8080", "127.0.0.1:8080", "127.9.8.7", "[::1]:8080", "[::ffff:127.0.0.1]", "LOCALHOST.:1"],
        "evil.example:8080 evil.localhost localhost.evil.example 127.0.0.1.evil.example 0.0.0.0 [::] 192.0.2.7"),
    (
        PUBLIC,  # a proxy or a tunnel may have any port
        ["perdure.example.org", "perdure.example.org:9999", "localhost", "192.0.2.7:8080", "ops.example.org:1"],
        "192.0.2.8 intern.example.org intern.example.org:8444",
    ),
    (PUBLIC, ["intern.example.org:8443", "a.team.example.org", "a.b.team.example.org:8080", "[fd00:0::7]:80"],
        "team.example.org evilteam.example.org example.org"),
    (AllowedHosts.of(("*",)), ["evil.example"], ""),
    (AllowedHosts.of(("*.localhost",)), ["demo.localhost:8080"], ""),
    (AllowedHosts.of(("*.a.example:81",)), ["b.a.example:81"], "b.a.example:82"),
    (AllowedHosts.of((), listens_on="0.0.0.0", public_url="http://p.example"), [], "0.0.0.0"),
    (AllowedHosts.of((), listens_on="fd00::9"), ["[fd00::9]"], ""),
    (AllowedHosts.of((), listens_on="box.lan"), ["box.lan:8080"], ""),
])  # fmt: skip
def test_loopback_and_configured_hosts_are_answered(hosts: AllowedHosts, answered: list[str], refused: str) -> None:
    assert [host for host in answered if not hosts.allow([host])] == []
    assert [host for host in refused.split() if hosts.allow([host])] == []


@pytest.mark.parametrize("headers", [[], [""], ["localhost", "localhost"], ["localhost", "evil.example"], ["evil x"]])
def test_a_missing_doubled_or_invalid_host_header_is_always_refused(headers: list[str]) -> None:
    assert not LOCAL.allow(headers) and not AllowedHosts.of(("*",)).allow(headers)


@given(st.text(max_size=40))
def test_a_server_without_settings_answers_only_loopback_names(text: str) -> None:
    if LOCAL.allow([text]):
        host = text.lower()
        assert host.startswith(("localhost", "127.", "[")) and "evil" not in host


@given(st.from_regex(r"[a-z0-9-]{1,20}(\.[a-z0-9-]{1,20}){0,3}(:[0-9]{1,5})?", fullmatch=True), st.booleans())
def test_case_and_a_final_dot_change_nothing(text: str, dotted: bool) -> None:
    host, colon, port = text.partition(":")
    other = host.upper() + ("." if dotted else "") + colon + port
    for hosts in (LOCAL, PUBLIC):
        assert hosts.allow([text]) is hosts.allow([other])


@pytest.mark.parametrize(("patterns", "url"), [
    *(([pattern], "") for pattern in ("", "*.", "**", "a b", "*.*.example", "https://a.example", "a.ex/", "::1")),
    *(([], url) for url in ("https://user:word@a.example", "https://a.example:x", "https://[::1")),
])  # fmt: skip
def test_a_pattern_or_a_public_url_without_a_plain_host_is_refused(patterns: list[str], url: str) -> None:
    with pytest.raises(CallerError) as refused:
        AllowedHosts.of(tuple(patterns), public_url=url)
    assert refused.value.code == "host_pattern_invalid"


@pytest.mark.parametrize(("everywhere", "hosts"), [
    (True, ["0.0.0.0", "::", "[::]", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0", "", "*", "0", "0x0", "000.0"]),
    (False, ["127.0.0.1", "::1", "localhost", "192.0.2.7", "box.lan"]),
])  # fmt: skip
def test_a_server_on_all_addresses_needs_a_public_url(everywhere: bool, hosts: list[str]) -> None:
    for host in hosts:
        assert request_origin.listens_everywhere(host) is bool(exposure_refusal(host, "")) is everywhere, host
        assert exposure_refusal(host, "https://perdure.example.org") == ""


def test_the_embedded_stack_says_where_it_would_not_find_its_api() -> None:
    assert {probe_refusal(host) for host in ("", "127.0.0.1", "localhost", "0.0.0.0")} == {""}
    assert all(host in probe_refusal(host) for host in ("192.0.2.7", "::", "::1", "127.0.0.2", "box.lan"))


@pytest.mark.parametrize(("host", "origin", "site", "foreign"), [
    ("perdure.test", "", "", False),
    ("perdure.test", "https://perdure.test", "same-origin", False),
    ("perdure.test:8080", "http://perdure.test:8080", "", False),
    ("Perdure.test", "https://perdure.TEST", "", False),
    *(("perdure.test", "", site, False) for site in ("none", "same-origin")),
    *(("perdure.test", "", site, True) for site in ("cross-site", "same-site")),
    ("perdure.test", "https://evil.test", "same-origin", True),
    ("perdure.test", "https://perdure.test.evil.test", "", True),
    ("perdure.test", "https://perdure.test@evil.test", "", True),
    ("perdure.test", "https://perdure.test:8443", "", True),
    ("perdure.test", "null", "", True),
    ("", "https://perdure.test", "", True),
])  # fmt: skip
def test_a_request_from_another_site_is_known_by_its_headers(host: str, origin: str, site: str, foreign: bool) -> None:
    assert request_origin.is_foreign(host, origin, site) is foreign


def test_a_redirect_stays_on_this_server_or_goes_home() -> None:
    for path in ("/", "/review", "/review/x?filter=mine&n=2#row", "/a//b"):
        assert local_path(path, "/home") == path
    away = ["https://evil.test", "//evil.test", "/\\evil.test", "/\t/evil.test", "/a\\b", "/\n", "javascript:x"]
    assert {local_path(path, "/home") for path in ("", "review", *away)} == {"/home"}


@given(st.text(max_size=30))
def test_no_redirect_leaves_this_server(text: str) -> None:
    path = local_path(text, "/home")
    assert path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
