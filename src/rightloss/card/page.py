"""Self-contained pages: one skeleton, one style and one script, from which all pages of the package are made.

Stage: template, context → HTML, or Markdown. A page extends `base.html.j2` and uses `macros.html.j2`; `NAME.html.j2` may have
`NAME.css` and `NAME.js` beside it, for what only this page has. They follow `page.css` and `page.js`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from .. import __version__
from . import words

_WORDS = (words.number, words.percent, words.share, words.people, words.limits, words.figure, words.listed, words.counted)


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
    environment.globals |= {
        "version": __version__,
        "style": Markup(style),
        "script": Markup(script),
        "script_digest": digest,
    }
    return environment.get_template(template).render(context)


def _asset(package: str, name: str) -> str:
    """Return the text of a file in the templates of a package; "" if there is none."""
    file = files(package).joinpath("templates", name)
    return file.read_text("utf-8") if file.is_file() else ""
