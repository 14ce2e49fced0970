"""Listening sockets, with the options that accepted sockets inherit."""

from __future__ import annotations

import errno
import socket
import sys


def _reason(error: OSError, bind_addr: str, port: int) -> str:
    where = f"{bind_addr or '*'}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another program; set another port, or stop that program"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"bind_addr {bind_addr} is not an address of this machine"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"not allowed to listen on {where}; ports below 1024 need a privilege"
    return f"cannot listen on {where}: {error.strerror or error}"


def open_listener(bind_addr: str, port: int, *, client_stall_secs: float, backlog: int = 1024) -> socket.socket:
    """A bound, listening, non-blocking TCP socket.

    `bind_addr` is an IPv4 or IPv6 address or a host name (its first address counts); "" is every IPv4
    address, "::" every address of both families where the system can do that; `port` 0 lets it choose.
    On Linux accepted sockets inherit a TCP_USER_TIMEOUT of `client_stall_secs`: the kernel itself gives up a
    peer that acknowledges nothing for so long, also after we have closed and only its buffer is left.

    Raises OSError with a message that names address, port and remedy; its errno is kept.
    """
    try:
        infos = socket.getaddrinfo(
            bind_addr or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, f"bind_addr {bind_addr!r} cannot be resolved: {error}") from error
    if not bind_addr:
        infos.sort(key=lambda info: info[0] != socket.AF_INET)
    family, kind, protocol, _, address = infos[0]
    try:
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(error.errno, _reason(error, bind_addr, port)) from error
    try:
        if sys.platform != "win32":
            # On Windows this option would let a second server steal the port; there it is not needed either.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if bind_addr == "::" else 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            timeout_ms = max(1, int(client_stall_secs * 1000))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, _reason(error, bind_addr, port)) from error
    return listener
