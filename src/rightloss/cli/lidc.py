"""`rightloss lidc prepare --dicom DIR --out nodules.npz`.

Stage: CT series on disk → a nodule archive, and what was skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal import leave, progress

lidc = typer.Typer(help="LIDC-IDRI, the paper's case study.", no_args_is_help=True, add_completion=False)


@lidc.callback()
def _group() -> None: ...


@lidc.command()
def prepare(
    dicom: Annotated[Path, typer.Option(help="Folder with LIDC-IDRI's CT series, at any depth.")],
    out: Annotated[Path, typer.Option(help="The file to write, .npz; a stopped run resumes.")],
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per processor, at most 8.")] = None,
) -> None:
    """Cut every nodule from CT, 64³ voxels at 1 mm, and write them to one file."""
    if not out.name:
        raise ValueError(f"Expected a file to write, but got the folder {out}: nodules.npz, say.")
    with progress("series") as show:
        from ..lidc.ct import prepare as prepare_archive
        from ..lidc.ct.dicom_files import printable

        prepared = prepare_archive(dicom, out, workers=workers, progress=show)
    print(prepared)
    print(f"what was skipped, and why: {printable(prepared.remarks_path)}")
    if prepared.path is None:
        leave("no nodule could be cut, so no archive was written", 1)
    print(printable(prepared.path))
    if prepared.parts is not None:
        leave("the archive is incomplete; run again to try again what failed", 1)
