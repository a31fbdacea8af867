"""Whom a network address stands for, where requests are counted by it."""

from ipaddress import IPv6Address, IPv6Network, ip_address

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
