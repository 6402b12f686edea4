"""The report of a study: the best trial's YAML block, all trials, plots, and a page that shows them."""

import base64
import html
from collections.abc import Mapping
from pathlib import Path

import optuna

from zoo_plugins.tuning.studies import best_trial, count_states

BLOCK, TABLE, PAGE = "best.yml", "trials.csv", "index.html"
N_TOP = 10  # trials in the table of the page

STYLE = """
body { font-family: sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse } th, td { padding: 0.2em 0.8em; text-align: right; border-bottom: 1px solid #ddd }
th:nth-child(3), td:nth-child(3) { text-align: left } pre { background: #f4f4f4; padding: 1em; overflow-x: auto }
img { max-width: 100% } figure { margin: 1.5em 0 } figcaption { color: #555 }
"""


def write_report(study: optuna.Study, folder: Path, block: str, facts: Mapping[str, str], with_plots: bool) -> Path:
    """
    Write the report, in the place of an earlier one.

    :param study: The study, with at least one complete trial
    :param folder: Folder to write it to
    :param block: YAML of the best trial
    :param facts: What else is to be told on the page, by name
    :param with_plots: Draw plots
    :return: path of the page, which needs no other file
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BLOCK).write_text(block)
    columns = ("number", "state", "value", "datetime_start", "datetime_complete", "duration", "params", "user_attrs")
    study.trials_dataframe(attrs=columns).to_csv(folder / TABLE, index=False)
    plots: dict[str, str] = {}
    if with_plots:
        from zoo_plugins.tuning.plots import write_plots

        plots = write_plots(study, folder)
    page = folder / PAGE
    page.write_text(_make_page(study, block, facts, {folder / name: text for name, text in plots.items()}))
    return page


def _make_page(study: optuna.Study, block: str, facts: Mapping[str, str], plots: Mapping[Path, str]) -> str:
    best = best_trial(study)
    assert best is not None
    title = html.escape(f"Study {study.study_name}")
    facts = {"Best trial": f"{best.number}, value {best.value:.6g}", "Trials": count_states(study), **facts}
    rows = "".join(f"<li>{html.escape(name)}: {html.escape(text)}</li>\n" for name, text in facts.items())
    figures = "".join(
        f'<figure><img alt="{html.escape(text)}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
        f"<figcaption>{html.escape(text)}</figcaption></figure>\n"
        for path, text in plots.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>
<body>
<h1>{title}</h1>
<ul>
{rows}</ul>
<h2>The best hyperparameters</h2>
<pre>{html.escape(block)}</pre>
<h2>The best trials</h2>
{_make_table(study)}
<h2>Plots</h2>
{figures or "<p>None were drawn.</p>"}
</body>
</html>
"""


def _make_table(study: optuna.Study) -> str:
    complete = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    lines = ["<tr><th>trial</th><th>value</th><th>hyperparameters</th></tr>"]
    for trial in sorted(complete, key=lambda trial: (-(trial.value or 0.0), trial.number))[:N_TOP]:
        params = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
        lines.append(f"<tr><td>{trial.number}</td><td>{trial.value:.6g}</td><td>{html.escape(params)}</td></tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
