"""Where this program may send something of its own accord: to addresses that the operator has named, over TLS.

A name is looked up once, what it stands for is checked, and that address is gone to: otherwise the name could stand for
something else by then.
"""

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from contracts.errors import CallerError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Target:
    """An address that may be gone to."""

    scheme: str
    host: str
    port: int
    is_loopback: bool


def target_of(url: str) -> Target:
    """The parts of an address.

    Raises: CallerError 422 `address_refused` for what is none: https with a host, and no login, fragment or blank in
    it; http to this very machine alone.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower().rstrip("."), parts.port
    except ValueError:
        raise _refused("it is no address") from None
    if not host or not url.isprintable() or not url.isascii() or " " in url or "\\" in url:
        raise _refused("it is no address")
    if "@" in parts.netloc or parts.fragment:
        raise _refused("it may have no login and no fragment")
    is_loopback = host in LOOPBACK
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback):
        raise _refused("it must begin with https://")
    return Target(parts.scheme, host, port or _PORTS[parts.scheme], is_loopback)


def allowed_target(url: str, hosts: Collection[str]) -> Target:
    """The parts of an address whose host the operator has named: `host`, `host:port`, or `*.domain` for all below it.

    Raises: CallerError 422 `address_refused`.
    """
    target = target_of(url)
    named = {target.host, f"{target.host}:{target.port}"} & {each.lower() for each in hosts}
    above = (each[1:].lower() for each in hosts if each.startswith("*."))
    if not named and not any(target.host.endswith(each) for each in above):
        raise _refused(f"the operator does not allow {target.host}; see PERDURE_WEBHOOK_HOSTS")
    return target


def is_reachable(target: Target, address: str, *, private: bool) -> bool:
    """Whether what the host's name stands for may be gone to.

    Never what belongs to the network's own workings (link-local with the clouds' metadata, multicast, reserved); this
    machine for a target that says so by name; a private network where the operator allows it.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified or (ip.is_reserved and not ip.is_loopback):
        return False
    if ip.is_loopback or target.is_loopback:
        return target.is_loopback and ip.is_loopback
    return ip.is_global or (private and ip.is_private)


def _refused(why: str) -> CallerError:
    return CallerError("address_refused", f"this address cannot be used: {why}", status=422)
