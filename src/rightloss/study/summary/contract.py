"""The summary of a study: the input of tables, figures and the page.

Stage: `CellSummary`s, `CellPair`s, `PaperCheck`s → `Summary` → `summary.json`, and back.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

from ...metrics import Figure
from ..config import StudyConfig
from ..results import CellKey

OURS = "ours, not the paper's"  # place of a check of our own claim
CONSTANT = "constant"  # in place of a loss: always answering π
LOG_LIKELIHOOD, AUC, TPR, MEAN = "expected_log_likelihood", "auc", "tpr", "mean_prediction"
COSTS = (100, 1000)  # of a missed cancer, in needless actions: act from 1/(1 + C) on
Outcome = Literal["reproduces", "does not", "undecided", "cannot be tested"]
Standing = Literal["ahead", "behind", "undecided"]


@dataclass(frozen=True)
class CellSummary:
    """The figures of one cell of the study.

    Attributes:
        key: settings that its runs share; for always answering π, the loss is "constant" and the net "".
        figures: by name, as `rightloss.metrics.evaluate` names them; `auc` is the mean over folds and seeds; `tpr_cost_C`,
            `tnr_cost_C` and `net_benefit_cost_C` if a missed cancer costs C times a needless action. For ratings, see
            `summarise.py`.
        folds, seeds: how many it covers.
        nodules, patients: how many were tested.

    Examples:
        >>> from rightloss.metrics import Figure
        >>> from rightloss.study.results import CellKey
        >>> from rightloss.study.summary import CellSummary
        >>> key = CellKey("contours", "rebalanced", "convnet", "categorical", "population", "map", 0.001, "weighted")
        >>> row = CellSummary(key, {"auc": Figure(0.9, 0.85, 0.94)}, folds=5, seeds=1, nodules=700, patients=400)
        >>> print(row.figures["auc"])
        0.9 (0.85 to 0.94)
    """

    key: CellKey
    figures: Mapping[str, Figure]
    folds: int
    seeds: int
    nodules: int
    patients: int


@dataclass(frozen=True)
class PairedFigure:
    """Ours minus theirs in one figure, on the same nodules.

    Attributes:
        figure: the difference and its interval.
        folds: number of folds in which it is defined.
        ahead: number of folds in which ours is larger.
        behind: number of folds in which theirs is larger.

    Examples:
        >>> from rightloss.metrics import Figure
        >>> from rightloss.study.summary import PairedFigure
        >>> PairedFigure(Figure(0.02, 0.01, 0.03), folds=5, ahead=5, behind=0).standing
        'ahead'
    """

    figure: Figure
    folds: int
    ahead: int
    behind: int

    @property
    def standing(self) -> Standing:
        """Whether ours is ahead; undecided if the interval contains 0 or is missing."""
        if self.figure.low > 0:
            return "ahead"
        return "behind" if self.figure.high < 0 else "undecided"


@dataclass(frozen=True)
class CellPair:
    """Two cells that differ in one respect.

    Attributes:
        about: the respect: "loss" (ours is the default), "published" (ours is the published form, theirs the weighted loss),
            "unlabelled" (logit adjustment with unlabelled patients and without), "plain" (ours is the weighted loss, theirs
            plain cross-entropy), "population" (the lowest against the highest), "start" (ours from equal classes, theirs from
            π), "net", "inference" or "likelihood".
        ours, theirs: the cells.
        differences: by figure, for two classes `expected_log_likelihood`, `auc`, those of decisions and `mean_prediction`;
            of a published form at the lowest population also `log_mean_off`, |log(mean prediction/π)| averaged over all of
            them; between populations `auc` alone.

    Examples:
        >>> from rightloss.metrics import Figure
        >>> from rightloss.study.results import CellKey
        >>> from rightloss.study.summary import CellPair, PairedFigure
        >>> ours = CellKey("contours", "rebalanced", "convnet", "categorical", "population", "map", 0.001, "information-gain")
        >>> auc = PairedFigure(Figure(0.02, -0.01, 0.05), folds=5, ahead=3, behind=2)
        >>> CellPair("loss", ours, ours._replace(loss="weighted"), {"auc": auc}).differences["auc"].standing
        'undecided'
    """

    about: str
    ours: CellKey
    theirs: CellKey
    differences: Mapping[str, PairedFigure]


@dataclass(frozen=True)
class PaperCheck:
    """Whether a finding of the paper is seen in this study.

    Attributes:
        about: the finding, in a few words.
        where: data set, net, and what else the study varies.
        verdict: "reproduces", "does not", "undecided", or "cannot be tested" for lack of data.
        place: its place in the paper.
        paper: the paper's figures, "" if it gives none.
        ours: our figures in few words, with intervals; or why there are none.
        trivial: whether always answering π does the same; such a check says nothing of the paper's loss.
        setting: what it was made with, by field of `CellKey`: data, minibatches, net, likelihood, start, inference, loss.

    Examples:
        >>> from rightloss.study.summary import PaperCheck
        >>> PaperCheck("the weighted loss has a lower AUC", "ConvNet", "reproduces", ours="AUC −0.04 (−0.06 to −0.02)").verdict
        'reproduces'
    """

    about: str
    where: str
    verdict: Outcome
    place: str = ""
    paper: str = ""
    ours: str = ""
    trivial: bool = False
    setting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """The summary of a study.

    Attributes:
        config: the study.
        missing: number of runs that are not done.
        rows: in the study's order; before the first row of a population and data set, the one that always answers π.
        comparisons: between rows.
        checks: of the paper's findings.
        matched_rows, matched_comparisons: the same of predictions moved so that their mean is π on the validation part, for two
            classes: what is left of a loss beyond its intercept.

    Examples:
        >>> from rightloss.study import PRESETS
        >>> from rightloss.study.summary import Summary
        >>> Summary(PRESETS["quick"], 40, (), (), ()).to_json().splitlines()[1]
        ' "config": {'
    """

    config: StudyConfig
    missing: int
    rows: tuple[CellSummary, ...]
    comparisons: tuple[CellPair, ...]
    checks: tuple[PaperCheck, ...]
    matched_rows: tuple[CellSummary, ...] = ()
    matched_comparisons: tuple[CellPair, ...] = ()

    def to_json(self) -> str:
        """Return the text of `summary.json`, in which undefined numbers are null."""
        content = {**{name: _plain(each) for name, each in vars(self).items()}, "config": self.config.to_dict()}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Summary:
        """Read `summary.json`."""
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                StudyConfig.from_dict(content["config"]),
                content["missing"],
                tuple(_cell_summary(row) for row in content["rows"]),
                tuple(_comparison(each) for each in content["comparisons"]),
                tuple(PaperCheck(**check) for check in content["checks"]),
                tuple(_cell_summary(row) for row in content.get("matched_rows", ())),
                tuple(_comparison(each) for each in content.get("matched_comparisons", ())),
            )
        except FileNotFoundError:
            raise ValueError(f"Expected a summary in {path}, but there is none: make the report first.") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"Expected {path} to hold the summary of a study, but it does not: make the report again."
            ) from error


def _plain(value: Any) -> Any:
    """Convert `value` for JSON: objects to dictionaries, NaN to null, infinity to text."""
    if isinstance(value, Figure):
        ends = {name: _plain(getattr(value, name)) for name in ("value", "low", "high")}
        return {**ends, "reason": value.reason} if value.reason else ends
    if isinstance(value, CellKey):
        return value._asdict()
    if isinstance(value, Mapping) or is_dataclass(value):
        return {name: _plain(each) for name, each in (value if isinstance(value, Mapping) else vars(value)).items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _cell_summary(content: dict[str, Any]) -> CellSummary:
    figures = {name: _figure(each) for name, each in content["figures"].items()}
    return CellSummary(**{**content, "key": CellKey(**content["key"]), "figures": figures})


def _comparison(content: dict[str, Any]) -> CellPair:
    found = {name: PairedFigure(**{**each, "figure": _figure(each["figure"])}) for name, each in content["differences"].items()}
    return CellPair(content["about"], CellKey(**content["ours"]), CellKey(**content["theirs"]), found)


def _figure(content: dict[str, Any]) -> Figure:
    value, low, high = (math.nan if content[name] is None else float(content[name]) for name in ("value", "low", "high"))
    return Figure(value, low, high, content.get("reason", ""))
