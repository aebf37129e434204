"""Address of the server: host, port, accepted host names, and the token that it asks for."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from retable.platform.errors import UserError

_SHORTEST_TOKEN = 16
HOST = re.compile(r"([\w.-]+|\[[\da-f:.]+])(:(?!(80|443)$)\d{1,5})?|[\da-f.]*(:[\da-f.]*){2,}", re.IGNORECASE)
"""A name or an address, and a port that is not usual; an address of IPv6 also without brackets."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of this machine that nobody else's name server can give away."""


@dataclass(frozen=True)
class Address:
    """Host and port of the server, and the token that it asks for."""

    host: str
    port: int
    token: str = ""
    allowed: tuple[str, ...] = ()
    """More names under which requests are answered, as browsers show them: a proxy's."""
    name: str = ""
    """Of an application beside others of the same cluster: it lies below `/NAME`."""

    @property
    def url(self) -> str:
        """URL that clients open."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{self.prefix.rstrip('/')}"

    @property
    def prefix(self) -> str:
        """Below which all paths lie."""
        return f"/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Under which names requests are answered; none: any.

        Pages of other sites reach a server of this machine by a name of theirs that leads here (DNS rebinding). Where
        others can reach it anyway, the token keeps them out.
        """
        named = (*LOOPBACK, self.host, *map(host_name, self.allowed))
        return tuple(dict.fromkeys(named)) if loopback(self.host) else ()


def host_name(word: str) -> str:
    """Return a host's name as requests have it in their header: in lower case, a port only where it is not usual.

    Raises:
        UserError: on what no request can have there, such as a URL.
    """
    if not HOST.fullmatch(word):
        raise UserError(f"{word!r} is no name of a host; write it as browsers show it, without scheme, path and port")
    return word.lower()


def check_name(name: str) -> None:
    """Refuse a name that is no part of an address, or that hides a part of another application.

    Raises:
        UserError: naming it.
    """
    if not re.fullmatch(r"([a-z][a-z0-9-]{0,39})?", name) or name in ("page", "v1"):
        raise UserError(f"--name {name}: write 1 to 40 of a-z, 0-9 and -, a letter first, and neither page nor v1")


def read_token(host: str, file: str) -> str:
    """Return the token: of RETABLE_TOKEN or a file that is its owner's alone; none is needed on a loopback address.

    The variable is taken away: what is started from here on, Ray's processes above all, inherits no token.

    Raises:
        UserError: where one is needed and there is none, it is short, or others can read the file.
    """
    token, where = os.environ.pop("RETABLE_TOKEN", ""), "RETABLE_TOKEN"
    if file:
        path, where = Path(file).expanduser(), file
        try:
            if stat.S_IMODE(path.stat().st_mode) & _others(path):
                raise UserError(f"{file}: others can read it; run `chmod 600 {shlex.quote(file)}`")
            token = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: no token can be read there; write one: `openssl rand -hex 32`") from error
    if not token and not file and loopback(host):
        return ""
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        missing = "no token" if not token else f"the token of {where} is no {_SHORTEST_TOKEN} letters or digits"
        raise UserError(f"--host {host}: {missing}; set RETABLE_TOKEN, or --token-file FILE: `openssl rand -hex 32`")
    return token


def _others(path: Path) -> int:
    """Return the permissions that a file of a token must not have.

    systemd lets the service's user read a credential by an access control list, which shows as one of the group.
    """
    own = os.environ.get("CREDENTIALS_DIRECTORY")
    return 0o037 if own and path.absolute().parent == Path(own) else 0o077


def loopback(host: str) -> bool:
    """Return whether only this machine can reach a host's address, with or without a port."""
    host = re.sub(r":\d+$", "", host) if host.count(":") < 2 or "]" in host else host
    host = host.strip("[]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return False
    # A socket of IPv6 shows an address of IPv4 as a part of one of its own.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def check_port(host: str, port: int) -> None:
    """Refuse an address that nothing can listen on.

    Raises:
        UserError: naming it.
    """
    try:
        kind, _, _, _, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(sockaddr)
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port}: nothing can listen there ({error}); choose another") from error
