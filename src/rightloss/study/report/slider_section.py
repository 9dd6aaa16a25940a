"""The section in which a reader moves the prevalence.

Stage: `Panel`s → `Html`, which the page's script brings to life.
"""

from __future__ import annotations

from .markup import Html, html, scrolling, tag, void
from .panels import Panel
from .slider import grid, slider_data, to_script

_ABOUT = (
    "A net trained for one prevalence can be used at another: its log-odds are moved by the difference of the two "
    "prevalences' log-odds, and nothing is trained again. That is allowed where benign nodules look the same in both "
    "populations, and malignant ones, too: where only the mix differs. Choose how rare malignancy is, and from which "
    "probability on you would act."
)
_BENEFIT = (
    "Net benefit counts malignant nodules acted on, less needless actions at what they cost by the threshold you chose, "
    "per 10,000 people; acting on nobody is worth 0. In the chart it is a share of the best possible: every malignant "
    "nodule found, nobody else disturbed; what is below −50 % runs along the lower edge. Figures here have no intervals: where "
    "malignancy is rare, PPV and net benefit rest on the few benign nodules of the test that are acted on."
)


def slider_section(shown: list[Panel]) -> Html:
    heads = ("PPV", "NPV", "TPR", "TNR", "net benefit per 10,000")
    table = tag(
        "table",
        [
            tag("thead", tag("tr", [tag("td"), *(tag("th", head, scope="col") for head in heads)])),
            tag("tbody", id="values"),
        ],
        aria_label="Predictive values and net benefit by loss",
    )
    return html(
        [
            tag("p", _ABOUT),
            tag(
                "noscript",
                tag("p", "This part of the page needs JavaScript; all that it shows is computed in the page.", class_="note"),
            ),
            tag("div", [*_selects(), *_sliders()], class_="controls"),
            tag("p", "", id="spoken", class_="lead spoken", aria_live="polite"),
            scrolling(table, "Predictive values and net benefit by loss"),
            tag("p", _BENEFIT, class_="small"),
            tag(
                "div",
                [_chart("ppv-chart", "PPV: share of those acted on who are malignant"), _chart("benefit-chart", _SHARE)],
                class_="charts",
            ),
            tag("h3", "Of 10,000 people"),
            tag("div", "", id="confusions", class_="cards"),
            tag("script", Html(to_script(slider_data(shown))), type="application/json", id="slider-data"),
        ]
    )


_SHARE = "Net benefit, as a share of the best possible"
_TICKS = (1e-4, 1e-3, 0.01, 0.1, 0.5)


def _selects() -> list[Html]:
    return [
        tag("div", [tag("label", label, for_=name), tag("select", "", id=name)], class_="control")
        for name, label in (("panel", "Nodules and net"), ("trained", "Prevalence that the nets were trained for"))
    ]


def _sliders() -> list[Html]:
    return [
        _slider("prevalence", "Prevalence where the nets are used", grid(-4)),
        _slider("threshold", "Probability from which to act", grid(-3)),
    ]


def _slider(name: str, label: str, values: list[float]) -> Html:
    last = len(values) - 1
    ticks = {values.index(each): f"{100 * each:g} %" for each in values if each in _TICKS}
    return tag(
        "div",
        [
            tag("label", label, for_=name),
            tag("output", "", id=f"{name}-shown", for_=name, aria_live="off"),
            void("input", type="range", id=name, min=0, max=last, step=1, aria_describedby=f"{name}-hint"),
            tag(
                "div",
                [tag("span", text, style=f"left:{100 * place / last:.1f}%") for place, text in ticks.items()],
                class_="ticks",
                aria_hidden="true",
            ),
            tag("span", "", id=f"{name}-hint", class_="hint"),
        ],
        class_="control",
    )


def _chart(name: str, caption: str) -> Html:
    picture = tag(
        "div", "", id=name, class_="chart", role="img", aria_label=f"{caption}, over prevalence; figures in the table above"
    )
    return tag("figure", [tag("h3", caption), picture])
