"""A table in LaTeX: needs `booktabs`, and nothing else.

Stage: `Table` → text of a `.tex` file, to be read by `\\input`.
"""

from __future__ import annotations

from .layouts import Line, Section, Table

_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "π": r"$\pi$",
    "−": "$-$",
    "–": "--",
    "±": r"$\pm$",
    "½": r"$\frac12$",
    "∞": r"$\infty$",
}
_LAST_KNOWN = "\u017f"  # up to here, every letter prints in plain LaTeX


def to_latex(table: Table) -> str:
    """A float with the title above and the notes below. Our intervals stand in small print under the figures."""
    width = len(table.columns) + 1
    body = [line for section in table.sections for line in _section(section, width)]
    head = " & ".join(["", *(escaped(column) for column in table.columns)])
    notes = [rf"  \par\smallskip\parbox{{\textwidth}}{{\scriptsize {escaped(note)}}}" for note in table.notes]
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}[htbp]",
        r"  \centering",
        rf"  \caption{{{escaped(table.title)}}}",
        rf"  \label{{tab:{table.name.replace('_', '-')}}}",
        r"  \footnotesize\setlength{\tabcolsep}{3pt}",
        r"  \makebox[\textwidth][c]{%",
        rf"  \begin{{tabular}}{{l{'r' * (width - 1)}}}",
        r"    \toprule",
        rf"    {head} \\",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """So that LaTeX prints it as it stands."""
    return "".join(_SIGNS.get(sign, sign if sign <= _LAST_KNOWN else "?") for sign in text)


def _section(section: Section, width: int) -> list[str]:
    title = rf"    \multicolumn{{{width}}}{{l}}{{\textit{{{escaped(section.title)}}}}} \\"
    return [r"    \midrule", title, *(text for line in section.lines for text in _line(line))]


def _line(line: Line) -> list[str]:
    values = " & ".join([escaped(line.label), *(escaped(entry.value) for entry in line.entries)])
    if not any(entry.interval for entry in line.entries):
        return [rf"    {values} \\"]
    ends = " & ".join(["", *(rf"{{\tiny {escaped(entry.interval)}}}" if entry.interval else "" for entry in line.entries)])
    return [rf"    {values} \\", rf"    {ends} \\[2pt]"]
