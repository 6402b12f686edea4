"""Plots of a study."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import optuna
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial, TrialState

MAX_PARAMS = 9  # on one plot
MIN_TRIALS = 5  # complete ones, for importances
COLORS = {"COMPLETE": "tab:blue", "PRUNED": "tab:orange", "FAIL": "tab:red"}
GREY = "0.75"


def write_plots(study: optuna.Study, folder: Path) -> dict[str, str]:
    """
    Write a PNG file for each plot that can be drawn of so many trials.

    :param study: The study, with at least one complete trial
    :param folder: An existing folder
    :return: what each plot shows, by name of its file
    """
    done = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    important = importances(study)
    order = list(important) or sorted({name for trial in done for name in trial.params})
    plots: dict[str, tuple[str, Callable[[], Figure | None]]] = {
        "history.png": ("Value of each trial, and the best so far", lambda: _draw_history(study)),
        "importances.png": (
            "How much each hyperparameter decides whether a trial is among the best (PED-ANOVA)",
            lambda: _draw_importances(important),
        ),
        "slice.png": ("Value against each hyperparameter, the most important ones first", lambda: _draw_slices(done, order)),
        "intermediate.png": ("Evaluations during training", lambda: _draw_intermediate(study)),
    }
    told = {}
    for name, (text, draw) in plots.items():
        figure = draw()
        if figure is None:
            (folder / name).unlink(missing_ok=True)  # of an earlier report
        else:
            figure.savefig(folder / name, dpi=110)
            told[name] = text
    return told


def importances(study: optuna.Study) -> dict[str, float]:
    """
    Find out which hyperparameters decide.

    :param study: The study
    :return: importances by hyperparameter, that of the greatest first; none if there are too few trials to tell
    """
    if len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])) < MIN_TRIALS:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of importances that are experimental, or zero
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        except (ValueError, RuntimeError):
            return {}
    return found if sum(found.values()) > 0 else {}


def _new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    # Not by pyplot, which remembers figures and wants a display
    figure = Figure(figsize=(width, height), layout="constrained")
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, axes


def _draw_history(study: optuna.Study) -> Figure:
    figure, ((axes,),) = _new_figure(8, 4)
    for state in ("COMPLETE", "PRUNED"):
        trials = [t for t in study.get_trials(deepcopy=False) if t.state.name == state and t.value is not None]
        if trials:
            axes.plot([t.number for t in trials], [t.value for t in trials], "o", color=COLORS[state], label=state.lower())
    complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    best = list(itertools.accumulate([float(trial.value or 0.0) for trial in complete], max))
    numbers = [*(trial.number for trial in complete), study.get_trials(deepcopy=False)[-1].number]
    axes.step(numbers, [*best, best[-1]], where="post", color="black", label="best so far")
    axes.set(xlabel="trial", ylabel="value")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    return figure


def _draw_importances(important: dict[str, float]) -> Figure | None:
    if not important:
        return None
    names = list(important)[:MAX_PARAMS][::-1]
    figure, ((axes,),) = _new_figure(8, 1 + 0.4 * len(names))
    bars = axes.barh(names, [important[name] for name in names], color="tab:blue")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set(xlabel="importance", xlim=(0, 1.1 * max(important.values())))
    return figure


def _draw_slices(trials: Sequence[FrozenTrial], order: Sequence[str]) -> Figure | None:
    names = [name for name in order if any(name in trial.params for trial in trials)][:MAX_PARAMS]
    if not names:
        return None
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, grid = _new_figure(3.4 * columns, 2.8 * rows, rows, columns)
    for number, axes in enumerate(grid.flat):
        if number >= len(names):
            axes.set_axis_off()
            continue
        name = names[number]
        shown = [trial for trial in trials if name in trial.params]
        distribution = shown[-1].distributions[name]
        x = [trial.params[name] for trial in shown]
        if isinstance(distribution, optuna.distributions.CategoricalDistribution):
            choices = [str(choice) for choice in distribution.choices]
            x = [choices.index(str(value)) for value in x]
            axes.set_xticks(range(len(choices)), choices, rotation=30 if len(choices) > 2 else 0)
            axes.set_xlim(-0.5, len(choices) - 0.5)
        elif getattr(distribution, "log", False):
            axes.set_xscale("log")
        points = axes.scatter(x, [trial.value for trial in shown], c=[trial.number for trial in shown], cmap="viridis_r", s=25)
        axes.set_xlabel(name)
        if number % columns == 0:
            axes.set_ylabel("value")
    figure.colorbar(points, ax=grid, label="trial", shrink=0.8)
    return figure


def _draw_intermediate(study: optuna.Study) -> Figure | None:
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.intermediate_values]
    if all(len(trial.intermediate_values) < 2 for trial in trials):
        return None
    figure, ((axes,),) = _new_figure(8, 4)
    best = study.best_trial.number
    labels = set()
    for trial in sorted(trials, key=lambda trial: trial.number == best):
        label = f"best (trial {best})" if trial.number == best else trial.state.name.lower()
        style: dict[str, Any] = (
            dict(color="black", linewidth=2) if trial.number == best else dict(color=COLORS.get(trial.state.name, GREY))
        )
        steps = sorted(trial.intermediate_values)
        values = [trial.intermediate_values[step] for step in steps]
        axes.plot(
            steps, values, ".-", alpha=1.0 if trial.number == best else 0.5, label=None if label in labels else label, **style
        )
        labels.add(label)
    axes.set(xlabel="evaluation", ylabel="mean reward")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    return figure
