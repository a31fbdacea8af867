"""Which addresses may be called, and which hosts a setting or an app names."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core import egress
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

HOSTS = ("hooks.example.org", "*.corp.test", "localhost:9000")
PUBLIC = target_of("https://hooks.example.org/x")
METADATA = "169.254.169.254"


@pytest.mark.parametrize(("url", "host", "port"), [
    ("https://hooks.example.org/a?b=c", "hooks.example.org", 443),
    ("https://HOOKS.example.org:8443", "hooks.example.org", 8443),
    ("https://a.corp.test/", "a.corp.test", 443),
    ("https://b.a.corp.test./", "b.a.corp.test", 443),
    ("http://localhost:9000/hook", "localhost", 9000),
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


LOOPED = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
UNFIT = (METADATA, "fe80::1%eth0", "0.0.0.0", "224.0.0.1", "no address")


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


NUMBERS = ["2130706433", "0x7f.1", "0x7f000001", "127.1", "0177.0.0.1", "127.0.0.01", "10.0.0.0x7", "256.1.1.1"]
NO_HOSTS = ["", ".", "a..b", "exämple.org", "①27.0.0.1", "a b", "a%00b", "-a.org", "a/b", "user@host", "x" * 254]


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
    ("intranet.evil.test", 80, "192.168.1.1", False, False),
    ("db.corp.test", 5000, "192.168.1.1", True, True),
    *(("db.corp.test", 5000, "127.0.0.1", True, True), ("a.corp.test", 80, "192.168.1.1", True, True)),
    *(("a.corp.test", 80, "127.0.0.1", False, False), ("a.corp.test", 80, METADATA, False, False)),
    ("corp.test", 80, "192.168.1.1", False, False),
    ("evilcorp.test", 80, "192.168.1.1", False, False),
    *(("evil.test", 80, "10.0.0.7", True, False), ("10.0.0.7", 80, "10.0.0.7", True, False)),
    *(("127.0.0.1", 9000, "127.0.0.1", True, True), ("localhost", 9000, "::1", True, True)),
    *(("app.localhost", 9000, "127.0.0.1", True, True), ("127.0.0.1", 9001, "127.0.0.1", False, False)),
    *(("evil.test", 9000, "127.0.0.1", False, False), (METADATA, 80, METADATA, True, False)),
    *(("evil.test", 80, METADATA, False, False), ("meta.test", 80, METADATA, True, False)),
    *(("open.test", 80, "192.168.1.1", False, True), ("open.test", 80, "127.0.0.1", False, False)),
]


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


NOT_FOR_AN_APP = ["10.0.0.0/8", "localhost", "127.0.0.1", "[::1]", METADATA, "*.com", "*.localhost", "0.0.0.0:80"]
NO_ENTRIES = ["", "*.", "*.127.0.0.1", "10.0.0.1/8", "host:0", "host:x", "host:70000", "http://a/"]


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


INSIDE = ("10.0.0.7", "localhost", "a.localhost", "intranet", "db.internal", "printer.local", "::1", "64:ff9b::7f00:1")


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
