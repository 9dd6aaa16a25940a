"""Where what was computed once is kept.

Stage: name → a file in the user's cache folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """`RIGHTLOSS_CACHE` where it is set, else `rightloss` in the system's place for caches; it need not exist yet."""
    if own := os.environ.get("RIGHTLOSS_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "rightloss" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rightloss"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rightloss"
