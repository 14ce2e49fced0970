"""What the kernel knows about the other end of a TCP connection.

An end of input says only that the peer will send no more. It may have closed (nobody reads our answer) or
only shut its sending side (`nc -N`, some scripts: it still reads). The two look the same until we write: a
closed peer answers our next byte with a reset, which shows as a hang-up; a half-closed one takes it. So:

- no byte written since the end of input: cannot be told, and after a short grace counts as gone;
- bytes written and no hang-up: it lives and reads;
- a hang-up: it is gone.
"""

from __future__ import annotations

import select
import socket
import sys

if sys.platform == "linux":
    import fcntl
    import termios

    CAN_TELL_HALF_CLOSED = True

    def unaccepted_bytes(sock: socket.socket) -> int:
        """Bytes we have sent which the peer's kernel has not taken yet."""
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return int.from_bytes(answer, sys.byteorder)

    def is_reset(sock: socket.socket) -> bool:
        """Whether the connection is dead in both directions. Never blocks."""
        if sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    def is_gone_or_half_closed(sock: socket.socket) -> bool:
        """Whether an end of input waits behind unread bytes, or the connection is dead. Never blocks."""
        if sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

else:
    CAN_TELL_HALF_CLOSED = False

    def unaccepted_bytes(sock: socket.socket) -> int:
        """Not known here: no progress is seen beyond what our own sends show."""
        return 0

    def is_reset(sock: socket.socket) -> bool:
        """Known only by a failing call: an open socket counts as alive."""
        return sock.fileno() < 0

    def is_gone_or_half_closed(sock: socket.socket) -> bool:
        """Known only by reading: an open socket counts as alive."""
        return sock.fileno() < 0
