"""The table and the picture of speed in README.md, from the JSON of all benchmarks. scripts/fill_results.py writes both."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PICTURE = "speed.png"
# Less than this is within what rounds and seeds differ by
SAME = 1.2


@dataclass(frozen=True)
class Row:
    """
    What is compared.

    :param kind: Heading, which rows that follow each other share
    :param work: The work
    :param theirs: Upstream's side
    :param file: JSON of the benchmark
    :param page: Page about it
    :param ratio: Takes from the JSON how many times as fast ours is
    """

    kind: str
    work: str
    theirs: str
    file: str
    page: str
    ratio: Callable[[Any], float]


def find(rows: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    """
    Take the one row that has these values.

    :param rows: Rows of a report
    :param values: Values by key
    :return: the row
    :raises ValueError: if there is none, or several
    """
    (row,) = [row for row in rows if all(row[key] == value for key, value in values.items())]
    return row


def _whole_run(env_id: str) -> Callable[[Any], float]:
    def ratio(report: Any) -> float:
        sides = find(report["envs"], env=env_id)["sides"]
        return float(sides["equal"]["fps"] / sides["upstream"]["fps"])

    return ratio


def _samples(case: str) -> Callable[[Any], float]:
    return lambda report: find(report["cases"][case], batch_size=256, normalized=False, n_samples=8)["ratio"]


def _ray(case: str, theirs: str) -> Callable[[Any], float]:
    def ratio(report: Any) -> float:
        sides = find(report["cases"], case=case)["sides"]
        return float(sides["ray"]["steps_per_second"] / sides[theirs]["steps_per_second"])

    return ratio


LSTM, HER, RAY = "`ppo_lstm_seq`", "`FastHerReplayBuffer`", "`RayVecEnv`"
ROWS = [
    Row(
        LSTM,
        "to -250, PendulumNoVel, tuned",
        "RecurrentPPO",
        "learning-results.json",
        "learning.md",
        lambda report: find(report["envs"], env="PendulumNoVel-v1")["sides"]["tuned"]["to_threshold"]["cpu"]["ratio"],
    ),
    Row(
        LSTM,
        "whole run, PendulumNoVel",
        "RecurrentPPO",
        "learning-results.json",
        "learning.md",
        _whole_run("PendulumNoVel-v1"),
    ),
    Row(
        LSTM,
        "whole run, CartPoleNoVel",
        "RecurrentPPO",
        "recurrent-full.json",
        "recurrent.md",
        lambda report: find(report["cases"], case="cartpole")["ratio"],
    ),
    Row(
        LSTM,
        "82,000 steps, BipedalWalker",
        "RecurrentPPO",
        "recurrent-full.json",
        "recurrent.md",
        lambda report: find(report["cases"], case="bipedal")["ratio"],
    ),
    Row(
        LSTM,
        "episodes never end",
        "RecurrentPPO",
        "recurrent-short.json",
        "recurrent.md",
        lambda report: find(report["cases"], case="worst")["ratio"],
    ),
    Row(HER, "sample, 1,000,000 held", "HerReplayBuffer", "her-calls.json", "her.md", _samples("sample-8-1e6")),
    Row(HER, "sample, 100,000 held", "HerReplayBuffer", "her-calls.json", "her.md", _samples("sample-8-1e5")),
    *(
        Row(
            HER,
            f"whole run, {algo.upper()}",
            "HerReplayBuffer",
            "her-learn.json",
            "her.md",
            lambda report, algo=algo: report["cases"][algo]["ours"]["ratio"],  # type: ignore[misc]
        )
        for algo in ("dqn", "sac", "tqc")
    ),
    Row(RAY, "32 CartPoles", "SubprocVecEnv", "vec_env.json", "ray.md", _ray("cartpole-32", "subproc")),
    Row(RAY, "8 CartPoles", "SubprocVecEnv", "vec_env.json", "ray.md", _ray("cartpole-8", "subproc")),
    Row(RAY, "8 steps of 10 ms", "SubprocVecEnv", "vec_env.json", "ray.md", _ray("cpu-10ms-8", "subproc")),
    Row(RAY, "8 CartPoles", "DummyVecEnv", "vec_env.json", "ray.md", _ray("cartpole-8", "dummy")),
]


def read_ratios(folder: Path) -> list[float]:
    """
    Read how many times as fast ours is.

    :param folder: Where JSON files are
    :return: ratios, one for each row
    """
    reports = {name: json.loads((folder / name).read_text()) for name in dict.fromkeys(row.file for row in ROWS)}
    return [row.ratio(reports[row.file]) for row in ROWS]


def judge(ratio: float) -> str:
    """
    Say who is faster.

    :param ratio: How many times as fast ours is
    :return: "", "about the same" or "upstream is faster"
    """
    if ratio * SAME < 1:
        return "upstream is faster"
    return "about the same" if ratio < SAME else ""


def to_markdown(ratios: list[float]) -> str:
    """
    Write a table.

    :param ratios: What :func:`read_ratios` returned
    :return: Markdown
    """
    lines = ["| ours | work | against | times as fast | |", "|---|---|---|---|---|"]
    for row, ratio in zip(ROWS, ratios, strict=True):
        work = f"[{row.work}](docs/results/{row.page})"
        lines.append(f"| {row.kind} | {work} | `{row.theirs}` | **{ratio:.{1 if ratio >= 1 else 2}f}** | {judge(ratio)} |")
    return "\n".join(lines)


def fingerprint(ratios: list[float]) -> str:
    """
    Tell pictures of different numbers apart.

    :param ratios: What a picture shows
    :return: text to keep in the picture
    """
    shown = [f"{row.kind}: {row.work}, {row.theirs}: {ratio:.2f}" for row, ratio in zip(ROWS, ratios, strict=True)]
    return hashlib.sha256("\n".join(shown).encode()).hexdigest()


def is_current(path: Path, ratios: list[float]) -> bool:
    """
    Look whether a picture shows these numbers.

    :param path: The picture
    :param ratios: The numbers
    :return: whether it does
    """
    return path.is_file() and fingerprint(ratios).encode() in path.read_bytes()


def plot(ratios: list[float], path: Path) -> None:
    """
    Draw a bar for each row, on a logarithmic scale.

    :param ratios: What :func:`read_ratios` returned
    :param path: The picture, a PNG
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    kinds = list(dict.fromkeys(row.kind for row in ROWS))
    colors = {kind: f"C{i}" for i, kind in enumerate(kinds)}
    figure, axes = plt.subplots(figsize=(8, 0.34 * len(ROWS) + 0.9), layout="constrained")
    for i, (row, ratio) in enumerate(zip(ROWS, ratios, strict=True)):
        axes.barh(
            i, math.log2(ratio), color=colors[row.kind], label=row.kind.strip("`") if row is first_of(row.kind) else None
        )
        axes.annotate(
            f"{ratio:.{1 if ratio >= 1 else 2}f}",
            (max(0.0, math.log2(ratio)), i),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(ROWS)), [f"{row.work} / {row.theirs}" for row in ROWS])
    axes.invert_yaxis()
    ticks = range(math.floor(math.log2(min(*ratios, 1))), math.ceil(math.log2(max(ratios))) + 1)
    axes.set_xticks(ticks, [f"{2.0**tick:g}" for tick in ticks])
    axes.set_xlim(right=math.log2(max(ratios)) + 1)  # room for the number
    axes.set_xlabel("times as fast as upstream")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=110, metadata={"Description": fingerprint(ratios)})
    plt.close(figure)


def first_of(kind: str) -> Row:
    """
    Find the row that the legend names.

    :param kind: Its heading
    :return: the first row with it
    """
    return next(row for row in ROWS if row.kind == kind)
