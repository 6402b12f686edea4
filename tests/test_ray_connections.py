"""The connections between a driver and its workers: who may open one, and what is believed of what arrives."""

import pickle
import socket
import struct
import threading
import time

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ray_envs import OrderedEnv
from zoo_plugins.vec_envs.arrays import Frame, StepArrays
from zoo_plugins.vec_envs.connections import HEADER, MAX_BYTES, Channel, Listener, LostConnection, connect
from zoo_plugins.vec_envs.worker import OK, RAISED, EnvWorker, Request, Setup

KEY = b"k" * 32


@pytest.fixture
def listener():
    with Listener("127.0.0.1", KEY, backlog=8) as listening:
        yield listening


def in_thread(function, *args):
    """Run a function beside the test; what it raises is of no interest."""

    def run():
        try:
            function(*args)
        except Exception as error:
            raised.append(error)

    raised: list[Exception] = []
    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def accept(listener, seconds=10):
    """Wait until somebody comes who knows the key."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (accepted := listener.accept(0.1)) is not None:
            return accepted
    raise AssertionError("nobody came")


class Bomb:
    """Unpickling it is noticed."""

    exploded = False

    def __reduce__(self):
        return _explode, ()


def _explode():
    Bomb.exploded = True


def test_both_know_the_key(listener):
    """A worker tells its number, after both have proved that they know the key."""
    connected = []
    thread, raised = in_thread(lambda: connected.append(connect(listener.address, KEY, 7)))
    number, ours = accept(listener)
    thread.join()
    assert number == 7
    assert raised == []
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    ours.close()
    connected[0].close()


def test_wrong_key(listener):
    """A stranger with another key is turned away, and is told so; others come in afterwards."""
    thread, raised = in_thread(connect, listener.address, b"x" * 32, 0)
    assert listener.accept(5) is None
    thread.join()
    assert len(raised) == 1
    test_both_know_the_key(listener)


@pytest.mark.parametrize(
    "message",
    [b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack("!i", 2**30), struct.pack("!i", -1) + struct.pack("!Q", 2**40), b"\0" * 4096],
)
def test_strangers(listener, message):
    """Whoever connects and sends something, or nothing, is turned away."""
    stranger = socket.create_connection(listener.address)
    stranger.sendall(message)
    if message:
        stranger.shutdown(socket.SHUT_WR)
    started = time.monotonic()
    assert listener.accept(5) is None
    assert time.monotonic() - started < 4
    stranger.close()


def test_nothing_is_unpickled_before(listener):
    """A pickle in the place of an answer to the challenge is not looked at."""
    bomb = pickle.dumps(Bomb())
    stranger = socket.create_connection(listener.address)
    stranger.sendall(struct.pack("!i", len(bomb)) + bomb + HEADER.pack(OK, len(bomb)) + bomb)
    assert listener.accept(5) is None
    assert not Bomb.exploded
    stranger.close()


def test_only_one_address(listener):
    """The driver listens to one address, and not to all."""
    assert listener.address[0] == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", listener.address[1]), timeout=2)


def pair(timeout=None, **kwargs):
    """Two ends of a connection, the first one a Channel."""
    ours, theirs = socket.socketpair()
    return Channel(ours, timeout, **kwargs), theirs


def test_arrays_in_a_message():
    """Arrays arrive in their place, also in pieces, and what follows them too."""
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(9), c=spaces.Box(0, 1, (0,), np.float32))
    sent, received = StepArrays(space, 3), StepArrays(space, 5)
    rng = np.random.default_rng(0)
    for array in sent:
        array[...] = rng.integers(0, 2, array.shape)
    channel, other = pair()
    sender = Channel(other)
    sender.send(1, b"tail", Frame(sent))
    frame = Frame(received, slice(1, 4))
    assert channel.receive(frame) == (1, b"tail")
    for ours, theirs in zip(received, sent, strict=True):
        np.testing.assert_array_equal(ours[1:4], theirs)
        assert not ours[[0, 4]].any()

    whole = b"".join(Frame(sent).parts)[8:]
    data = HEADER.pack(0, 5) + whole + b"after"
    thread, _ = in_thread(lambda: [(other.sendall(data[i : i + 7]), time.sleep(0.01)) for i in range(0, len(data), 7)])
    assert channel.receive(frame) == (0, b"after")
    thread.join()
    channel.close()
    sender.close()


def test_large_messages():
    """Messages larger than the buffers of the kernel."""
    space = spaces.Box(0, 255, (2**20,), np.uint8)
    sent, received = StepArrays(space, 8), StepArrays(space, 8)
    sent.observations[None][:] = np.arange(2**20, dtype=np.uint64).astype(np.uint8)
    channel, other = pair()
    thread, raised = in_thread(lambda: Channel(other).send(0, b"t" * 10**7, Frame(sent)))
    assert channel.receive(Frame(received)) == (0, b"t" * 10**7)
    thread.join()
    assert raised == []
    np.testing.assert_array_equal(received.observations[None], sent.observations[None])
    channel.close()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_nonsense(data):
    """Whatever arrives, it is either a message or the end of the connection."""
    channel, other = pair(timeout=1.0)
    arrays = StepArrays(spaces.Box(-1, 1, (2,), np.float32), 2)
    other.sendall(data)
    other.close()
    try:
        kind, body = channel.receive(Frame(arrays))
    except LostConnection:
        channel.close()
        return
    assert data[0] == kind
    assert len(data) >= Frame(arrays).size + len(body)
    channel.close()


def test_too_long():
    """A message that announces too much is refused before memory is taken for it."""
    channel, other = pair()
    other.sendall(HEADER.pack(0, MAX_BYTES + 1))
    with pytest.raises(LostConnection, match="2147483648 bytes"):
        channel.receive(Frame())
    with pytest.raises(LostConnection):  # nobody knows where the next one starts
        channel.receive(Frame())
    other.close()


def test_more_than_announced():
    """Bytes after the end of a message belong to nothing that was asked for."""
    channel, other = pair()
    other.sendall(HEADER.pack(0, 3) + b"four")
    with pytest.raises(LostConnection, match="3 bytes"):
        channel.receive(Frame())
    other.close()


def test_polling():
    """Messages are polled for while they come soon, and waited for otherwise."""
    channel, other = pair(timeout=5.0, polls=True)
    received = []

    class Counting:
        def recvmsg_into(self, buffers, ancillary, flags):
            received.append(flags)
            return ours.recvmsg_into(buffers, ancillary, flags)

    ours, channel._socket = channel._socket, Counting()
    other.sendall(HEADER.pack(1, 0))
    assert channel.receive(Frame()) == (1, b"")
    assert received == [socket.MSG_DONTWAIT]
    for expected_to_poll in (True, False):
        received.clear()
        thread, _ = in_thread(lambda: (time.sleep(0.05), other.sendall(HEADER.pack(2, 0))))
        assert channel.receive(Frame()) == (2, b"")
        thread.join()
        assert (received[0] == socket.MSG_DONTWAIT) is expected_to_poll
        assert received[-1] == 0
    other.sendall(HEADER.pack(3, 0))
    channel.receive(Frame())
    other.sendall(HEADER.pack(4, 0))
    received.clear()
    channel.receive(Frame())
    assert received == [socket.MSG_DONTWAIT]
    ours.close()
    other.close()


def test_silence():
    """Silence ends after a time, or when the other side is reported dead."""
    channel, other = pair(timeout=0.2)
    with pytest.raises(LostConnection, match=r"no answer for 0\.2 s"):
        channel.receive(Frame())
    looks = []
    channel, _other = pair(is_alive=lambda: looks.append(0) or len(looks) < 2)
    with pytest.raises(LostConnection, match="Ray reports"):
        channel.receive(Frame())
    assert len(looks) == 2
    other.close()


def test_interrupted_wait():
    """An answer that was not waited for is thrown away by the next request; half an answer ends the connection."""
    channel, other = pair(timeout=0.2)
    channel.request(1, b"", Frame())
    channel.request(2, b"", answer := Frame()) if other.send(HEADER.pack(1, 3) + b"old") else None
    other.sendall(HEADER.pack(2, 3) + b"new")
    assert channel.reply() == (2, b"new")
    assert answer.size == 8
    channel.request(3, b"", Frame())
    other.sendall(HEADER.pack(2, 3) + b"n")
    with pytest.raises(LostConnection, match="no answer"):
        channel.reply()
    with pytest.raises(LostConnection):
        channel.request(4, b"", Frame())
    other.close()


def test_unknown_requests(listener):
    """A worker answers requests that it does not know, or that are nonsense, with an error, and goes on."""
    setup = Setup([pickle.dumps(OrderedEnv)], {})
    thread, raised = in_thread(EnvWorker().serve, listener.address, KEY, 0, setup)
    channel = Channel(accept(listener)[1], timeout=5.0)
    assert channel.receive(Frame())[0] == OK
    arrays = Frame(StepArrays(OrderedEnv().observation_space, 1))
    for kind, body in ((99, b""), (Request.STEP, b"123"), (Request.RESET, b"no pickle")):
        channel.request(kind, body, arrays)
        assert channel.reply()[0] == RAISED
    channel.request(Request.CALL, pickle.dumps(("__import__", [0], b"")), Frame())
    assert channel.reply()[0] == RAISED
    channel.request(Request.RESET, pickle.dumps(([1], [{}])), arrays)
    assert channel.reply()[0] == OK
    channel.close()
    thread.join()
    assert raised == []


def test_driver_out_of_reach():
    """A worker that can't connect says where to, and what the reason might be."""
    with Listener("127.0.0.1", KEY, backlog=1) as listening:
        address = listening.address
    with pytest.raises(ConnectionError, match=rf"can't connect to the driver at 127\.0\.0\.1:{address[1]} .*firewall"):
        EnvWorker().serve(address, KEY, 0, Setup([], {}))
