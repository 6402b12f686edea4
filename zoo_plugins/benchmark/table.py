"""The result of ``benchmark``, for the eye."""

from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Table


def print_table(report: dict[str, Any], console: Console) -> None:
    """
    Print a table with bars.

    :param report: The report
    :param console: Where to
    """
    largest = max(1.0, *(row["ratio"] for row in report["comparisons"].values()))
    table = Table(title="Work per CPU second, and how many times as much of it ours does", title_justify="left")
    table.add_column("")
    for head in ("upstream", "ours", "ours / upstream"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", min_width=20)
    for name, row in report["comparisons"].items():
        low, high = row["ratio_quartiles"]
        table.add_row(
            name,
            f"{row['theirs_per_second']:,.0f}",
            f"{row['ours_per_second']:,.0f}",
            f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})",
            Bar(largest, 0, row["ratio"], color="green" if row["ratio"] >= 1 else "red"),
        )
    console.print(table)
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    rounds = ", ".join(str(len(row["seconds_of_turns"]["ours"])) for row in report["comparisons"].values())
    lines = [
        f"{report['machine']}; one thread; {versions}.",
        f"Medians over rounds ({rounds}); in parentheses, where half of them are.",
        *(
            f"{name}: {row['unit']} of {row['theirs']} and {row['ours']} ({row['work']}); in full: {row['page']}"
            for name, row in report["comparisons"].items()
        ),
    ]
    for line in lines:
        console.print(line, highlight=False)
