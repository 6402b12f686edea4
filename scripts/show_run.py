"""Show the learning curve of a training run of the zoo in the terminal."""

import argparse
from pathlib import Path

import numpy as np
import plotext
from rl_zoo3.utils import get_latest_run_id
from stable_baselines3.common.monitor import load_results


def main() -> None:
    """Read the Monitor files and evaluations of a run, plot them and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", required=True, help="RL Algorithm")
    parser.add_argument("--env", required=True, help="environment ID")
    parser.add_argument("-f", "--folder", default="logs", help="Log folder")
    parser.add_argument("--exp-id", type=int, default=0, help="Experiment ID (default: 0: latest)")
    parser.add_argument("--window", type=int, default=20, help="Number of episodes to average over")
    args = parser.parse_args()

    log_path = Path(args.folder) / args.algo
    exp_id = args.exp_id or get_latest_run_id(str(log_path), args.env)
    run = log_path / f"{args.env}_{exp_id}"
    episodes = load_results(str(run))  # in the order in which they ended, over all environments
    timesteps = episodes["l"].cumsum().to_numpy()
    seconds = episodes["t"].to_numpy()
    rewards = episodes["r"].rolling(args.window, min_periods=1).mean().to_numpy()

    plotext.plot_size(100, 25)
    for paint in (plotext.canvas_color, plotext.axes_color, plotext.ticks_color):
        paint("default")
    plotext.plot(timesteps, rewards, label=f"training episodes (mean of {args.window})")
    summary = [f"{run}: {timesteps[-1]} timesteps, {len(episodes)} episodes"]
    evaluations = run / "evaluations.npz"
    if evaluations.is_file():
        data = np.load(evaluations)
        means = data["results"].mean(axis=1)
        plotext.scatter(data["timesteps"], means, label="evaluation", marker="x")
        summary.append(
            f"last evaluation, after {data['timesteps'][-1]} timesteps: mean reward {means[-1]:.1f} "
            f"+/- {data['results'][-1].std():.1f}; best {means.max():.1f}"
        )
    summary.append(f"last {args.window} training episodes: mean reward {rewards[-1]:.1f}")
    summary.append(f"{seconds[-1]:.1f} s, {timesteps[-1] / seconds[-1]:.0f} fps, evaluations included")
    plotext.title(f"{args.algo} on {args.env}")
    plotext.xlabel("timesteps")
    plotext.ylabel("episode reward")
    plotext.show()
    print("\n".join(summary))


if __name__ == "__main__":
    main()
