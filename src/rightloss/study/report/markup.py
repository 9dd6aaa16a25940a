"""HTML that cannot be broken by the text in it: whatever is not `Html` already is escaped.

Stage: text, `Html` → `Html`.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Html(str):
    """Text that is HTML already."""


Content = str | Iterable[str]


def tag(name: str, content: Content = "", **attributes: str | bool | int | None) -> Html:
    """`<name attributes>content</name>`; of a list, one after the other.

    `True` gives an attribute without a value, `False` and `None` leave it out; `class_` is class, `aria_label` aria-label.
    """
    return Html(f"<{name}{_attributes(attributes)}>{html(content)}</{name}>")


def void(name: str, **attributes: str | bool | int | None) -> Html:
    """An element without content, such as `img` or `input`."""
    return Html(f"<{name}{_attributes(attributes)}>")


def html(content: Content) -> Html:
    """Escaped, but for what is HTML already."""
    if isinstance(content, Html):
        return content
    return Html(escape(content)) if isinstance(content, str) else Html("".join(html(each) for each in content))


def scrolling(content: Html, label: str) -> Html:
    """What is wider than a phone scrolls within itself, by touch or by keyboard."""
    return tag("div", content, class_="wide", tabindex=0, role="region", aria_label=label)


def _attributes(attributes: dict[str, str | bool | int | None]) -> str:
    parts = []
    for name, value in attributes.items():
        key = name.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(f" {key}")
        elif value is not None and value is not False:
            parts.append(f' {key}="{escape(str(value))}"')
    return "".join(parts)
