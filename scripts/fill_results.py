"""
Write the tables of benchmark results into the pages that explain them.

    python scripts/fill_results.py            # after a benchmark has written a new JSON into docs/results/
    python scripts/fill_results.py --check    # only look, as `make docs` does

A page in docs/results/ says where tables belong, from which file, and which script's `to_markdown` makes them:

    <!-- benchmark_her her-calls.json -->
    ...
    <!-- end -->

README.md has one summary of them, `<!-- speed_summary -->`, and a picture of it (scripts/speed_summary.py).
"""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

import speed_summary

RESULTS = Path(__file__).parent.parent / "docs" / "results"
BLOCK = re.compile(r"^(<!-- (\w+) ([\w.-]+\.json) -->\n)(.*?)(^<!-- end -->)$", flags=re.DOTALL | re.MULTILINE)
README = RESULTS.parent.parent / "README.md"
SUMMARY = re.compile(r"^(<!-- speed_summary -->\n)(.*?)(^<!-- end -->)$", flags=re.DOTALL | re.MULTILINE)


def fill(text: str, folder: Path = RESULTS) -> str:
    """
    Put current tables into a page.

    :param text: The page
    :param folder: Where its JSON files are
    :return: the page with current tables
    """

    def write(match: re.Match[str]) -> str:
        begin, script, name, _, end = match.groups()
        tables = importlib.import_module(script).to_markdown(json.loads((folder / name).read_text()))
        return f"{begin}\n{tables.strip()}\n\n{end}"

    return BLOCK.sub(write, text)


def fill_summary(readme: Path, folder: Path, check: bool) -> int:
    """
    Put the current summary and its picture where README.md shows them.

    :param readme: README.md
    :param folder: Where JSON files are, and the picture
    :param check: Only look
    :return: how many of the two were out of date
    """
    ratios = speed_summary.read_ratios(folder)
    text, picture = readme.read_text(), folder / speed_summary.PICTURE
    filled = SUMMARY.sub(lambda match: f"{match[1]}\n{speed_summary.to_markdown(ratios)}\n\n{match[3]}", text)
    stale = [readme.name] if filled != text else []
    if not speed_summary.is_current(picture, ratios):
        stale.append(picture.name)
    for name in stale:
        print(f"{name}: {'out of date, run scripts/fill_results.py' if check else 'filled'}")
    if stale and not check:
        readme.write_text(filled)
        speed_summary.plot(ratios, picture)
    return len(stale)


def main(arguments: list[str] | None = None, folder: Path = RESULTS, readme: Path | None = README) -> int:
    """
    Fill, or check, all pages.

    :param arguments: Command line arguments
    :param folder: Where pages and JSON files are
    :param readme: README.md; None: leave it out
    :return: exit status: 1 if a page was out of date and only looked at
    """
    parser = argparse.ArgumentParser(description="Write the tables of benchmark results into the pages that explain them.")
    parser.add_argument("--check", action="store_true", help="only say which pages are out of date")
    check = parser.parse_args(arguments).check
    stale = 0 if readme is None else fill_summary(readme, folder, check)
    for page in sorted(folder.glob("*.md")):
        text = page.read_text()
        filled = fill(text, folder)
        if filled != text:
            stale += 1
            print(f"{page.name}: {'out of date, run scripts/fill_results.py' if check else 'filled'}")
            if not check:
                page.write_text(filled)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
