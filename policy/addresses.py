"""Whom a network address stands for: where requests are counted by it, and where only this machine is let in."""

from ipaddress import IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

_HOME_BITS = 64
"""Whoever has one IPv6 address has all of its /64."""
_MOST_CHARACTERS = 60


def counted_as(host: str) -> str:
    """One name for all addresses that one client can take at will."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host[:_MOST_CHARACTERS]
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, _HOME_BITS), strict=False))


def is_of_this_machine(caller: str, host: str) -> bool:
    """Whether a request comes from this machine, by the address of who sent it, and was sent to it, by its Host header.

    A page elsewhere can make a browser here ask under a name that leads here; then the name is its own.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return _is_loopback(caller) and (name == "localhost" or _is_loopback(name))


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
