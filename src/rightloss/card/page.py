"""Self-contained pages: one skeleton, one style and one script, from which all pages of the package are made.

Stage: template, context → HTML, or Markdown. A page extends `base.html.j2` and uses `macros.html.j2`; `NAME.html.j2` may have
`NAME.css` and `NAME.js` beside it, for what only this page has. They follow `page.css` and `page.js`.

log-probabilities, labels, π → log-odds of one class by true class, from which `figuresOf` of `page.js` computes figures at
another prevalence or threshold. If the frequency of one class changes from π_c to π′_c and the others keep their proportions,
Bayes' rule adds logit π′_c − logit π_c to the log-odds of that class. The share of each true class at or above a threshold then
gives every figure.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..metrics.one_vs_rest import log_odds
from . import words

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_WORDS = (
    words.number, words.percent, words.share, words.people, words.limits, words.figure, words.listed, words.counted,
    words.markdown_text,
)  # fmt: skip
_MANTISSAS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
_HIGH = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)


def render(template: str, context: Mapping[str, Any], package: str = "rightloss.card") -> str:
    """Return a page as text; in HTML all text of the context is escaped, and only our own script can run.

    Args:
        template: its name in the folder `templates` of `package`, such as "table.html.j2".
        context: what the template needs: an HTML page has a `title`, and as `data` what its script reads by `pageData()`.
            Functions of `words` are filters.
        package: where the template is, with the style and script that only this page has.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys([package, __package__])]),
        autoescape=lambda name: name is None or not name.endswith(".md.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters |= {each.__name__: each for each in _WORDS}
    stem = template.partition(".")[0]
    style, script = (_asset(__package__, f"page.{kind}") + _asset(package, f"{stem}.{kind}") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment.globals |= {"version": __version__, "style": Markup(style), "script": Markup(script), "script_digest": digest}
    return environment.get_template(template).render(context)


def grid(lowest: int, *also: float) -> list[float]:
    """Return round shares from 10^lowest to 0.99, below ½ nearly evenly spaced in the logarithm, and others among them.

    Examples:
        >>> grid(-1, 0.033)[:4]
        [0.033, 0.1, 0.12, 0.15]
    """
    return sorted({*round_shares(lowest), *_HIGH, *also})


def round_shares(lowest: int) -> list[float]:
    """Return round shares from 10^lowest to 0.5, nearly evenly spaced in the logarithm."""
    low = [float(f"{mantissa}e{power}") for power in range(lowest, 0) for mantissa in _MANTISSAS]
    return [each for each in low if each <= 0.5]


def one_against_rest(
    log_probs: Float64[np.ndarray, "n k"],
    target: Int64[np.ndarray, " n"],
    population: Float64[np.ndarray, " k"],
    k: int,
    groups: Int64[np.ndarray, " n"] | None = None,
) -> dict[str, Any]:
    """Return the log-odds of class k, which hold at π_k, of the rows of class k and of each other class.

    Args:
        log_probs: held-out predictions at π.
        target: labels.
        population: π.
        k: the class.
        groups: numbers of patients, if rows are not independent: the rows of one class then count as (Σ m)²/Σ m² independent
            ones, with m the rows of a patient. This is right if a patient's rows are all flagged or none, and else too few,
            so that limits are rather too wide.
    """
    odds = log_odds(log_probs, k)
    rest = [j for j in range(len(population)) if j != k and (target == j).any()]

    def side(j: int) -> dict[str, Any]:
        own = target == j
        return {"odds": _packed(odds[own])} | ({} if groups is None else {"effective": _independent(groups[own])})

    weights = {j: float(population[j] / population[rest].sum()) for j in rest}
    return {"rate": float(population[k]), "own": side(k), "rest": [{"weight": weights[j], **side(j)} for j in rest]}


def _asset(package: str, name: str) -> str:
    """Return the text of a file in the templates of a package; "" if there is none."""
    file = files(package).joinpath("templates", name)
    return file.read_text("utf-8") if file.is_file() else ""


def _packed(odds: Float64[np.ndarray, " n"]) -> str:
    """Return the sorted values as float64 bytes in base64, without rounding."""
    return base64.b64encode(np.sort(odds).astype("<f8").tobytes()).decode("ascii")


def _independent(groups: Int64[np.ndarray, " n"]) -> float:
    sizes = np.unique(groups, return_counts=True)[1]
    return float(sizes.sum() ** 2 / (sizes**2).sum())
