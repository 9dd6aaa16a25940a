"""What became of each series and nodule.

Stage: table, `Found`, parts, failures → `Prepared` → a table of what was skipped, and why.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...atomic_files import write_whole
from .dicom_index import Found
from .pixels import printable
from .shards import Part
from .workers import Failure

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Prepared", "Remark", "summary_of", "write_remarks"]


@dataclass(frozen=True)
class Remark:
    """A series (`nodule` None) or a nodule that was skipped, or was used but not as it should be; `text` says why."""

    series_uid: str
    nodule: int | None
    skipped: bool
    text: str


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did.

    Attributes:
        path: the archive; None where not one nodule could be cut, and none was written.
        remarks_path: the remarks, as a table.
        nodules: how many are in the archive.
        wanted: how many there are in the series asked for.
        series_read: how many series gave patches, or could have.
        series_missing: UIDs of those that are not in the folder.
        series_failed: UIDs of those that failed by a crash, a time-out or the disk: another time they may be read.
        parts: the folder in which what was done is kept for another run; None where there is no need of one.
        remarks: what was skipped, and what was used with reservations, by series and nodule.
    """

    path: Path | None
    remarks_path: Path
    nodules: int
    wanted: int
    series_read: int
    series_missing: tuple[str, ...]
    series_failed: tuple[str, ...]
    parts: Path | None
    remarks: tuple[Remark, ...]

    def __str__(self) -> str:
        unread = sum(remark.skipped and remark.nodule is None for remark in self.remarks)
        unread -= len(self.series_missing) + len(self.series_failed)
        skipped = sum(remark.skipped and remark.nodule is not None for remark in self.remarks)
        notes = sum(not remark.skipped for remark in self.remarks)
        lines = [
            f"nodules: {self.nodules} of {self.wanted} written, {skipped} skipped in series that were read",
            f"series: {self.series_read} read, {len(self.series_missing)} not found, {unread} unreadable; {notes} remarks",
        ]
        if self.parts is not None:
            lines += [
                f"incomplete: {len(self.series_failed)} series failed (crash, time-out or disk), or files did not open",
                f"running the same again tries those again and keeps the rest, which is in {printable(self.parts)}",
            ]
        return "\n".join(lines)


def summary_of(
    target: Path, parts: Path, table: DataFrame, found: Found, made: dict[str, Part], failures: dict[str, Failure]
) -> Prepared:
    uids = list(dict.fromkeys(table["series_uid"]))
    remarks = [Remark("", None, False, f"not looked at: {text}") for text in found.unreadable]
    for uid in uids:
        if uid not in found.series:
            remarks.append(Remark(uid, None, True, "not found"))
        elif uid in failures:
            remarks.append(Remark(uid, None, True, printable(failures[uid].reason)))
        else:
            remarks += [Remark(uid, number, True, text) for number, text in made[uid].skipped.items()]
            remarks += [Remark(uid, number, False, text) for number, text in made[uid].notes]
    count = sum(len(part.nodules) for part in made.values())
    failed = tuple(uid for uid, failure in failures.items() if failure.again)
    incomplete = bool(failed) or (bool(found.unreadable) and count < len(table))
    return Prepared(
        path=target if count else None,
        remarks_path=target.with_suffix(".skipped.csv"),
        nodules=count,
        wanted=len(table),
        series_read=len(made),
        series_missing=tuple(uid for uid in uids if uid not in found.series),
        series_failed=failed,
        parts=parts if incomplete else None,
        remarks=tuple(remarks),
    )


def write_remarks(prepared: Prepared, table: DataFrame) -> None:
    patients = dict(zip(table["series_uid"], table["patient_id"], strict=True))
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["patient_id", "series_uid", "nodule", "outcome", "reason"])
    for remark in prepared.remarks:
        number = "" if remark.nodule is None else remark.nodule
        outcome = "skipped" if remark.skipped else "used"
        writer.writerow([patients.get(remark.series_uid, ""), remark.series_uid, number, outcome, remark.text])
    write_whole(prepared.remarks_path, lines.getvalue())
