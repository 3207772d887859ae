"""Who is shown the status page of a manager (`process.status_page`),
beside metrics that may be for more people.

The page tells more than metrics do: addresses and hosts of all nodes.  `local` shows it to browsers
of this machine only, wherever the metrics are shown.  And it is shown under a name that is ours
only: a page of somebody else's, in the browser of somebody who may look, could otherwise have its
own name lead here, and read what is shown (DNS rebinding).
"""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ...schema.config import ProcessSection


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request."""

    peer: str
    """IP address of who asks."""
    own: str
    """Our IP address of that connection."""
    host: str
    """The header Host."""


def host_name(header: str) -> str:
    """Return a header Host without its port, in lower case and without the dot that may end it."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0].removesuffix(".") if ":" in name else name.removesuffix(".")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found


def is_same_machine(peer: str, own: str) -> bool:
    """True if a connection between these addresses does not leave this machine."""
    found = _address(peer)
    return found is not None and (found.is_loopback or found == _address(own))


@dataclass(frozen=True, slots=True)
class PageRule:
    """What is settled for one process."""

    section: ProcessSection
    names: Mapping[str, str]
    """Names of ours, and why they are."""

    @classmethod
    def of(cls, section: ProcessSection) -> "PageRule":
        """Return the rule of a process."""
        names = {socket.gethostname().lower(): "this machine"}
        names |= {name.lower(): "process.status_page_names" for name in section.status_page_names}
        for address in (section.listen, section.metrics_address):
            if address.startswith("tcp:"):
                names[host_name(address.removeprefix("tcp:"))] = "its own address"
        return cls(section, names)

    def refusal(self, asked: Asked) -> str:
        """Return why the page is not shown; empty: it is."""
        shown = self.section.status_page
        if shown == "off":
            return "the status page is not shown: process.status_page is off"
        if shown == "local" and not is_same_machine(asked.peer, asked.own):
            return (
                "the status page is shown on its own machine only: set process.status_page to "
                '"open"'
            )
        name = host_name(asked.host)
        # a name without a dot is nobody's on the internet
        if _address(name) is not None or "." not in name or name in self.names:
            return ""
        return f"the status page is not known as {name!r}: add it to process.status_page_names"
