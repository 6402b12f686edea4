"""Distributions of third parties, made up for a test, and Python processes that see them."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def fake_distribution(
    folder: Path,
    name: str,
    version: str = "1.0",
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    modules: Mapping[str, str] | None = None,
    extras: Iterable[str] = (),
) -> Path:
    """
    Write an installed distribution, so that ``importlib.metadata`` and ``import`` find it once its folder is searched.

    In this process, call ``monkeypatch.syspath_prepend(folder)`` afterwards; for a new one, pass the folder to
    :func:`run_python`. Several distributions may share a folder.

    :param folder: Where to write it; it stands for ``site-packages``
    :param name: Name of the distribution
    :param version: Its version
    :param entry_points: Targets by name by kind of plugin, as in ``{"algos": {"my_algo": "my_pkg:MY_ALGO [my_extra]"}}``;
        a key that contains a dot is a group that is not ours
    :param modules: Source text by module, as in ``{"my_pkg.zoo": "X = 1"}``, which makes the package ``my_pkg`` as well
    :param extras: Extras that the distribution offers
    :return: the folder
    """
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    provided = "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{provided}")
    lines = []
    for kind, targets in (entry_points or {}).items():
        lines.append(f"[{kind if '.' in kind else f'zoo_plugins.{kind}'}]")
        lines += [f"{word} = {target}" for word, target in targets.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    modules = modules or {}
    for module, source in modules.items():
        path = folder.joinpath(*module.split("."))
        for parent in [package for package in path.parents if package != folder and folder in package.parents]:
            parent.mkdir(exist_ok=True, parents=True)
            (parent / "__init__.py").touch()
        is_package = any(other.startswith(f"{module}.") for other in modules)
        file = path / "__init__.py" if is_package else path.with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
    written = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in written))
    return folder


def run_python(
    *arguments: str, path: Path | None = None, env: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """
    Run a new Python process, whose ``ZOO_PLUGINS`` is not set unless ``env`` sets it.

    :param arguments: Command line arguments
    :param path: Folder of fake distributions to search first
    :param env: Changes to the environment variables; ``None`` removes one
    :return: the finished process, with its output as text
    """
    searched = os.pathsep.join(filter(None, [str(path or ""), os.environ.get("PYTHONPATH")]))
    changes = {"ZOO_PLUGINS": None, "PYTHONPATH": searched or None, "OMP_NUM_THREADS": "1", **(env or {})}
    variables = {key: value for key, value in {**os.environ, **changes}.items() if value is not None}
    return subprocess.run(
        [sys.executable, *arguments], env=variables, capture_output=True, text=True, check=False, timeout=300
    )
