"""Run the programs of a page and write the pictures that it shows.

    .venv/bin/python docs/make_pictures.py [PAGE]      # PAGE is docs/screening.md by default

A picture `pictures/NAME.png` is the figure of the axes with the name NAME in the page's programs. With `--print` the output of
the programs is also written into the page, after each line "It prints:".
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PROGRAM = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<then>\s*It prints:\n\n```text\n(?P<printed>.*?)^```)?", re.DOTALL | re.M
)
PICTURE = re.compile(r"\]\((pictures/(\w+)\.png)\)")


def run(text: str) -> tuple[dict[str, Any], str]:
    """Run a page's programs; return the names they define, and the page with their output."""
    names: dict[str, Any] = {"__name__": "page"}

    def execute(block: re.Match[str]) -> str:
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(block["code"], "page", "exec"), names)
        if not block["then"]:
            return block[0]
        return block[0].replace(f"```text\n{block['printed']}```", f"```text\n{output.getvalue()}```")

    return names, PROGRAM.sub(execute, text)


def main() -> None:
    arguments = [each for each in sys.argv[1:] if each != "--print"]
    page = Path(arguments[0]) if arguments else FOLDER / "screening.md"
    text = page.read_text(encoding="utf-8")
    names, printed = run(text)
    for path, name in PICTURE.findall(text):
        figure = names[name].figure
        (FOLDER / path).parent.mkdir(exist_ok=True)
        figure.savefig(FOLDER / path, dpi=150)
        print(f"docs/{path}")
    if "--print" in sys.argv:
        page.write_text(printed, encoding="utf-8")


if __name__ == "__main__":
    main()
