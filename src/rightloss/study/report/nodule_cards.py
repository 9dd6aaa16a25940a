"""The misjudged nodules, each with its picture and what readers said.

Stage: `StudyResults` → `Html`.
"""

from __future__ import annotations

import base64
import io

import numpy as np
from jaxtyping import UInt8

from ..results import DataSummary, StudyResults
from ..summary.words import source
from .hardest_cases import BENIGN, MALIGNANT, Misjudged, judging_loss, misjudged
from .markup import Html, html, tag, void
from .words import SHORT

_READERS = ("no reader", "one reader", "two readers", "three readers", "four readers", "five readers", "six readers")
_SIDES = {BENIGN: "Benign, taken for malignant", MALIGNANT: "Malignant, taken for benign"}


def nodule_cards(results: StudyResults) -> Html | None:
    """Of each data set those of either side; None where nothing was tested."""
    parts = []
    for name, data in results.data.items():
        worst = misjudged(results, name)
        for side, found in worst.items():
            if found:
                title = _SIDES[side] + (f" ({source(name)})" if len(results.data) > 1 else "")
                cards = [_card(each, data, results) for each in found]
                parts += [tag("h3", title), tag("ol", cards, class_="nodules")]
    return html(parts) if parts else None


def rated(counts: np.ndarray) -> str:
    """ "rated 1, 2, 2 by three readers"."""
    ratings = np.repeat(np.arange(1, 6), counts).tolist()
    readers = _READERS[len(ratings)] if len(ratings) < len(_READERS) else f"{len(ratings)} readers"
    return f"rated {', '.join(map(str, ratings))} by {readers}" if ratings else "not rated"


def picture(plane: UInt8[np.ndarray, "h w"]) -> str:
    """A PNG as a data URI."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(plane).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _card(found: Misjudged, data: DataSummary, results: StudyResults) -> Html:
    nodule, side = int(data.nodules[found.row]), "benign" if found.side == BENIGN else "malignant"
    other = "malignant" if found.side == BENIGN else "benign"
    readers = f"{rated(data.ratings[found.row])}." if len(data.ratings) else ""
    judge = judging_loss(results)
    others = [f"{SHORT[loss]} {100 * wrong:.0f} %" for loss, wrong in found.by_loss.items() if loss != judge]
    judged = f"{other} with {100 * found.wrong:.0f} % on average; on the wrong side in {100 * found.share:.0f} % of tests."
    image = void("img", src=picture(data.pictures[found.row]), alt=f"Middle plane of nodule {nodule}, {side}")
    return tag(
        "li",
        [
            image,
            tag("strong", f"Nodule {nodule}"),
            tag("span", readers[:1].upper() + readers[1:]),
            tag("span", judged[:1].upper() + judged[1:]),
            *([tag("span", f"Other losses: {', '.join(others)}.", class_="small")] if others else []),
        ],
    )
