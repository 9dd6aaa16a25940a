"""One process that runs groups: both ends of its pipes.

Stage: work, group → shares that are done, then the results or the error; or `Died`.

The process is a plain `python` that takes group after group from its input: a script needs no `if __name__ == "__main__"`, and
a process whose parent is gone ends at once.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any

from ...process_pool import close_pipes, last_line
from ..config import Group
from ..results import RunResult
from .attempt import attempt
from .contract import Report, Work

# Ctrl-C is the parent's business, from the first moment on.
_COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from rightloss.study.engines.child import serve
serve()
"""
_LAST_WORDS = 5.0  # seconds that a process has to end once it has closed its pipes
# Read by libraries when they are imported.
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


@dataclass(frozen=True)
class Died:
    """A process that ended in the middle of a group, and of what, as far as is known."""

    cause: str


class Child:
    """Started when it is needed, and again after it died.

    Args:
        work: what it does with a group, pickled.
    """

    def __init__(self, work: bytes) -> None:
        self.work = work
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped, self.lock = False, threading.Lock()

    def run(self, group: Group, report: Report) -> list[RunResult] | Exception | Died:
        """Waits for the group's results."""
        try:
            process = self._started()
            if process is None:
                return Died("stopped")
            _send(process.stdin, group)
            while isinstance(answer := _received(process.stdout), float):
                report(answer)
            return answer
        except (OSError, EOFError, pickle.UnpicklingError) as error:  # it died, perhaps in the middle of an answer
            return Died(self.close() or str(error))

    def stop(self) -> None:
        """From another thread: the group under way is given up, and no other is taken."""
        with self.lock:
            self.stopped, process = True, self.process  # which the other thread may just be closing
            if process is not None:
                process.kill()

    def close(self) -> str:
        """Leaves no process and no open pipe. Of what it ended: signal or exit code, and the last line it printed."""
        process, self.process = self.process, None
        if process is None:
            return ""
        try:  # one that ends by itself is to say of what
            code = process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        close_pipes(process)
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return ", ".join([cause, *last_line(self.printed)])

    def _started(self) -> subprocess.Popen[bytes] | None:
        """The process; None where no other group is to be taken."""
        with self.lock:
            if self.stopped or self.process is not None:
                return None if self.stopped else self.process
            with ExitStack() as stack:  # which closes it where the process does not start
                self.printed = stack.enter_context(tempfile.TemporaryFile())
                self.process = process = _python(self.printed)
                stack.pop_all()
        _send(process.stdin, self.work)
        return process


def _python(printed: IO[bytes]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _COMMAND],  # -P: what lies in the current folder is no module
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=printed,
        env={**os.environ, "PYTHONPATH": path, **_ONE_THREAD},
    )


def serve() -> None:
    """The process's life: work, then group after group, until the input ends."""
    # Libraries may print: that goes to standard error, and the answers to what was standard output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    work = _unpacked(asked.get())
    while True:
        group = asked.get()
        found = work if isinstance(work, Exception) else attempt(work, group, lambda share: _send(answers, share))
        _send(answers, found)


def _listen(asked: SimpleQueue[Any]) -> None:
    """In a thread, so that the parent's end is noticed in the middle of a group."""
    pipe = os.fdopen(os.dup(0), "rb")  # a process that ends would fail to close `sys.stdin`, were it being read
    try:
        while True:
            asked.put(_received(pipe))
    finally:
        os._exit(0)


def _unpacked(work: bytes) -> Work | Exception:
    try:
        return pickle.loads(work)
    except AttributeError as error:
        return ValueError(f"Expected work that other processes can import, but {error}: move it to a module of its own.")
    except Exception as error:
        return error


def _send(pipe: Any, message: Any) -> None:
    pickle.dump(message, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def _received(pipe: Any) -> Any:
    return pickle.load(pipe)
