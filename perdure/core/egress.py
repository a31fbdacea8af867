"""Targets to which this program can send requests.

There are two rules. Webhooks go only to hosts that the operator has named, over TLS (`allowed_target`, `is_reachable`).
All other requests (tools, MCP servers, model providers, sign-in providers) can go to any public address. They can go to
a private or loopback address only if the operator or the app has named it (`refusal_of`; docs/egress.md). In both
cases, a name is resolved once, every address of it is checked, and the connection goes to a checked address.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from perdure.contracts.errors import CallerError
from perdure.core.text import without_userinfo

Address = IPv4Address | IPv6Address
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
ANSWER_BYTES: Final = 10 * 1024 * 1024
"""Default maximum size of a response."""
_PORTS = {"https": 443, "http": 80}
_METADATA = frozenset(map(ip_address, (
    "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254",
)))  # fmt: skip
"""Metadata services of AWS, Azure, Google, Alibaba and Oracle; not all of them are link-local."""
_NAT64 = ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
_COMPATIBLE = ip_network("::/96")
_THIS_NETWORK = ip_network("0.0.0.0/8")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
_PRIVATE_ENDINGS = (".local", ".localdomain", ".internal", ".intranet", ".private", ".corp", ".home", ".lan", ".arpa")


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of an allowed URL."""

    scheme: str
    host: str
    port: int
    is_loopback: bool


def target_of(url: str) -> Target:
    """Returns the parts of a URL.

    Raises: CallerError 422 `address_refused` if it is invalid. It must be https with a host, without login, fragment or
    spaces; http is allowed only for this machine.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower().rstrip("."), parts.port
    except ValueError:
        raise _invalid_entry("it is not a valid URL") from None
    if not host or not url.isprintable() or not url.isascii() or " " in url or "\\" in url:
        raise _invalid_entry("it is not a valid URL")
    if "@" in parts.netloc or parts.fragment:
        raise _invalid_entry("it must not contain a user name, a password or a fragment")
    is_loopback = host in LOOPBACK
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback):
        raise _invalid_entry("it must begin with https://")
    return Target(parts.scheme, host, port or _PORTS[parts.scheme], is_loopback)


def allowed_target(url: str, hosts: Collection[str]) -> Target:
    """Returns the parts of a URL whose host the operator has named: `host`, `host:port`, or `*.domain` for all
    subdomains.

    Raises: CallerError 422 `address_refused`.
    """
    target = target_of(url)
    named = {target.host, f"{target.host}:{target.port}"} & {each.lower() for each in hosts}
    above = (each[1:].lower() for each in hosts if each.startswith("*."))
    if not named and not any(target.host.endswith(each) for each in above):
        raise _invalid_entry(
            f"the host {target.host} is not allowed; ask the operator to add it to PERDURE_WEBHOOK_HOSTS"
        )
    return target


def is_reachable(target: Target, address: str, *, private: bool) -> bool:
    """Returns whether requests can be sent to this resolved address of the target.

    Infrastructure addresses never qualify (link-local including cloud metadata, multicast, reserved). This machine
    qualifies only if the URL names it, a private network only if the operator allows it.
    """
    kind = network_kind(address)
    if kind is NetworkKind.LOOPBACK or target.is_loopback:
        return target.is_loopback and kind is NetworkKind.LOOPBACK
    return kind is NetworkKind.PUBLIC or (private and kind is NetworkKind.PRIVATE)


def _invalid_entry(why: str) -> CallerError:
    return CallerError("address_refused", f"This address cannot be used: {why}", status=422)


class NetworkKind(StrEnum):
    """The kind of network that an address belongs to."""

    PUBLIC = "public"
    PRIVATE = "private"
    """A private or shared network, or a range that is not routed on the internet."""
    LOOPBACK = "loopback"
    """This machine."""
    LINK_LOCAL = "link-local"
    """Network infrastructure: link-local addresses and the metadata services of clouds."""
    UNUSABLE = "unusable"
    """Multicast, reserved or unspecified: not a valid target."""


def network_kind(address: str) -> NetworkKind:
    """Returns the class of an IP address. An address with an embedded IPv4 address has the worse class of the two."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return NetworkKind.UNUSABLE
    return max((_network_of(each) for each in (ip, *_embedded_addresses(ip))), key=_SEVERITY.index)


_SEVERITY = (
    NetworkKind.PUBLIC,
    NetworkKind.PRIVATE,
    NetworkKind.LOOPBACK,
    NetworkKind.LINK_LOCAL,
    NetworkKind.UNUSABLE,
)


def _network_of(ip: Address) -> NetworkKind:
    if ip.is_loopback:
        return NetworkKind.LOOPBACK
    if ip.is_link_local or ip in _METADATA:
        return NetworkKind.LINK_LOCAL
    if ip.is_multicast or ip.is_unspecified or ip in _THIS_NETWORK:
        return NetworkKind.UNUSABLE
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None or ip in _NAT64 or ip in _COMPATIBLE:
            return NetworkKind.PUBLIC  # the embedded address decides
        if ip in _LOCAL_NAT64 or ip.is_site_local:
            return NetworkKind.PRIVATE
    if ip.is_reserved:
        return NetworkKind.UNUSABLE
    return NetworkKind.PUBLIC if ip.is_global else NetworkKind.PRIVATE


def _embedded_addresses(ip: Address) -> Iterator[IPv4Address]:
    """Yields the IPv4 addresses embedded in an IPv6 address."""
    if not isinstance(ip, IPv6Address) or ip.is_loopback or ip.is_unspecified:
        return
    if ip.ipv4_mapped is not None:
        yield ip.ipv4_mapped
    elif ip.sixtofour is not None:
        yield ip.sixtofour
    elif ip.teredo is not None:
        yield from ip.teredo
    elif ip in _NAT64 or ip in _COMPATIBLE or (int(ip) >> 32) & 0xFFFF_FFFF in _ISATAP:
        yield IPv4Address(int(ip) & 0xFFFF_FFFF)
    elif ip in _LOCAL_NAT64:  # RFC 6052 with a prefix of 48 bits: bits 64 to 71 are empty
        number = int(ip)
        yield IPv4Address(((number >> 64) & 0xFFFF) << 16 | (number >> 40) & 0xFFFF)


def canonical_host(host: str) -> str:
    """Returns a host in the form used for comparisons: lower case, no trailing dot, an IP address in its shortest form.

    Raises: CallerError `egress_host_invalid` for text that is not an ASCII host. It is also raised for an IPv4 address
    that is not written as four decimal numbers: resolvers read `0x7f.1` and `2130706433` as 127.0.0.1.
    """
    name = host.strip("[]").lower().removesuffix(".")
    try:
        ip = ip_address(name)
    except ValueError:
        pass
    else:
        mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
        return str(mapped or ip)
    last = name.rpartition(".")[2]
    if last.isdecimal() or last.startswith("0x"):
        raise _invalid(host, "write an IPv4 address as four decimal numbers, such as 10.0.0.7")
    if not _HOST.fullmatch(name):
        raise _invalid(host, "write a host name in ASCII (an international one as xn--...) or an IP address")
    return name


def is_loopback_host(host: str) -> bool:
    """Returns whether a canonical host always means this machine, whatever a resolver returns."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return network_kind(host) is NetworkKind.LOOPBACK


@dataclass(frozen=True, slots=True)
class NamedHost:
    """One or more hosts that are allowed to have a non-public address."""

    host: str = ""
    """Canonical; empty for a network."""
    port: int | None = None
    """The port number; None for every port."""
    below: bool = False
    """True if the entry means the subdomains of `host`, without `host` itself."""
    network: IPv4Network | IPv6Network | None = None
    by_operator: bool = False
    """True if the operator named it; entries of an app are more limited."""

    def covers(self, host: str, port: int, address: str) -> bool:
        """Returns whether this entry allows `address`, to which the canonical `host` resolves."""
        kind = network_kind(address)
        if self.port not in (None, port) or kind is NetworkKind.UNUSABLE:
            return False
        if self.network is not None:
            inside = ip_address(address.partition("%")[0]) in self.network
            return inside and (
                kind is NetworkKind.PRIVATE or (kind is NetworkKind.LOOPBACK and self.network.is_loopback)
            )
        if self.below:
            return kind is NetworkKind.PRIVATE and host.endswith(f".{self.host}")
        if host != self.host and not (is_loopback_host(host) and is_loopback_host(self.host)):
            return False
        if kind is NetworkKind.LINK_LOCAL:
            return self.by_operator
        return kind is not NetworkKind.LOOPBACK or self.by_operator or self.port is not None

    def is_of(self, host: str, port: int) -> bool:
        """Returns whether this entry names the canonical `host`, whatever it resolves to."""
        if self.port not in (None, port):
            return False
        if self.network is not None:
            try:
                return ip_address(host) in self.network
            except ValueError:
                return False
        if self.below:
            return host.endswith(f".{self.host}")
        return host == self.host or (is_loopback_host(host) and is_loopback_host(self.host))


@dataclass(frozen=True, slots=True)
class Outbound:
    """The settings of the operator and the apps for outgoing requests."""

    named: tuple[NamedHost, ...] = ()
    """The hosts that are allowed to have a private or loopback address."""
    proxy: str = ""
    """An HTTP proxy for every host that is not named; it resolves the names. Empty if there is none."""
    answer_bytes: int = ANSWER_BYTES

    def with_hosts(self, *named: NamedHost | None) -> "Outbound":
        """Returns these settings with more named hosts."""
        fresh = tuple(each for each in named if each is not None and each not in self.named)
        return replace(self, named=(*self.named, *fresh)) if fresh else self


def named_host(text: str, *, by_operator: bool) -> NamedHost:
    """Parses one entry: `host`, `host:port` or `*.domain`. Operators can also write a network such as 10.0.0.0/8.

    Raises: CallerError `egress_host_invalid`.
    """
    if "/" in text:
        return _named_network(text, by_operator)
    below = text.startswith("*.")
    host, port = _host_and_port(text.removeprefix("*."), text)
    if below and (_is_address(host) or is_loopback_host(host) or (not by_operator and "." not in host)):
        raise _invalid(text, "after *. write a domain of at least two parts, such as *.corp.example")
    if not by_operator and port is None and is_loopback_host(host):
        raise _invalid(text, f"an app can name a local service only with its port, such as {text}:9000")
    if not by_operator and _is_address(host) and network_kind(host) in (NetworkKind.LINK_LOCAL, NetworkKind.UNUSABLE):
        raise _invalid(text, "only the operator can allow this address, in PERDURE_EGRESS_HOSTS")
    return NamedHost(host, port, below, by_operator=by_operator)


def named_by_url(url: str, *, by_operator: bool) -> NamedHost | None:
    """Returns the host and port in a URL, or None if the text is not an http or https URL."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port
        if parts.scheme not in _PORTS or not host:
            return None
        return NamedHost(canonical_host(host), port or _PORTS[parts.scheme], by_operator=by_operator)
    except (ValueError, CallerError):
        return None


def refusal_of(host: str, port: int, addresses: Sequence[str], named: Collection[NamedHost]) -> str | None:
    """Returns why a request to a canonical `host`, which resolves to `addresses`, is not allowed, or None.

    All addresses are checked: a name that also resolves to a forbidden one is not trusted.
    """
    if not addresses:
        return f"{host} has no IP address"
    for address in addresses:
        kind = network_kind(address)
        if kind is not NetworkKind.PUBLIC and not any(each.covers(host, port, address) for each in named):
            return _refusal_reason(host, port, kind)
    return None


def proxied_refusal_of(host: str, port: int) -> str | None:
    """Returns why a request to a canonical `host` cannot go through a proxy, which resolves the name itself, or None.

    Only the name is checked: non-public addresses, and names that are useless outside, are rejected.
    """
    if _is_address(host):
        kind = network_kind(host)
    elif is_loopback_host(host):
        kind = NetworkKind.LOOPBACK
    else:
        kind = NetworkKind.PRIVATE if "." not in host or host.endswith(_PRIVATE_ENDINGS) else NetworkKind.PUBLIC
    return None if kind is NetworkKind.PUBLIC else _refusal_reason(host, port, kind)


def _refusal_reason(host: str, port: int, kind: NetworkKind) -> str:
    is_address = _is_address(host)
    what = f"the address {host} is {kind}" if is_address else f"{host} resolves to an address that is {kind}"
    if kind is NetworkKind.UNUSABLE:
        return f"{what}; requests to it are not possible"
    if kind is NetworkKind.LINK_LOCAL:
        return f"{what}; only the operator can allow it, with {host} in PERDURE_EGRESS_HOSTS"
    entry = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{what}; add {entry} to PERDURE_EGRESS_HOSTS or to `egress:` in the app's app.yaml"


def _named_network(text: str, by_operator: bool) -> NamedHost:
    if not by_operator:
        raise _invalid(text, "only the operator can allow a network, in PERDURE_EGRESS_HOSTS")
    try:
        return NamedHost(network=ip_network(text), by_operator=True)
    except ValueError as error:
        raise _invalid(text, f"write a network such as 10.0.0.0/8 ({without_userinfo(str(error))})") from None


def _host_and_port(text: str, entry: str) -> tuple[str, int | None]:
    if _is_address(text):
        return canonical_host(text), None
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return canonical_host(text), None
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise _invalid(entry, "a port must be a number from 1 to 65535")
    return canonical_host(host), int(port)


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _invalid(entry: str, why: str) -> CallerError:
    return CallerError(
        "egress_host_invalid", f"{without_userinfo(entry)[:200]!r} is not a valid host: {why}", status=422
    )
