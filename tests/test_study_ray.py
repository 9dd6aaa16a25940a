"""A study on Ray: two machines' worth of Ray on this one, of which one is killed."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import study_work
from members import assert_refused
from study_work import contents, processes_of, small_source, small_study, wait_for
from worker_jobs import is_running

from rightloss.study import engines
from rightloss.study.config import Source
from rightloss.study.engines import OnRay
from rightloss.study.execute import run_study

pytest.importorskip("ray", reason='needs Ray: pip install -e ".[ray]"')
MODULES = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
GROUPS = small_study(Source("slices")).groups()


def silent(number: int, share: float) -> None: ...


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One node, to which tests may add others; its processes find the tests' modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", MODULES)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
        cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": soon})
        yield cluster
        cluster.shutdown()


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return None


@pytest.mark.slow
def test_a_study_of_which_a_machine_is_killed_ends_with_the_same_files(cluster: Any, tmp_path: Path) -> None:
    config, log = small_study(small_source(tmp_path), folds=8), tmp_path / "log"
    log.touch()
    raylet = cluster.add_node(num_cpus=1).all_processes["raylet"][0].process  # which is a machine to Ray
    killed: list[int] = []

    def kill() -> None:
        wait_for(lambda: any(parent_of(pid) == raylet.pid for pid in processes_of(log)))
        killed.extend(pid for pid in processes_of(log) if parent_of(pid) == raylet.pid)
        for each in (raylet.pid, *killed):  # a machine takes its processes along
            os.kill(each, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    told: list[float] = []
    work = partial(study_work.fake, log=log, pause=1.0)
    run_study(config, tmp_path / "out", OnRay(cluster.address), lambda done, total, words: told.append(done), work)
    killer.join()
    run_study(config, tmp_path / "fresh", work=study_work.fake)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    folds = [line.split()[2] for line in log.read_text().splitlines()]
    assert killed
    assert len(folds) > 8, "what the machine was at was run again"
    assert set(folds) == set("01234567")
    assert told == sorted(told)
    wait_for(lambda: not any(map(is_running, killed)))


@pytest.mark.long
def test_over_a_connection_that_was_there_before_errors_come_through_and_killed_groups_are_run_again(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        work = partial(study_work.refused, log=tmp_path / "refused")
        assert_refused(lambda: list(OnRay().run(work, GROUPS[:1], silent)), r"^Expected better data, but got slices, fold 1")
        assert len(processes_of(tmp_path / "refused")) == 1, "it is not tried again"
        work = partial(study_work.deadly, log=tmp_path / "once", times=1)
        assert sorted(dict(OnRay(retries=1).run(work, GROUPS[:2], silent))) == [0, 1]
        assert len(processes_of(tmp_path / "once")) == 3
        work = partial(study_work.deadly, log=tmp_path / "always", times=9)
        with pytest.raises(ChildProcessError, match=r"result of slices, fold 2, seed 0: 2 runs, but Ray gave up .*run again"):
            list(OnRay(retries=0).run(work, GROUPS[1:2], silent))
        monkeypatch.setattr(engines, "__version__", "0.0.1")
        assert_refused(lambda: list(OnRay().run(study_work.fake, GROUPS[:1], silent)), r"rightloss 0\.0\.1 on every machine")
        assert ray.is_initialized(), "it is kept"
    finally:
        ray.shutdown()


@pytest.mark.long
def test_without_an_address_ray_is_started_here_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", MODULES)
    results = OnRay(workers=1).run(partial(study_work.fake, log=tmp_path / "log", pause=1.5), GROUPS, silent)
    assert next(results)[0] in range(4)
    (process,) = set(processes_of(tmp_path / "log"))
    raylet = parent_of(process)
    assert raylet is not None
    results.close()
    wait_for(lambda: not is_running(process) and not is_running(raylet), 20)
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_an_address_where_nothing_answers_is_refused() -> None:
    started = time.monotonic()
    assert_refused(lambda: list(OnRay("127.0.0.1:9").run(study_work.fake, GROUPS, silent)), "a Ray cluster at 127.0.0.1:9")
    assert time.monotonic() - started < 30
