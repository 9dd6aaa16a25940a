"""Text for readers is plain English: no unclear phrases, no sentences that are too long. codespell checks single words."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SKIP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["codespell"]["skip"]
FILES = sorted(
    path
    for part in re.findall(r"^PROSE := (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0].split()
    for path in ([ROOT / part] if (ROOT / part).is_file() else (ROOT / part).rglob("*"))
    if path.suffix in {".py", ".md", ".j2"} and path != Path(__file__)
    if not any(fnmatch(str(path.relative_to(ROOT)), pattern) for pattern in SKIP)
)
PAGES = [
    path
    for path in FILES
    if path.suffix == ".md" and not {"results", "benchmarks", "evidence"} & {*path.relative_to(ROOT).parts}
]  # made by commands
LONGEST = 45  # words

# Patterns of phrases, and what to write.
PHRASES = {
    r"\bbut for rounding": "up to rounding",
    r"\bcounts? for nothing": "is ignored",
    r"\btold apart": "distinguished",
    r"\bseen to be\b": "found, or left out",
    r"\bby heart\b": "memorised",
    r"\bin the place of": "instead of",
    r"\bnow and then\b": "sometimes, or how often",
    r"\bto be had\b": "available",
    r"\bwhat there is\b": "name it",
    r"\bsuch as there (?:is|are)\b": "any",
    r"\btells? of\b": "shows",
    r"\bhangs? (?:on|together)\b": "depends on, is correlated",
    r"\bcomes? true\b": "is calibrated",
    r"\bthat it be\b": "that it is",
    r"\bwere (?:they|it|there) (?!not)\w": "if they were",
    r"\bin one go\b": "together, at a time",
    r"\bthere and back\b": "and the reverse",
    r"\bfor want of": "without",
    r"\bas yet\b": "so far",
    r"\bof old\b": "before",
    r"\bat hand\b": "available",
    r"\bin vain\b": "without effect",
    r"\bso as (?:not )?to\b": "to",
    r"\bby and by\b": "later",
}


def phrases_in(text: str) -> list[str]:
    """Return each phrase of `text` that is in the table, with its line and what to write instead."""
    return [
        f"{text.count(chr(10), 0, found.start()) + 1}: {' '.join(found[0].split())!r} ==> {better}"
        for pattern, better in PHRASES.items()
        for found in re.finditer(pattern.replace(" ", r"\s+"), text, re.IGNORECASE)
    ]


def sentences_of(page: str) -> list[str]:
    """Return the sentences of a Markdown page, without code, tables, headings and formulas; an item of a list ends one."""
    page = re.sub(r"^( *)```.*?^\1```|^---\n.*?^---\n|\$\$.*?\$\$|<!--.*?-->", "\n\n", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"^ *(?:\||#|!!!|\?\?\?|<|!\[).*", "\n", page, flags=re.MULTILINE)
    page = re.sub(r"\]\([^)]*\)|`[^`]*`", "] code", page)
    parts = re.split(r"\n\s*\n|^ *(?:[-*]|\d+\.) ", page, flags=re.MULTILINE)
    return [" ".join(found.split()) for part in parts for found in re.split(r"(?<=[.!?:;])[*_)\"”]*\s+", part)]


@pytest.mark.long
def test_no_file_has_an_unclear_phrase() -> None:
    found = [f"{path.relative_to(ROOT)}:{each}" for path in FILES for each in phrases_in(path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_no_sentence_of_a_page_is_too_long() -> None:
    found = [(path, each) for path in PAGES for each in sentences_of(path.read_text(encoding="utf-8"))]
    long = [
        f"{path.relative_to(ROOT)}: {len(each.split())} words: {each}" for path, each in found if len(each.split()) > LONGEST
    ]
    assert not long, "\n".join(long)


def test_a_phrase_is_found_across_lines_with_its_number() -> None:
    assert phrases_in("Classes that cannot be told\n    apart.") == ["1: 'told apart' ==> distinguished"]
    assert not phrases_in("Classes that cannot be distinguished.")


def test_sentences_are_those_of_prose() -> None:
    page = "# A title\n\nOne two. Three\nfour `a. b.`!\n\n```py\nfive. six.\n```\n\n- seven\n- eight\n\n| nine. | ten. |\n"
    assert [each for each in sentences_of(page) if each] == ["One two.", "Three four ] code!", "seven", "eight"]
