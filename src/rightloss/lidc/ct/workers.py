"""Work in other processes that may crash, hang or run out of memory without taking the rest along.

Stage: name of a function, jobs → (job, its result or `Failure`), as they are done.

A job and its result are JSON. A worker is a plain `python` that takes job after job from its input, so that nothing is pickled,
a script needs no `if __name__ == "__main__"`, and a worker whose parent is gone ends at once.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from ...process_pool import close_pipes, last_line, let_go

__all__ = ["Failure", "Worker", "run_jobs", "serve"]

_COMMAND = "import sys; from rightloss.lidc.ct.workers import serve; serve(sys.argv[1], float(sys.argv[2]))"


@dataclass(frozen=True)
class Failure:
    """A job that gave no result.

    Attributes:
        reason: why.
        error: the name of the error, or of the signal that ended the process.
        again: it may go well another time: the process died or took too long, or the disk or memory failed it.
    """

    reason: str
    error: str = ""
    again: bool = False


def run_jobs(function: str, jobs: Sequence[Any], workers: int, timeout: float) -> Generator[tuple[Any, Any]]:
    """Each job with what the function made of it, or a `Failure`, in the order in which they are done.

    Args:
        function: "package.module:name", of one argument.
        jobs: what to call it with, one after the other.
        workers: number of processes; 0 calls it in this one, without protection.
        timeout: seconds after which a job is given up.

    Raises:
        ChildProcessError: a process could not be started, which is no job's fault.
    """
    if workers == 0:
        for job in jobs:
            yield job, _call(function, job)
        return
    crew = [Worker(function, timeout) for _ in range(min(workers, len(jobs)))]
    idle = list(crew)

    def run(job: Any) -> Any:
        worker = idle.pop()  # as many threads as workers: there is always one
        try:
            return worker.run(job)
        finally:
            idle.append(worker)

    pool = ThreadPoolExecutor(max(1, len(crew)))
    with let_go(crew, pool):
        tasks = {pool.submit(run, job): job for job in jobs}
        for task in as_completed(tasks):
            yield tasks[task], task.result()


def serve(function: str, timeout: float) -> None:
    """A worker's life: "ready" out, then job in and `[result, failure]` out, a line each, until the input ends."""
    jobs: SimpleQueue[str] = SimpleQueue()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    # Libraries may print: that goes to standard error, and the answers to what was standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _imported(function)
    print("ready", file=answers, flush=True)
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        job = json.loads(jobs.get())
        # Nobody may be left to end it, and a decoder that hangs may not let the listening thread do so.
        _alarm(math.ceil(timeout) + 5)
        found = _call(function, job)
        _alarm(0)
        answer = [None, [found.reason, found.error, found.again]] if isinstance(found, Failure) else [found, None]
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    """One process, started when it is needed, and again after one that died."""

    def __init__(self, function: str, timeout: float) -> None:
        self.function, self.timeout = function, timeout
        self.process: subprocess.Popen[str] | None = None
        self.stopped, self.lock = threading.Event(), threading.Lock()

    def run(self, job: Any) -> Any:
        process, late = self._started(), threading.Event()
        if process is None:
            return Failure("stopped")

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.timeout, give_up)
        timer.start()
        answer = _asked(process, json.dumps(job))
        timer.cancel()
        timer.join()  # or it might still be about to kill
        if answer.endswith("\n"):
            if late.is_set():
                self.close()
            found, failure = json.loads(answer)
            return found if failure is None else Failure(*failure)
        last = self.close()
        if late.is_set():
            return Failure(f"given up after {self.timeout:g} s", TimeoutError.__name__, True)
        cause = _cause(process.returncode)
        return Failure(f"the process that read it died ({', '.join([cause, *last])})", cause, True)

    def stop(self) -> None:
        """From another thread: the job under way fails, and no other is taken."""
        with self.lock:
            self.stopped.set()
            if self.process is not None:
                self.process.kill()

    def close(self) -> list[str]:
        """Leaves no process and no open pipe; the last line it printed, if any."""
        process, self.process = self.process, None
        if process is None:
            return []
        process.kill()  # unless it is dead already
        process.wait()
        close_pipes(process)
        return last_line(self.printed)

    def _started(self) -> subprocess.Popen[str] | None:
        """The process, ready for a job; None where no other is to be taken."""
        if self.process is not None and self.process.poll() is not None:
            self.close()  # it died while it had nothing to do
        with self.lock:
            if self.stopped.is_set() or self.process is not None:
                return None if self.stopped.is_set() else self.process
            path = os.pathsep.join(part for part in sys.path if part)
            self.printed = tempfile.TemporaryFile()
            self.process = process = subprocess.Popen(
                # -P: what lies in the current folder is no module
                [sys.executable, "-P", "-c", _COMMAND, self.function, str(self.timeout)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.printed,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        assert process.stdout is not None
        if process.stdout.readline() == "ready\n":  # imports are not the job's time
            return process
        last = self.close()
        if self.stopped.is_set():
            return None
        raise ChildProcessError(f"a process could not be started ({', '.join([_cause(process.returncode), *last])})")


def _asked(process: subprocess.Popen[str], question: str) -> str:
    """The answer, a line; less than a line where the process died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(question + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:  # it died before it had the job
        return ""


def _listen(jobs: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def _alarm(seconds: int) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _call(function: str, job: Any) -> Any:
    try:
        return _imported(function)(job)
    except Exception as error:  # of one job; the others go on
        name = type(error).__name__
        return Failure(str(error) or name, name, isinstance(error, OSError | MemoryError))


def _imported(function: str) -> Callable[[Any], Any]:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
