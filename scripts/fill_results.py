"""
Write the tables of benchmark results into the pages that explain them.

    python scripts/fill_results.py            # after a benchmark has written a new JSON into docs/results/
    python scripts/fill_results.py --check    # only look, as `make docs` does

A page in docs/results/ says where tables belong, from which file, and which script's `to_markdown` makes them:

    <!-- benchmark_her her-calls.json -->
    ...
    <!-- end -->
"""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "docs" / "results"
BLOCK = re.compile(r"^(<!-- (\w+) ([\w.-]+\.json) -->\n)(.*?)(^<!-- end -->)$", flags=re.DOTALL | re.MULTILINE)


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


def main(arguments: list[str] | None = None, folder: Path = RESULTS) -> int:
    """
    Fill, or check, all pages.

    :param arguments: Command line arguments
    :param folder: Where pages and JSON files are
    :return: exit status: 1 if a page was out of date and only looked at
    """
    parser = argparse.ArgumentParser(description="Write the tables of benchmark results into the pages that explain them.")
    parser.add_argument("--check", action="store_true", help="only say which pages are out of date")
    check = parser.parse_args(arguments).check
    stale = 0
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
