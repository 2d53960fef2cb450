"""terminal.py SCENARIO COMMAND...: types at a terminal while COMMAND runs in it.

Each scenario ends with "ok" and 0, or says what was missing from the screen and ends with 1.
"""
import os
import pty
import re
import select
import shlex
import signal
import sys
import time

# Whoever waits for so long waits for what never comes.
HANG_SECONDS = 600


class Terminal:
    def __init__(self, command):
        self.screen = ""
        self.seen = 0
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            # Whoever runs the tests in the background has these ignored, and all below inherit that.
            for number in signal.SIGINT, signal.SIGQUIT, signal.SIGHUP:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)

    def read(self, seconds):
        ready, _, _ = select.select([self.terminal], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.terminal, 65536)
        except OSError:
            return False
        self.screen += data.decode("utf-8", "replace")
        return bool(data)

    def expect(self, pattern, seconds=HANG_SECONDS):
        """Waits for a pattern in what was written since the last match."""
        end = time.monotonic() + seconds
        while True:
            match = re.search(pattern, self.screen[self.seen:])
            if match:
                self.seen += match.end()
                return match
            if time.monotonic() > end:
                self.fail("no %r" % pattern)
            if not self.read(0.1):
                match = re.search(pattern, self.screen[self.seen:])
                if match:
                    self.seen += match.end()
                    return match
                self.fail("the terminal closed before %r" % pattern)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def status(self, seconds=HANG_SECONDS):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            self.read(0.05)
        self.fail("does not end")

    def expect_job(self):
        """Waits until the shell has given the terminal to a job."""
        end = time.monotonic() + HANG_SECONDS
        while os.tcgetpgrp(self.terminal) == self.child:
            if time.monotonic() > end:
                self.fail("the shell keeps the terminal")
            self.read(0.01)

    def fail(self, why):
        print("%s; screen:\n%s" % (why, self.screen))
        os.kill(self.child, signal.SIGKILL)
        sys.exit(1)

    def require(self, what, holds):
        if not holds:
            self.fail(what)


def shell():
    """An interactive shell whose prompt is told from its echo."""
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"])
    terminal.type("PS1='ready''> '; bind 'set enable-bracketed-paste off'\n")
    terminal.expect("ready> ")
    return terminal


def key_ends_plain_program(command):
    terminal = Terminal(command)
    terminal.expect("started")
    terminal.type("\x03")
    code = terminal.status()
    terminal.require("status %d instead of 130" % code, code == 130)


def key_reaches_handler(command):
    terminal = Terminal(command)
    terminal.expect("ready")
    terminal.type("\x03")
    terminal.expect("signal 2")
    code = terminal.status()
    terminal.require("status %d instead of 40" % code, code == 40)


def key_is_one_signal(command):
    terminal = Terminal(command)
    terminal.expect("ready")
    terminal.type("\x03")
    terminal.expect(r"(?<!\d)1 interrupt")
    terminal.require("bad status", terminal.status() == 0)


def stop_and_go(command):
    terminal = shell()
    terminal.type(shlex.join(command) + "\n")
    terminal.expect("ready\r")
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.expect("ready> ")
    terminal.type("echo alive-$((1+1))\n")
    terminal.expect("alive-2")
    terminal.type("fg\n")
    terminal.expect_job()
    terminal.type("\x03")
    terminal.expect("signal 2")
    terminal.type("echo code-$?\n")
    terminal.expect("code-40")
    terminal.type("exit 0\n")
    terminal.status()


def background(command):
    terminal = shell()
    terminal.type(shlex.join(command) + " &\n")
    terminal.expect("ready\r")
    terminal.type("kill %1\n")
    terminal.expect("signal 15")
    terminal.type("wait %1; echo done\n")
    terminal.expect("Exit 40")
    terminal.type("exit 0\n")
    terminal.status()


def typing(command):
    """The command copies its input: the program is in the terminal's foreground."""
    terminal = shell()
    terminal.type(shlex.join(command) + "\n")
    terminal.expect_job()
    terminal.type("one line\n")
    # The echo, perhaps a message of Ebb's, and the copy.
    terminal.expect("one line\r")
    terminal.expect("one line")
    terminal.type("\x04")
    terminal.expect("copied")
    terminal.expect("ready> ")
    terminal.type("echo code-$?\n")
    terminal.expect("code-0")
    terminal.type("exit 0\n")
    terminal.status()


def tostop(command):
    """The terminal stops whoever writes to it from the background: the pager writes the report."""
    terminal = Terminal(["sh", "-c", 'stty tostop; exec "$@"', "sh"] + command)
    terminal.expect("hello")
    terminal.require("bad status", terminal.status() == 0)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        key_ends_plain_program, key_reaches_handler, key_is_one_signal, stop_and_go, background,
        typing, tostop,
    )
}
SCENARIOS[sys.argv[1]](sys.argv[2:])
print("ok")
