"""When chains warm up, are hot, and are kept."""

from __future__ import annotations

import pytest
from members import assert_refused

from rightloss.inference.sgmcmc.schedules import Schedule, schedule_of


def test_a_cycle_begins_large_and_cold_and_keeps_draws_where_it_is_small_and_hot() -> None:
    cycle = [Schedule(250, 50, 1, cycles=2).phase(step) for step in range(50, 250)]
    assert cycle[:100] == cycle[100:]
    assert cycle[0].factor == 1
    assert cycle[50].factor == pytest.approx(0.5)
    assert [each.hot for each in cycle[:100]] == [False] * 25 + [True] * 75
    assert [each.kept for each in cycle[:100]] == [False] * 50 + [True] * 50
    assert [step for step in range(250) if Schedule(250, 48, 7).looks(step)] == list(range(6, 49, 6))
    assert not any(Schedule(250, 0, 7).looks(step) for step in range(250))
    assert sum(Schedule(250, 50, 7).phase(step).kept for step in range(250)) == 200 // 7


def test_a_negative_warm_up_is_refused() -> None:
    assert_refused(lambda: schedule_of("constant", 10, -1, 1, 1), "warmup")
