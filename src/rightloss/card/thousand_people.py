"""The card's first picture, 1,000 people: flagged and ill, flagged and well, missed, and the rest.

Stage: an operating point → whole people who add up → a path of points for each kind. `templates/card.html.j2` has the picture's
frame (`figure.crowd`), `card.css` its look, and `picture` of `card.js` draws it again when something moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..metrics import OperatingPoint

_PLACES = ("found", "false_alarms", "rest", "missed")  # the missed are far from the flagged


def whole_people(at: OperatingPoint) -> dict[str, int]:
    """Return people in whole people who add up: found, false alarms, missed, and the rest."""
    parts = {"found": at.found.value, "false_alarms": at.false_alarms.value, "missed": at.missed.value}
    return _whole(parts | {"rest": at.people - sum(parts.values())}, round(at.people))


def dots(whole_people: Mapping[str, int]) -> dict[str, str]:
    """Return a path for each kind of people of 1,000: a point for each, 25 in a column, one column after the other."""
    total = sum(whole_people.values())
    paths, place = {}, 0
    for name, count in _whole({name: 1000 * whole_people[name] / total for name in _PLACES}, 1000).items():
        paths[name] = "".join(f"M{10 * (i // 25) + 5} {10 * (i % 25) + 5}h0" for i in range(place, place + count))
        place += count
    return paths


def _whole(parts: Mapping[str, float], total: int) -> dict[str, int]:
    """Return whole numbers that sum to `total`, by the largest remainders."""
    whole = {name: math.floor(each + 1e-9) for name, each in parts.items()}
    for name in sorted(parts, key=lambda name: whole[name] - parts[name])[: total - sum(whole.values())]:
        whole[name] += 1
    return whole
