"""The pages in docs/ are complete, lead somewhere, and what they show works."""

import ast
import inspect
import json
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import speed_summary
import yaml
from fill_results import BLOCK, RESULTS
from fill_results import main as fill_results
from rl_zoo3.utils import ALGOS
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.fakes import run_python
from tests.ray_envs import RandomEnv
from zoo_plugins import GymVectorVecEnv, MaskableSeqRecurrentPPO, SeqRecurrentPPO, TensorPPO
from zoo_plugins.algos.masking import count_choices
from zoo_plugins.choices import OWN_KEYS, ZOO_KEYS
from zoo_plugins.config import Block

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
# A file without a title was written by a benchmark script, beside its JSON: conf.py leaves it out
PAGES = {name: text for name, text in PAGES.items() if text.startswith("# ")}
TEXTS = {**{f"docs/{name}": text for name, text in PAGES.items()}, "README.md": (ROOT / "README.md").read_text()}

# Scripts of these pages are run here: complete, with 20_000 timesteps, at most one per page
SCRIPTS = [
    *(f"algos/{name}.md" for name in ("ppo_tensor",)),
    *(f"buffers/{name}.md" for name in ("sequence_rollout_buffer", "tensor_rollout_buffer")),
    *(
        f"vec_envs/{name}.md"
        for name in ("ray_vec_env", "tensor_vec_env", "gym_vector_vec_env", "envpool_vec_env", "wrappers")
    ),
    *(f"callbacks/{name}.md" for name in ("update_ratio_callback",)),
    "quick_start.md",
    "migrating.md",
    "sharing_agents.md",
]

# Hyperparameters of these pages are trained with, by an algorithm
HYPERPARAMETERS = {
    "quick_start.md": "ppo_lstm_seq",
    "her_with_many_envs.md": "dqn",
    "buffers/sequence_rollout_buffer.md": "ppo_lstm_seq",
    "vec_envs/ray_vec_env.md": "ppo",
    "vec_envs/tensor_vec_env.md": "ppo_tensor",
    "vec_envs/gym_vector_vec_env.md": "ppo",
    "vec_envs/envpool_vec_env.md": "ppo",
    "vec_envs/wrappers.md": "ppo_tensor",
}


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[tuple[str, str]]:
    return [(name, block) for name, text in TEXTS.items() for block in code_blocks(text, language)]


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(text: str) -> set[str]:
    """Anchors of headings, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation():
    """Each page is in exactly one table of contents of the start page, and each entry is a page."""
    entries = [
        entry
        for block in re.findall(r"```\{toctree\}\n(.*?)```", PAGES["index.md"], flags=re.DOTALL)
        for entry in block.splitlines()
        if entry and not entry.startswith(":")
    ]
    listed = [
        name for entry in entries for name in PAGES if Path(name).match(f"{entry}.md") and name.count("/") == entry.count("/")
    ]
    assert sorted(listed) == sorted(set(PAGES) - {"index.md"})


@pytest.mark.parametrize("name", TEXTS)
def test_links(name):
    """Links within the project lead to a file and a heading; those to other sites are well-formed."""
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(TEXTS[name])):
        if "://" in link:
            parts = urlsplit(link)
            assert parts.scheme == "https", link
            assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), link
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), f"{link} in {name}"
        if anchor:
            assert anchor in anchors(target.read_text()), f"{link} in {name}"


@pytest.mark.parametrize(("name", "block"), blocks("python"))
def test_python_compiles(name, block):
    """Code is Python."""
    compile(block, name, "exec")


@pytest.mark.parametrize(("name", "block"), blocks("yaml"))
def test_yaml_has_valid_keys(name, block):
    """YAML can be read; in hyperparameters, each key means something for one of the zoo's algorithms, or ours."""
    found = yaml.safe_load(block.replace("  ...\n", ""))
    algos = {key for cls in ALGOS.values() for key in inspect.signature(cls).parameters}
    for env_id, values in found.items():
        if re.fullmatch(r"[\w/:-]+-v\d+|default", env_id):
            Block(dict(values), f"docs/{name}").check_keys([*algos, *ZOO_KEYS, *OWN_KEYS], required=[], by_caller=())


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs(name, tmp_path):
    """The script of a page runs as it is, with fewer timesteps."""
    if name == "vec_envs/envpool_vec_env.md":
        pytest.importorskip("envpool")
    (script,) = [block for block in code_blocks(PAGES[name], "python") if "20_000" in block or "200_000" in block]
    script = re.sub(r"\b200?_000\b", "512", script)
    done = run_python("-c", f"import os\nos.chdir({str(tmp_path)!r})\n{script}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "algo"), HYPERPARAMETERS.items())
def test_hyperparameters_train(name, algo, tmp_path):
    """The zoo trains with the block of a page."""
    if name == "vec_envs/envpool_vec_env.md":
        pytest.importorskip("envpool")
    (block,) = code_blocks(PAGES[name], "yaml")
    (env_id,) = yaml.safe_load(block)
    config = tmp_path / "my.yml"
    config.write_text(block)
    options = ["--conf-file", str(config), "-f", str(tmp_path), "-n", "512", "--eval-freq", "-1", "--verbose", "0"]
    done = run_python("-m", "rl_zoo3.train", "--algo", algo, "--env", env_id, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / algo / f"{env_id}_1" / f"{env_id}.zip").exists()


def test_plugin_is_complete(tmp_path):
    """The two files of docs/writing_a_plugin.md, installed by pip, make a word for --algo; what its test asserts is true."""
    page = PAGES["writing_a_plugin.md"]
    (tmp_path / "pyproject.toml").write_text(code_blocks(page, "toml")[0])
    module, test = code_blocks(page, "python")
    (tmp_path / "my_zoo_plugin.py").write_text(module)
    site = tmp_path / "site"
    install = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(tmp_path)]
    done = run_python("-m", "pip", "install", *install)
    assert done.returncode == 0, done.stderr
    done = run_python("-c", f"{test}\ntest_registered()", path=site)
    assert done.returncode == 0, done.stderr

    (site / "my_zoo_plugin.py").write_text("import my_sim\n")
    done = run_python("-c", "import rl_zoo3.utils", path=site)
    (message,) = re.findall(r"^algorithm 'ppo_fade' .*", page, flags=re.MULTILINE)
    assert message in done.stderr


def templates() -> list[str]:
    """Texts of the package, as the parser joins them, with … for what is filled in."""
    texts = []
    for path in (ROOT / "zoo_plugins").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_messages_of_troubleshooting_are_in_the_code():
    """Every message that the page quotes is one that the package can give, or says that it is the zoo's."""
    texts = templates()
    quoted = re.findall(r"^### `(.+)`\n(.*)$", PAGES["troubleshooting.md"], flags=re.MULTILINE)
    assert len(quoted) > 40
    for message, answer in quoted:
        pattern = ".+".join(map(re.escape, message.split("…")))
        known = any(re.search(pattern, text, flags=re.DOTALL) for text in texts)
        assert known != answer.startswith("From the zoo itself"), message


def test_results_are_those_of_the_json(tmp_path, capsys):
    """The tables of pages are what the scripts make of the JSON files, all of which are shown; a changed number is noticed."""
    assert fill_results(["--check"]) == 0
    shown = [match[2] for text in PAGES.values() for match in BLOCK.findall(text)]
    assert sorted(shown) == sorted(path.name for path in RESULTS.glob("*.json"))

    page = (RESULTS / "ray.md").read_text()
    (tmp_path / "vec_env.json").write_text((RESULTS / "vec_env.json").read_text())
    (tmp_path / "ray.md").write_text(page.replace("| **2.60** |", "| **3.60** |"))
    assert fill_results(["--check"], tmp_path, readme=None) == 1
    assert "ray.md: out of date" in capsys.readouterr().out
    assert (tmp_path / "ray.md").read_text() != page
    assert fill_results([], tmp_path, readme=None) == 0
    assert (tmp_path / "ray.md").read_text() == page


def test_summary_is_that_of_the_json(tmp_path, capsys):
    """Table and picture in README.md show the numbers of the JSON files; those of others are noticed, and replaced."""
    names = {row.file for row in speed_summary.ROWS} | {speed_summary.PICTURE}
    for name in names:
        shutil.copy(RESULTS / name, tmp_path / name)
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text())
    assert fill_results(["--check"], tmp_path, readme) == 0

    path = tmp_path / "recurrent-full.json"
    report = json.loads(path.read_text())
    report["cases"][0]["ratio"] = 0.5
    path.write_text(json.dumps(report))
    assert fill_results(["--check"], tmp_path, readme) == 1
    assert capsys.readouterr().out.count("out of date, run scripts/fill_results.py") == 2
    assert fill_results([], tmp_path, readme) == 0
    assert "| `RecurrentPPO` | **0.50** | upstream is faster |" in readme.read_text()
    assert fill_results(["--check"], tmp_path, readme) == 0


def test_summary_is_honest():
    """What upstream does as well, or better, is named, and one of the rows at least shows it."""
    assert [speed_summary.judge(ratio) for ratio in (0.5, 0.9, 1.1, 1.3)] == [
        "upstream is faster",
        "about the same",
        "about the same",
        "",
    ]
    ratios = speed_summary.read_ratios(RESULTS)
    assert {"upstream is faster", "about the same", ""} == set(map(speed_summary.judge, ratios))
    with pytest.raises(ValueError, match="not enough values"):
        speed_summary.find([{"case": "a"}], case="b")


def masked(algo):
    """An algorithm that finds all actions valid."""

    def make(policy, make_env, **kwargs):
        def with_masks():
            env = make_env()
            n_choices = sum(count_choices(env.action_space)) if algo is MaskableSeqRecurrentPPO else 0
            return ActionMasker(env, lambda _: np.ones(n_choices, bool))

        return algo(policy, DummyVecEnv([with_masks] * 2), **kwargs)

    return make


def on(vec_env_class, algo):
    """An algorithm on a VecEnv class."""
    return lambda policy, make_env, **kwargs: algo(policy, vec_env_class([make_env] * 2), **kwargs)


CAN_I_USE = {
    "algos/ppo_lstm_seq.md": on(DummyVecEnv, SeqRecurrentPPO),
    "algos/maskable_ppo_lstm_seq.md": masked(MaskableSeqRecurrentPPO),
    "algos/ppo_tensor.md": on(DummyVecEnv, TensorPPO),
    "buffers/sequence_rollout_buffer.md": on(DummyVecEnv, SeqRecurrentPPO),
    "buffers/tensor_rollout_buffer.md": on(DummyVecEnv, TensorPPO),
    "vec_envs/gym_vector_vec_env.md": on(GymVectorVecEnv, PPO),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CAN_I_USE)
def test_can_i_use(name):
    """Each "yes" of the table of spaces is one for which a rollout is collected and trained on, and each "no" is refused."""
    suffix = "LstmPolicy" if "lstm" in name or "sequence" in name else "Policy"

    def train(space, action_space):
        policy = ("MultiInput" if space == "vectors" else "Mlp") + suffix
        make = CAN_I_USE[name]
        model = make(policy, lambda: RandomEnv(space, action_space), n_steps=8, batch_size=8, n_epochs=1, device="cpu")
        assert model.learn(16).num_timesteps == 16

    keys = {
        "Box": "box",
        "Discrete": "discrete",
        "MultiDiscrete": "multi_discrete",
        "MultiBinary": "multi_binary",
        "Dict": "vectors",
    }
    rows = re.findall(
        r"^\| (Discrete|Box|MultiDiscrete|MultiBinary|Dict) \| (yes|no) \| (yes|no|with)\b", PAGES[name], flags=re.MULTILINE
    )
    assert [row[0] for row in rows] == ["Discrete", "Box", "MultiDiscrete", "MultiBinary", "Dict"]

    def check(answer, space, action_space):
        if answer == "no":
            with pytest.raises((ValueError, AssertionError, NotImplementedError, TypeError)):
                train(space, action_space)
        else:
            train(space, action_space)

    for space, as_action, as_observation in rows:
        check(as_observation, keys[space], "discrete")
        check(as_action, "box", keys[space])
