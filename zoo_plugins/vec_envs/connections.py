"""
TCP connections between a driver and its workers.

A connection carries nothing before both sides have proved that they know the same key (the challenge of
:mod:`multiprocessing.connection`). Afterwards each message is a header, arrays of a size that both know, and a pickle whose
length the header tells. Who knows the key can run code on the other side; what is sent is not encrypted.

Messages are not sent by ``multiprocessing.connection`` itself, since it copies what it receives three times: with two workers
of four 84x84x4 images, a round trip takes 1.7 times as long; with small observations, 6 % longer.
"""

import os
import socket
import struct
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from zoo_plugins.vec_envs.arrays import HEADER_SIZE, Frame

HEADER = struct.Struct("<BxxxI")
WHO = struct.Struct("<I")
MAX_BYTES = 2**31 - 1  # of a pickle: anything longer is a mistake
HANDSHAKE_TIMEOUT = 2.0  # seconds for each message of a stranger
LOOK_EVERY = 0.5  # seconds between two looks at a worker that does not answer
POLL_SECONDS = 300e-6
assert HEADER.size == HEADER_SIZE


class LostConnection(ConnectionError):
    """The other side is gone, does not answer, or sends nonsense."""


class Channel:
    """
    A connection between a driver and a worker, which takes turns: one message there, one message back.

    :param connected: The socket, authenticated
    :param timeout: How long the other side may take for a message, in seconds. ``None``: as long as it lives
    :param is_alive: Tells whether the other side lives, asked twice a second while it does not answer
    :param polls: Whether to look for messages again and again for 300 microseconds before waiting, as long as they use to come
        within that time. To be woken up takes some 40 of them
    """

    def __init__(
        self,
        connected: socket.socket,
        timeout: float | None = None,
        is_alive: Callable[[], bool] = lambda: True,
        polls: bool = False,
    ):
        self._socket = connected
        self._is_alive = is_alive
        self._polls = polls
        self._comes_soon = polls
        self._expected: Frame | None = None
        self.set_timeout(timeout)

    def set_timeout(self, timeout: float | None) -> None:
        """
        Change how long the other side may take.

        :param timeout: Seconds for a message. ``None``: as long as it lives
        """
        self._timeout = timeout
        look_every = LOOK_EVERY if timeout is None else min(LOOK_EVERY, timeout)
        # By the kernel: with Python's own timeouts, each call would be two
        set_kernel_timeout(self._socket, socket.SO_RCVTIMEO, look_every)
        set_kernel_timeout(self._socket, socket.SO_SNDTIMEO, timeout or 0.0)

    def request(self, kind: int, body: bytes | memoryview, reply: Frame) -> None:
        """
        Send a message, and expect a reply to it.

        A reply that was expected before, and not taken, is thrown away.

        :param kind: Kind of message, 0 to 255
        :param body: What follows the header
        :param reply: Where to put the reply's header and arrays
        :raises LostConnection: if the other side is gone
        """
        if self._expected is not None:
            self.reply()
        self.send(kind, body)
        self._expected = reply

    def reply(self) -> tuple[int, bytearray]:
        """
        Wait for the reply to the last request. Its arrays go where the request said.

        :return: kind of reply, and the pickle that follows the arrays
        :raises LostConnection: if the other side is gone, or takes too long
        """
        assert self._expected is not None, "a reply without a request"
        received = self.receive(self._expected)
        self._expected = None
        return received

    def send(self, kind: int, body: bytes | memoryview = b"", arrays: Frame | None = None) -> None:
        """
        Send a message.

        :param kind: Kind of message, 0 to 255
        :param body: What follows the arrays
        :param arrays: The arrays, ``None`` for a message without
        :raises LostConnection: if the other side is gone
        """
        try:
            if arrays is None:
                self._socket.sendall(HEADER.pack(kind, len(body)) + body)
                return
            HEADER.pack_into(arrays.header, 0, kind, len(body))
            parts = [*arrays.parts, body] if body else arrays.parts
            sent = self._socket.sendmsg(parts)
            if sent < arrays.size + len(body):
                self._socket.sendall(b"".join(parts)[sent:])
        except OSError as error:
            self.close()  # part of it may have been sent
            raise LostConnection(f"sending failed: {error}") from error

    def receive(self, frame: Frame) -> tuple[int, bytearray]:
        """
        Wait for a message.

        :param frame: Where to put its header and arrays
        :return: kind of message, and what follows the arrays
        :raises LostConnection: if the other side is gone, or takes too long
        """
        started = time.perf_counter()
        poll_until = started + POLL_SECONDS if self._comes_soon else None
        received = self._wait(lambda flags: self._socket.recvmsg_into(frame.parts_and_spare, 0, flags)[0], poll_until)
        self._comes_soon = self._polls and time.perf_counter() - started < POLL_SECONDS
        try:
            if received < frame.size:
                self._receive_rest(frame, received)
            kind, length = HEADER.unpack(frame.header)
            early = max(0, received - frame.size)
            if not early <= length <= MAX_BYTES:
                raise LostConnection(f"a message of {length} bytes was announced")
            body = bytearray(length)
            body[:early] = frame.spare[:early]
            if early < length:
                self._fill(memoryview(body)[early:])
            return kind, body
        except BaseException:
            self.close()  # where the next message starts is not known any more
            raise

    def close(self) -> None:
        """Close the connection, which ends the worker's service."""
        self._socket.close()

    def _receive_rest(self, frame: Frame, received: int) -> None:
        for part in frame.parts:
            if received < part.nbytes:
                self._fill(part[received:])
            received = max(0, received - part.nbytes)

    def _fill(self, buffer: memoryview) -> None:
        while buffer:
            received = self._wait(lambda flags, buffer=buffer: self._socket.recv_into(buffer, 0, flags))  # type: ignore[misc]
            buffer = buffer[received:]

    def _wait(self, receive: Callable[[int], int], poll_until: float | None = None) -> int:
        """
        Call a function that receives some bytes, until it does.

        :param receive: Takes the flags of the system call, returns the number of bytes, 0 at the end of the connection
        :param poll_until: Until when to look again and again, by ``time.perf_counter``
        :return: number of bytes, not 0
        """
        started = None
        while True:
            polling = poll_until is not None and time.perf_counter() < poll_until
            try:
                received = receive(socket.MSG_DONTWAIT if polling else 0)
            except BlockingIOError:
                if polling:
                    os.sched_yield()  # to whoever else needs this CPU, such as the worker
                    continue
                now = time.monotonic()
                started = started or now - LOOK_EVERY
                if self._timeout is not None and now - started >= self._timeout:
                    raise LostConnection(f"no answer for {self._timeout:g} s") from None
                if not self._is_alive():
                    raise LostConnection("Ray reports its end") from None
            except OSError as error:
                raise LostConnection(f"receiving failed: {error}") from error
            else:
                if received == 0:
                    raise LostConnection("the connection was closed")
                return received


class Listener:
    """
    Where workers connect to the driver; to be closed as soon as they have.

    :param host: Address of the driver, the only one that is listened to
    :param key: What both sides have to know
    :param backlog: Number of workers that may connect at the same time
    """

    def __init__(self, host: str, key: bytes, backlog: int):
        self._key = key
        self._socket = socket.create_server((host, 0), family=family_of(host), backlog=backlog)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def accept(self, timeout: float) -> tuple[int, socket.socket] | None:
        """
        Wait for a worker to connect.

        :param timeout: How long, in seconds
        :return: the worker's number and its socket; ``None`` if nobody came, or one that does not know the key
        """
        self._socket.settimeout(timeout)
        try:
            connected, _ = self._socket.accept()
        except TimeoutError:
            return None
        try:
            prepare(connected)
            number = _welcome(connected, self._key)
        except (OSError, EOFError, AuthenticationError, struct.error):
            connected.close()
            return None
        return number, connected


def connect(address: tuple[str, int], key: bytes, number: int) -> socket.socket:
    """
    Connect a worker to its driver.

    :param address: The driver's
    :param key: What both sides have to know
    :param number: Number of the worker
    :return: the socket
    :raises OSError: if the driver can't be reached
    :raises multiprocessing.AuthenticationError: if it does not know the key
    """
    connected = socket.create_connection(address, timeout=30.0)
    try:
        prepare(connected)
        set_kernel_timeout(connected, socket.SO_RCVTIMEO, 30.0)  # the driver may be busy with others
        with Connection(os.dup(connected.fileno())) as connection:
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
            connection.send_bytes(WHO.pack(number))
    except BaseException:
        connected.close()
        raise
    return connected


def _welcome(connected: socket.socket, key: bytes) -> int:
    set_kernel_timeout(connected, socket.SO_RCVTIMEO, HANDSHAKE_TIMEOUT)
    set_kernel_timeout(connected, socket.SO_SNDTIMEO, HANDSHAKE_TIMEOUT)
    # A duplicate, as a Connection closes what it is given
    with Connection(os.dup(connected.fileno())) as connection:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        (number,) = WHO.unpack(connection.recv_bytes(WHO.size))
    return int(number)


def prepare(connected: socket.socket) -> None:
    """
    Send small messages at once, and notice a machine that disappeared without a word.

    :param connected: The socket
    """
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def set_kernel_timeout(connected: socket.socket, option: int, seconds: float) -> None:
    """
    Let blocking calls fail with ``BlockingIOError`` after some time.

    :param connected: The socket
    :param option: ``SO_RCVTIMEO`` or ``SO_SNDTIMEO``
    :param seconds: How long, 0 for ever
    """
    microseconds = round(seconds * 1e6)
    connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", microseconds // 10**6, microseconds % 10**6))


def family_of(host: str) -> socket.AddressFamily:
    """
    Tell IPv6 addresses from others.

    :param host: An address
    :return: its family
    """
    return socket.AF_INET6 if ":" in host else socket.AF_INET
