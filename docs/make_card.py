"""Make the card of docs/card.md's program, docs/built/card.html, and the picture of its first screen, in Chromium.

The output of the program is written into the page.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from pathlib import Path

from make_pictures import run

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "card.md", ROOT / "docs" / "pictures" / "card.png"


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import open_browser

    names, page_with_output = run(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page_with_output, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, open_browser(Path(folder)) as page:
        names["made"].write(Path(folder) / "card")
        page.resize(1120, 700)
        page.open(Path(folder) / "card" / "card.html")
        shutil.copy(Path(folder) / "card" / "card.html", ROOT / "docs" / "built" / "card.html")
        PICTURE.write_bytes(base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"]))


if __name__ == "__main__":
    main()
