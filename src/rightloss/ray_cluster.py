"""A Ray cluster: one that runs, or a temporary one on this machine.

Stage: address → the module `ray`, connected; work is given to it as tasks, which Ray runs again if a worker dies.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STORE = 200 << 20  # bytes: results are small
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


@contextmanager
def connected(address: str | None, workers: int | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster; one that was started here is shut down.

    Args:
        address: as for `ray.init`; None for the cluster that this process is connected to, or else a temporary one.
        workers: processors of a temporary one; all by default.

    Raises:
        ValueError: if no cluster answers.
    """
    # Unless the user says otherwise: no usage statistics, and no warnings about GPUs.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    import ray

    if address is None and ray.is_initialized():
        yield ray
        return
    try:
        if address is None:
            ray.init("local", num_cpus=workers, include_dashboard=False, object_store_memory=_STORE, **_QUIET)
        else:
            _connect(ray, address)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        place = "on this machine" if address is None else f"at {address}"
        raise ValueError(
            f"Expected a Ray cluster {place}, but there is none ({last_line(error)}): `ray start --head` starts one and tells "
            "its address."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def other_version(version: str, own: str) -> ValueError:
    """Return the error for a machine that has another version of rightloss."""
    return ValueError(
        f"Expected rightloss {version} on every machine of the cluster, but {socket.gethostname()} has {own}: install the same."
    )


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message, which in those of Ray says what is wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():  # if nothing answers, Ray would try for minutes
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    ray.init(address, **_QUIET)
