"""Checks of a request's origin: client addresses behind proxies, allowed Host headers, and same-site requests."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import inet_aton
from urllib.parse import urlsplit

from perdure.contracts.errors import CallerError
from perdure.core.text import without_userinfo

_HOME_BITS = 64
"""A client with one IPv6 address usually controls its whole /64."""
_WIDE_BITS = {4: 16, 6: 32}
"""Bits of the network of one provider, by the version of IP."""
_ADDRESS_CHARACTERS = 60
EVERY = "*"
LOCALHOST = "localhost"
_HOST_CHARACTERS = 253
_LABELS = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_WITH_PORT = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^\[\]:]+)(:(?P<port>[0-9]{1,5}))?")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
_OWN = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for a request of the same origin or of the user directly."""


def counted_as(host: str) -> str:
    """Returns one name for all addresses that one client can use at will."""
    address = _address(host)
    if address is None:
        return host[:_ADDRESS_CHARACTERS]
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, _HOME_BITS), strict=False))


def networks_of(counted: str) -> tuple[str, str, str]:
    """Returns the names under which a client's wrong tries can be counted, the narrowest first: its address (as
    `counted_as` returns it), the network of its provider, and all addresses."""
    try:
        address = ip_network(counted)
    except ValueError:
        return counted, EVERY, EVERY
    return counted, str(address.supernet(new_prefix=_WIDE_BITS[address.version])), EVERY


def is_of_this_machine(caller: str, host: str) -> bool:
    """Returns whether a request comes from this machine, by its peer address, and was sent to it, by its Host header.

    A page of another site can make a local browser send a request to a name that resolves to this machine. The Host
    header then contains that name.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(caller) and (name == "localhost" or is_loopback(name))


def is_loopback(host: str) -> bool:
    """Returns whether this is a loopback address; names are not."""
    address = _address(host)
    return address is not None and address.is_loopback


@dataclass(frozen=True, slots=True)
class Proxies:
    """The operator's reverse proxies: the only peers whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, written: Iterable[str]) -> "Proxies":
        """Builds the set from addresses and networks such as `10.0.0.7` and `10.1.0.0/16`.

        Raises: CallerError `proxy_invalid`.
        """
        try:
            return cls(tuple(ip_network(each) for each in written))
        except ValueError as error:
            fault = without_userinfo(str(error))
            raise CallerError(
                "proxy_invalid",
                f"Invalid address or network: {fault}; write an IP address, or a network without host bits",
            ) from None

    def include(self, host: str) -> bool:
        """Returns whether this address belongs to one of them."""
        address = _address(host)
        return address is not None and any(address in network for network in self.networks)

    def client(self, peer: str, forwarded_for: Sequence[str]) -> str:
        """Returns the client's address from the values of `X-Forwarded-For`, in the order of their headers.

        Each proxy appends the peer that it saw, so the list is read from its end, and only the parts that proxies
        wrote. The last entry that is not a proxy is the client. An entry that is not an address ends the search, and
        the proxy that wrote it counts as the client.
        """
        found = peer
        entries = [each.strip() for value in forwarded_for for each in value.split(",")]
        while entries and self.include(found):
            address = _address(_without_port(entries.pop()))
            if address is None:
                break
            found = str(address)
        return found

    def scheme(self, peer: str, forwarded_proto: Sequence[str], otherwise: str) -> str:
        """Returns `http` or `https` as the nearest proxy reports it, or else `otherwise`."""
        proto = forwarded_proto[-1].rpartition(",")[2].strip().lower() if forwarded_proto else ""
        return proto if proto in ("http", "https") and self.include(peer) else otherwise


def _without_port(entry: str) -> str:
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


@dataclass(frozen=True, slots=True)
class HostValue:
    """The value of a Host header."""

    host: str
    """The host in lower case, without a final dot; an IPv6 address without brackets, in its shortest form."""
    port: int | None = None


def parse_host(text: str) -> HostValue | None:
    """Returns the host and port in the value of a Host header, or None if it is neither a name nor an address.

    A browser sends a name, an IPv4 address with four decimal parts or an IPv6 address in brackets. All other values
    (user names, spaces, percent signs, other spellings of an address) are treated as malformed.
    """
    found = _WITH_PORT.fullmatch(text.lower()) if text.isascii() else None
    if found is None or (found["port"] and not 0 < int(found["port"]) < 65_536):
        return None
    host, port = found["host"], int(found["port"]) if found["port"] else None
    if host.startswith("["):
        try:
            return HostValue(str(IPv6Address(host[1:-1])), port)
        except ValueError:
            return None
    host = host.removesuffix(".")
    if len(host) > _HOST_CHARACTERS or not _LABELS.fullmatch(host):
        return None
    if host.rpartition(".")[2].isdecimal() and not _is_ipv4(host):
        return None
    return HostValue(host, port)


def plain_origin(text: str) -> str:
    """Returns an http or https URL without a path. A slash at its end is removed.

    Raises: ValueError if it is another URL, or has a user name, a path or a query.
    """
    scheme, _, rest = text.partition("://")
    host = rest.removesuffix("/")
    if scheme.lower() not in ("http", "https") or parse_host(host) is None:
        raise ValueError("an http or https URL without a path")
    return f"{scheme.lower()}://{host}"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The hosts that this deployment accepts. A page of another site can point its own name to the address of this
    server (DNS rebinding): the browser then treats this server as part of that site. The Host header still contains the
    name of the other site, so it is compared with a list. `X-Forwarded-Host` is never read: any client can send it."""

    names: frozenset[HostValue] = frozenset()
    """An entry without a port allows every port."""
    domains: frozenset[HostValue] = frozenset()
    """Parents whose subdomains are allowed."""
    all: bool = False

    @classmethod
    def of(cls, patterns: Iterable[str], *, public_url: str = "", listens_on: str = "") -> "AllowedHosts":
        """Builds the list from the public URL's host, the address that the server listens on, and the operator's
        patterns.

        A pattern is `host`, `host:port`, `*.domain` for every subdomain, or `*` for every host. An address that means
        all addresses of the machine is not added.

        Raises: CallerError `host_pattern_invalid`.
        """
        given = [each for each in patterns if each != EVERY]
        domains = frozenset(_parse_pattern(each[2:], each) for each in given if each.startswith("*."))
        names = {_parse_pattern(each, each) for each in given if not each.startswith("*.")}
        if public_url:
            names.add(HostValue(_parse_pattern(public_url.partition("://")[2], public_url).host))
        if listens_on and not listens_everywhere(listens_on):
            names.add(
                HostValue(_parse_pattern(f"[{listens_on}]" if ":" in listens_on else listens_on, listens_on).host)
            )
        return cls(frozenset(names), domains, EVERY in tuple(patterns))

    def allow(self, values: Sequence[str]) -> bool:
        """Returns whether a request with these Host headers is accepted. Exactly one header is required."""
        found = parse_host(values[0]) if len(values) == 1 else None
        if found is None:
            return False
        if self.all or found.host == LOCALHOST or is_loopback(found.host):
            return True
        ports = (HostValue(found.host), found)
        return any(each in self.names for each in ports) or any(
            found.host.endswith("." + each.host) and each.port in (None, found.port) for each in self.domains
        )


def listens_everywhere(host: str) -> bool:
    """Returns whether a server that listens on this address is reachable at every address of its machine."""
    text = host.strip("[]")
    try:
        address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    except ValueError:
        try:
            return text in ("", EVERY) or not any(inet_aton(text))  # the system reads `0` and `0x0` as 0.0.0.0
        except OSError:
            return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_unspecified


def exposure_refusal(host: str, public_url: str) -> str:
    """Returns why the server must not start with this address and this public URL; empty if it can. The server must not
    listen at every address without a public URL."""
    if public_url or not listens_everywhere(host):
        return ""
    return (
        f"PERDURE_HOST={host} listens on all addresses; set PERDURE_PUBLIC_URL to the public address (for "
        "example https://perdure.example.org), or set PERDURE_HOST=127.0.0.1"
    )


def probe_refusal(host: str) -> str:
    """Returns why the embedded stack must not start its API at this address; empty if it can.

    Its own probes and the links that it prints use 127.0.0.1.
    """
    if host in ("", LOCALHOST, "127.0.0.1", "0.0.0.0"):
        return ""
    return (
        f"PERDURE_HOST={host} does not include 127.0.0.1, where `perdure up` checks its API; set "
        "PERDURE_HOST=127.0.0.1, or PERDURE_HOST=0.0.0.0 with PERDURE_PUBLIC_URL"
    )


def _parse_pattern(text: str, shown: str) -> HostValue:
    found = parse_host(text)
    if found is None:
        raise CallerError(
            "host_pattern_invalid",
            f"{without_userinfo(shown)!r} is not a valid host; write host, host:port, *.domain or *, and a non-ASCII "
            "name as xn--...",
        )
    return found


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def is_foreign(host: str, origin: str, fetch_site: str) -> bool:
    """Returns whether the headers Host, Origin and Sec-Fetch-Site (empty if not sent) show a request of another site's
    page.

    Schemes are not compared: behind a proxy that terminates TLS, the server does not know its own. A browser sends
    Origin with every request that changes something. A client that sends neither header is not a browser, and does not
    send cookies unintentionally.
    """
    if origin:
        return not host or urlsplit(origin).netloc.lower() != host.lower()
    return bool(fetch_site) and fetch_site.lower() not in _OWN


def local_path(given: str, otherwise: str) -> str:
    """Returns `given` if it is a path on this server, else `otherwise`.

    Browsers read a backslash as a slash and drop control characters, and `//` starts another host.
    """
    if not given.startswith("/") or given[1:2] in ("/", "\\") or not given.isprintable() or "\\" in given:
        return otherwise
    return given
