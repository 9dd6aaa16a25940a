"""torch.compile makes one graph of a loss, and the same numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("backend", "count"), [("aot_eager", 11), pytest.param("inductor", 1, marks=pytest.mark.slow)])
def test_losses_compile_into_one_graph_with_the_same_numbers(backend: str, count: int) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("torch's inductor backend needs a C++ compiler (g++), and there is none here")
    script = Path(__file__).with_name("compiled.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, str(script), backend], env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("same compiled:") == count
