"""
The automatic door: rl_zoo3 learns about the plugins when it is imported.

``zoo_plugins.pth`` (:pep:`829`'s ``zoo_plugins.start`` from Python 3.15 on) runs this file whenever Python starts.
It adds one finder to :data:`sys.meta_path` and does nothing else until rl_zoo3 itself is imported, needs only modules
that Python has already loaded, and never raises. ``ZOO_PLUGINS=0`` in the environment turns it off.
"""

import os
import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HOOKED_MODULES = ("rl_zoo3.utils", "rl_zoo3.exp_manager")


class ZooFinder:
    """Meta path finder that finds nothing itself, and extends the modules of rl_zoo3 that others find."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """
        Find a hooked module with the other finders, and extend it after it has been executed.

        :param name: Full name of the module
        :param path: Where to look, for submodules
        :param target: Module being reloaded, if any
        :return: the specification of a hooked module, None for any other
        """
        if name not in HOOKED_MODULES:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _extend_after_execution(spec)
                return spec
        return None


def _extend_after_execution(spec: "ModuleSpec") -> None:
    execute = spec.loader.exec_module  # type: ignore[union-attr]

    def execute_and_extend(module: "ModuleType") -> None:
        execute(module)
        try:
            from zoo_plugins import zoo

            zoo.extend(module)
        except Exception as error:
            import warnings

            warnings.warn(
                f"zoo_plugins could not extend {module.__name__} ({type(error).__name__}: {error}); set ZOO_PLUGINS=0 to "
                "run rl_zoo3 without it",
                stacklevel=2,
            )

    spec.loader.exec_module = execute_and_extend  # type: ignore[union-attr, method-assign]


def install(force: bool = False) -> None:
    """
    Add the finder, once.

    :param force: Add it even if ``ZOO_PLUGINS=0``
    """
    if not force and os.environ.get("ZOO_PLUGINS") == "0":
        return
    if not any(isinstance(finder, ZooFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, ZooFinder())


install()
