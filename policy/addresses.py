"""Whom a network address stands for: for counts by address, behind proxies, and for what only this machine may do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from contracts.errors import CallerError

_HOME_BITS = 64
"""Whoever has one IPv6 address has all of its /64."""
_MOST_CHARACTERS = 60


def counted_as(host: str) -> str:
    """One name for all addresses that one client can take at will."""
    address = _address(host)
    if address is None:
        return host[:_MOST_CHARACTERS]
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, _HOME_BITS), strict=False))


def is_of_this_machine(caller: str, host: str) -> bool:
    """Whether a request comes from this machine, by the address of who sent it, and was sent to it, by its Host header.

    A page elsewhere can make a browser here ask under a name that leads here; then the name is its own.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(caller) and (name == "localhost" or is_loopback(name))


def is_loopback(host: str) -> bool:
    """Whether this is an address by which a machine reaches itself; a name is not."""
    address = _address(host)
    return address is not None and address.is_loopback


@dataclass(frozen=True, slots=True)
class Proxies:
    """The operator's reverse proxies: the only peers whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, written: Iterable[str]) -> "Proxies":
        """From addresses and networks such as `10.0.0.7` and `10.1.0.0/16`.

        Raises: CallerError `proxy_invalid`.
        """
        try:
            return cls(tuple(ip_network(each) for each in written))
        except ValueError as error:
            raise CallerError("proxy_invalid", f"{error}; write an address, or a network without host bits") from None

    def include(self, host: str) -> bool:
        """Whether this address belongs to one of them."""
        address = _address(host)
        return address is not None and any(address in network for network in self.networks)

    def client(self, peer: str, forwarded_for: Sequence[str]) -> str:
        """The address of the client, by the values of `X-Forwarded-For` in the order of their headers.

        Each proxy appends the peer that it saw, so the list is read from its end and only as far as it was written by
        proxies: the last entry that is not a proxy is the client. An entry that is not an address ends the search, and
        the proxy that wrote it stands for the client.
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
        """`http` or `https`, as the nearest proxy says."""
        said = forwarded_proto[-1].rpartition(",")[2].strip().lower() if forwarded_proto else ""
        return said if said in ("http", "https") and self.include(peer) else otherwise


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
