"""Addresses, hosts and sites: which may be called, which a setting or an app names, where a request comes from."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core import egress, request_origin
from perdure.core.egress import (
    NamedHost,
    NetworkKind,
    allowed_target,
    is_reachable,
    named_host,
    network_kind,
    refusal_of,
    target_of,
)
from perdure.core.request_origin import (
    AllowedHosts,
    HostValue,
    Proxies,
    counted_as,
    exposure_refusal,
    local_path,
    networks_of,
    parse_host,
    probe_refusal,
)

HOSTS = ("hooks.example.org", "*.corp.test", "localhost:9000")
PUBLIC = target_of("https://hooks.example.org/x")
METADATA = "169.254.169.254"
LOOPED = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
UNFIT = (METADATA, "fe80::1%eth0", "0.0.0.0", "224.0.0.1", "no address")
NUMBERS = ["2130706433", "0x7f.1", "0x7f000001", "127.1", "0177.0.0.1", "127.0.0.01", "10.0.0.0x7", "256.1.1.1"]
NO_HOSTS = ["", ".", "a..b", "exämple.org", "①27.0.0.1", "a b", "a%00b", "-a.org", "a/b", "user@host", "x" * 254]
NOT_FOR_AN_APP = ["10.0.0.0/8", "localhost", "127.0.0.1", "[::1]", METADATA, "*.com", "*.localhost", "0.0.0.0:80"]
NO_ENTRIES = ["", "*.", "*.127.0.0.1", "10.0.0.1/8", "host:0", "host:x", "host:70000", "http://a/"]
INSIDE = ("10.0.0.7", "localhost", "a.localhost", "intranet", "db.internal", "printer.local", "::1", "64:ff9b::7f00:1")
Address = IPv4Address | IPv6Address
PROXIES = Proxies.of(("10.0.0.7", "10.1.0.0/16", "fd00::/8"))


@pytest.mark.parametrize(("url", "host", "port"), [
    ("https://hooks.example.org/a?b=c", "hooks.example.org", 443),
    ("https://HOOKS.example.org:8443", "hooks.example.org", 8443), ("https://a.corp.test/", "a.corp.test", 443),
    ("https://b.a.corp.test./", "b.a.corp.test", 443), ("http://localhost:9000/hook", "localhost", 9000),
])  # fmt: skip
def test_a_host_that_the_operator_names_is_allowed(url: str, host: str, port: int) -> None:
    target = allowed_target(url, HOSTS)
    assert (target.host, target.port) == (host, port)


REFUSED = f"""
    hooks.example.org //hooks.example.org https:// https:///x http://hooks.example.org/ ftp://hooks.example.org/
    file:///etc/passwd https://other.example.org/ https://corp.test/ https://evilcorp.test/
    https://hooks.example.org.evil.test/ https://hooks.example.org@evil.test/
    https://user:password@hooks.example.org/ https://evil.test\\@hooks.example.org/ https://hooks.example.org/#x
    https://hooks.example.org:0x50/ https://hooks.example.org:99999/ https://[::1/ http://localhost:9001/
    http://127.0.0.1:9000/ https://{METADATA}/latest/meta-data https://hooks.exämple.org/
""".split()


@pytest.mark.parametrize("url", ["", "https://hooks.example.org/ x", *REFUSED])
def test_any_other_address_is_refused(url: str) -> None:
    with pytest.raises(CallerError, match="address_refused"):
        allowed_target(url, HOSTS)


@pytest.mark.parametrize(("address", "public", "private"), [
    ("93.184.216.34", True, True),
    *((address, False, True) for address in ("10.0.0.7", "::ffff:10.0.0.7")),
    *((address, False, False) for address in (*LOOPED, *UNFIT)),
])  # fmt: skip
def test_the_addresses_of_a_name_decide_too(address: str, public: bool, private: bool) -> None:
    assert is_reachable(PUBLIC, address, private=False) is public
    assert is_reachable(PUBLIC, address, private=True) is private
    assert is_reachable(target_of("http://localhost:9000/"), address, private=True) is (address in LOOPED)


@given(st.text(max_size=60))
def test_whatever_is_allowed_is_one_of_the_named_hosts(text: str) -> None:
    for url in (text, f"https://{text}", f"https://hooks.example.org{text}"):
        try:
            target = allowed_target(url, HOSTS)
        except CallerError:
            continue
        assert target.host in ("hooks.example.org", "localhost") or target.host.endswith(".corp.test")


def embedded(ip: IPv4Address) -> dict[str, str]:
    """The IPv6 addresses that carry `ip`, by the name of the form."""
    number = int(ip)
    return {
        "mapped": f"::ffff:{ip}",
        "compatible": str(IPv6Address(number)),
        "6to4": str(IPv6Address((0x2002 << 112) | (number << 80))),
        "nat64": str(IPv6Address((0x64FF9B << 96) | number)),
        "local nat64": str(IPv6Address((0x64FF9B0001 << 80) | ((number >> 16) << 64) | ((number & 0xFFFF) << 40))),
        "teredo client": str(IPv6Address((0x20010000 << 96) | (0x5DB8D822 << 64) | (number ^ 0xFFFFFFFF))),
        "isatap": str(IPv6Address((0x26062800 << 96) | (0x5EFE << 32) | number)),
    }


REACHES = {
    NetworkKind.PUBLIC: "93.184.216.34 2606:2800:220:1::1 64:ff9b::5db8:d822 ::ffff:93.184.216.34",
    NetworkKind.PRIVATE: "10.0.0.7 172.31.255.255 192.168.1.1 100.64.0.1 198.18.0.1 fd00::7 fec0::7 64:ff9b::a00:7"
    " 2002:a00:7::",
    NetworkKind.LOOPBACK: "127.0.0.1 127.9.9.9 ::1 ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1",
    NetworkKind.LINK_LOCAL: "169.254.169.254 169.254.0.1 fe80::1 fe80::1%eth0 febf::1 fd00:ec2::254 100.100.100.200"
    " 192.0.0.192 fd20:ce::254 168.63.129.16 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe",
    NetworkKind.UNUSABLE: "64:ff9b:1::1 0.0.0.0 0.1.2.3 :: 224.0.0.1 224.0.1.1 ff02::1 ff0e::1 240.0.0.1"
    " 255.255.255.255 ::ffff:0.0.0.0 localhost",
}


@pytest.mark.parametrize(("reach", "address"), [(r, address) for r in REACHES for address in REACHES[r].split()])
def test_each_address_belongs_to_its_kind_of_network(reach: NetworkKind, address: str) -> None:
    assert network_kind(address) is reach
    assert network_kind("") is NetworkKind.UNUSABLE


@given(st.ip_addresses(v=4))
def test_an_ipv6_address_does_not_hide_the_ipv4_address_in_it(ip: IPv4Address) -> None:
    plain = network_kind(str(ip))
    for form, address in {"plain": str(ip), **embedded(ip)}.items():
        if plain is NetworkKind.PUBLIC:
            assert network_kind(address) in (NetworkKind.PUBLIC, NetworkKind.PRIVATE), form
        else:
            assert network_kind(address) is not NetworkKind.PUBLIC, (form, address)
            assert refusal_of("host.test", 443, [address], ()), (form, address)
            assert not is_reachable(PUBLIC, address, private=False), (form, address)


SPELLINGS = {"Example.ORG": "example.org", "example.org.": "example.org", "[::1]": "::1", "0:0:0:0:0:0:0:1": "::1"}
SPELLINGS |= {"[::FFFF:10.0.0.7]": "10.0.0.7"}
SPELLINGS |= {same: same for same in ("10.0.0.7", "xn--exmple-cua.org", "my_service")}


def test_a_host_is_normalized_to_one_spelling() -> None:
    assert {host: egress.canonical_host(host) for host in SPELLINGS} == SPELLINGS


@pytest.mark.parametrize("host", [*NUMBERS, *NO_HOSTS])
def test_any_other_spelling_of_a_host_is_refused(host: str) -> None:
    with pytest.raises(CallerError, match="egress_host_invalid"):
        egress.canonical_host(host)


OPERATOR = ("intranet", "db.corp.test:5000", "*.corp.test", "10.0.0.0/8", "127.0.0.1:9000", METADATA, "meta.test")
APP = ("intranet", "db.corp.test:5000", "*.corp.test", "127.0.0.1:9000", "open.test")
ROWS: list[tuple[str, int, str, bool, bool]] = [
    # host, port, address that it stands for, allowed by the operator's entries, by the app's
    ("example.org", 443, "93.184.216.34", True, True),
    *(("intranet", 80, "192.168.1.1", True, True), ("intranet", 80, "127.0.0.1", True, False)),
    *(("intranet", 80, METADATA, True, False), ("intranet", 80, "0.0.0.0", False, False)),
    ("intranet.evil.test", 80, "192.168.1.1", False, False), ("db.corp.test", 5000, "192.168.1.1", True, True),
    *(("db.corp.test", 5000, "127.0.0.1", True, True), ("a.corp.test", 80, "192.168.1.1", True, True)),
    *(("a.corp.test", 80, "127.0.0.1", False, False), ("a.corp.test", 80, METADATA, False, False)),
    ("corp.test", 80, "192.168.1.1", False, False), ("evilcorp.test", 80, "192.168.1.1", False, False),
    *(("evil.test", 80, "10.0.0.7", True, False), ("10.0.0.7", 80, "10.0.0.7", True, False)),
    *(("127.0.0.1", 9000, "127.0.0.1", True, True), ("localhost", 9000, "::1", True, True)),
    *(("app.localhost", 9000, "127.0.0.1", True, True), ("127.0.0.1", 9001, "127.0.0.1", False, False)),
    *(("evil.test", 9000, "127.0.0.1", False, False), (METADATA, 80, METADATA, True, False)),
    *(("evil.test", 80, METADATA, False, False), ("meta.test", 80, METADATA, True, False)),
    *(("open.test", 80, "192.168.1.1", False, True), ("open.test", 80, "127.0.0.1", False, False)),
]  # fmt: skip


@pytest.mark.parametrize(("host", "port", "address", "operator", "app"), ROWS)
def test_a_private_host_is_named_or_refused(host: str, port: int, address: str, operator: bool, app: bool) -> None:
    by_operator = [named_host(each, by_operator=True) for each in OPERATOR]
    by_app = [named_host(each, by_operator=False) for each in APP]
    assert (refusal_of(host, port, [address], by_operator) is None) is operator
    assert (refusal_of(host, port, [address], by_app) is None) is app
    if address != "93.184.216.34":
        assert refusal_of(host, port, [address], ()) is not None


def test_one_forbidden_address_among_several_refuses_the_host() -> None:
    assert refusal_of("example.org", 443, ["93.184.216.34", "10.0.0.7"], ())
    assert refusal_of("example.org", 443, [], ())
    told = refusal_of("intranet", 8080, ["10.0.0.7"], ()) or ""
    assert "intranet:8080" in told and "10.0.0.7" not in told
    assert "[fd00::7]:80" in (refusal_of("fd00::7", 80, ["fd00::7"], ()) or "")


@pytest.mark.parametrize("entry", [*NOT_FOR_AN_APP, *NO_ENTRIES])
def test_an_app_names_no_network_whole_machine_or_cloud_and_no_invalid_entry(entry: str) -> None:
    for by_operator in (False, True) if entry in NO_ENTRIES else (False,):
        with pytest.raises(CallerError, match="egress_host_invalid"):
            named_host(entry, by_operator=by_operator)


@pytest.mark.parametrize(("url", "named"), [
    ("http://127.0.0.1:8099/x", NamedHost("127.0.0.1", 8099)),
    ("https://Intranet./", NamedHost("intranet", 443)),
    *(("http://[::1]:80", NamedHost("::1", 80)), (" http://a.test ", NamedHost("a.test", 80)), ("sk-123", None)),
    *(("postgresql://db/x", None), ("http://", None), ("http://2130706433/", None), ("http://a:b/", None)),
])  # fmt: skip
def test_a_configured_url_allows_its_host_and_port(url: str, named: NamedHost | None) -> None:
    assert egress.named_by_url(url, by_operator=False) == named


def test_only_public_names_are_sent_to_a_proxy() -> None:
    assert all(egress.proxied_refusal_of(host, 443) is None for host in ("example.org", "93.184.216.34"))
    assert [host for host in INSIDE if egress.proxied_refusal_of(host, 443) is None] == []


HOST_TEXTS = st.sampled_from([*APP, "a.test", "*.b.test:99", "[fd00::1]:80", "10.1.2.3"])
ENTRIES = st.lists(HOST_TEXTS.map(lambda text: named_host(text, by_operator=False)))


@given(st.sampled_from([row[0] for row in ROWS]), st.ip_addresses(), ENTRIES)
def test_no_entry_of_an_app_allows_metadata(host: str, ip: IPv4Address | IPv6Address, entries: list[NamedHost]) -> None:
    for address in (str(ip), METADATA, "fe80::1", "0.0.0.0"):
        if network_kind(address) in (NetworkKind.LINK_LOCAL, NetworkKind.UNUSABLE):
            assert refusal_of(host, 80, [address], entries)


@given(st.ip_addresses(v=4), st.integers(min_value=0, max_value=32))
def test_an_operators_network_allows_only_its_private_addresses(ip: IPv4Address, length: int) -> None:
    network = IPv4Network((int(ip), length), strict=False)
    named = [named_host(str(network), by_operator=True)]
    for address in ("10.0.0.7", "192.168.1.1", "127.0.0.1", METADATA, "0.0.0.0", "172.16.0.1", str(ip)):
        if refusal_of("evil.test", 80, [address], named) is None:
            inside = ip_address(address) in network
            reach = network_kind(address)
            assert reach is NetworkKind.PUBLIC or (inside and reach in (NetworkKind.PRIVATE, NetworkKind.LOOPBACK))
            assert reach is not NetworkKind.LOOPBACK or network.is_loopback


@pytest.mark.parametrize(("host", "name"), [
    ("127.0.0.1", "127.0.0.1"), ("::ffff:10.1.2.3", "10.1.2.3"), ("fe80::1%eth0", "fe80::/64"),
    ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
    ("", ""), ("testclient", "testclient"), ("x" * 500, "x" * 60),
])  # fmt: skip
def test_addresses_that_one_client_can_use_are_counted_together(host: str, name: str) -> None:
    assert counted_as(host) == name


@pytest.mark.parametrize(("host", "wider"), [
    ("127.0.0.1", "127.0.0.0/16"), ("2001:db8:1:2:3:4:5:6", "2001:db8::/32"), ("testclient", "*"), ("", "*"),
])  # fmt: skip
def test_the_networks_of_a_client_are_named_from_its_address_to_all(host: str, wider: str) -> None:
    assert networks_of(counted_as(host)) == (counted_as(host), wider, "*")


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
PUBLIC_HOSTS = AllowedHosts.of(
    ("ops.example.org", "intern.example.org:8443", "*.Team.example.org", "[fd00::7]"),
    public_url="https://Perdure.example.org:444",
    listens_on="192.0.2.7",
)


@pytest.mark.parametrize(("text", "found"), [
    ("localhost", HostValue("localhost")), ("LocalHost:8080", HostValue("localhost", 8080)),
    ("perdure.example.org.", HostValue("perdure.example.org")),
    ("perdure.example.org.:443", HostValue("perdure.example.org", 443)),
    ("127.0.0.1:65535", HostValue("127.0.0.1", 65_535)), ("[0:0:0:0:0:0:0:1]:80", HostValue("::1", 80)),
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
        PUBLIC_HOSTS,  # a proxy or a tunnel may have any port
        ["perdure.example.org", "perdure.example.org:9999", "localhost", "192.0.2.7:8080", "ops.example.org:1"],
        "192.0.2.8 intern.example.org intern.example.org:8444",
    ),
    (PUBLIC_HOSTS, ["intern.example.org:8443", "a.team.example.org", "a.b.team.example.org:8080", "[fd00:0::7]:80"],
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
    for hosts in (LOCAL, PUBLIC_HOSTS):
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
    ("perdure.test", "", "", False), ("perdure.test", "https://perdure.test", "same-origin", False),
    ("perdure.test:8080", "http://perdure.test:8080", "", False), ("Perdure.test", "https://perdure.TEST", "", False),
    *(("perdure.test", "", site, False) for site in ("none", "same-origin")),
    *(("perdure.test", "", site, True) for site in ("cross-site", "same-site")),
    ("perdure.test", "https://evil.test", "same-origin", True),
    ("perdure.test", "https://perdure.test.evil.test", "", True),
    ("perdure.test", "https://perdure.test@evil.test", "", True),
    ("perdure.test", "https://perdure.test:8443", "", True), ("perdure.test", "null", "", True),
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
