"""A process of a run that greets as what it is not: impostor.py CASE [SETUID FOLDER]

  foreign   brings the userfaultfd of another process
  exec      becomes a setuid program before the pager has looked who it is, until there is FOLDER/end

Prints what came of it.
"""

import array
import ctypes
import mmap
import os
import signal
import select
import socket
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
POOL = int(os.environ["EBB_POOL_BYTES"])
MAGIC, VERSION, GREET_START = 0x31424245, 9, 0


def until(holds):
    """Whoever runs this ends it if that never comes."""
    while not holds():
        select.select([], [], [], 0.01)


def make_uffd():
    """One that needs no right: for user mode only."""
    uffd = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK | 1)
    assert uffd >= 0, os.strerror(ctypes.get_errno())
    return uffd


def greet(uffd, pool):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(os.environ["EBB_SOCKET"])
    greeting = struct.pack("=4I2Q", MAGIC, VERSION, GREET_START, 0, pool, POOL)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [uffd]))
    line.sendmsg([greeting], [rights])
    return line


def make_pool():
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pool = libc.mmap(None, ctypes.c_size_t(POOL), 3, private, -1, ctypes.c_size_t(0))
    assert pool != ctypes.c_void_p(-1).value
    return pool


def foreign():
    pool = make_pool()
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        socket.send_fds(theirs, [b"x"], [make_uffd()])
        signal.pause()
    _, (uffd,), _, _ = socket.recv_fds(own, 1, 1)
    line = greet(uffd, pool)
    answer = line.recv(8)
    # Refused, or hung up on.
    print("foreign: taken" if answer and struct.unpack("=2I", answer)[1] == 0 else "foreign: refused")
    os.kill(child, signal.SIGKILL)


def pager_of(process):
    with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as children:
        for child in children.read().split():
            with open(f"/proc/{child}/cmdline", "rb") as words:
                if b"__pager" in words.read():
                    return int(child)
    raise AssertionError("no pager")


def stop(process):
    """Until all of its threads stand: on a busy machine that takes a while."""
    os.kill(process, signal.SIGSTOP)

    def stands():
        states = set()
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/stat", encoding="ascii") as stat:
                states.add(stat.read().rpartition(")")[2].split()[0])
        return states == {"T"}

    until(stands)


def effective_user(process):
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        return [line.split()[2] for line in status if line.startswith("Uid:")]


def become(program, folder):
    pager, own = pager_of(os.getppid()), os.getpid()
    pool, uffd = make_pool(), make_uffd()
    here, there = os.pipe()
    if os.fork() == 0:
        os.write(there, b"x")
        until(lambda: effective_user(own) == ["0"])
        os.kill(pager, signal.SIGCONT)
        until(lambda: os.path.exists(os.path.join(folder, "end")))
        print("exec: acts as", *effective_user(own), flush=True)
        os.kill(own, signal.SIGKILL)
        os._exit(0)
    # The other has joined, for which it needs the pager.
    os.read(here, 1)
    stop(pager)
    line = greet(uffd, pool)
    os.set_inheritable(line.fileno(), True)
    os.execv(program, [program, "victim", folder])


if sys.argv[1] == "foreign":
    foreign()
else:
    become(*sys.argv[2:])
