"""What goes wrong in a VecEnv of workers, and how an exception travels from a worker to the driver."""

import pickle
import traceback
from dataclasses import dataclass

import cloudpickle


class RayVecEnvError(RuntimeError):
    """Workers can't be started, or were lost once too often. The VecEnv can still be closed."""


class EnvError(Exception):
    """
    An exception that was raised inside an environment.

    What is raised is an instance of a subclass of this *and* of the original exception's type, if that can be sent: who
    expects a ``ValueError`` of its environment catches it here too. Its ``__cause__`` shows the traceback of the worker.

    :param message: Type and text of the original exception, and the index of the environment
    :param env_index: Index of the environment, ``None`` if it was none of them
    """

    def __init__(self, message: str, env_index: int | None = None):
        super().__init__(message)
        self.message = message
        self.env_index = env_index

    def __str__(self) -> str:
        # Not the __str__ of the original type: that of KeyError, for instance, quotes
        return self.message


class WorkerTraceback(Exception):
    """The traceback of a worker, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Report:
    """
    What a worker tells about an exception.

    :param env: Index among the environments of the worker, ``None`` if it was none of them
    :param name: Type of the exception
    :param text: Its text
    :param traceback: Its traceback
    :param pickled: The exception itself, ``None`` if it can't be sent
    """

    env: int | None
    name: str
    text: str
    traceback: str
    pickled: bytes | None

    def error(self, first_env: int, where: str) -> EnvError:
        """
        Make the exception to raise in the driver.

        :param first_env: Index, in the VecEnv, of the worker's first environment
        :param where: Where the worker runs
        :return: the exception
        """
        index = None if self.env is None else first_env + self.env
        who = where if index is None else f"environment {index} ({where})"
        error = _both_types(self.pickled, f"{who} raised {self.name}: {self.text}", index)
        error.__cause__ = WorkerTraceback(self.traceback)
        return error


def report(error: BaseException, env: int | None) -> Report:
    """
    Describe an exception that is being handled, in a worker.

    :param error: The exception
    :param env: Index among the environments of the worker, ``None`` if it was none of them
    :return: the description, which can always be sent
    """
    pickled: bytes | None
    try:
        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)  # the constructor of many an exception takes other arguments than those it keeps
    except Exception:
        pickled = None
    text = "".join(traceback.format_exception(error))
    return Report(env, type(error).__qualname__, str(error), text, pickled)


def _both_types(pickled: bytes | None, message: str, index: int | None) -> EnvError:
    try:
        original = pickle.loads(pickled) if pickled is not None else None
        if not isinstance(original, Exception):  # SystemExit would end the driver
            return EnvError(message, index)
        both = type("EnvError", (EnvError, type(original)), {"__module__": EnvError.__module__})
        error = both.__new__(both, *original.args)
        error.__dict__.update(original.__dict__)
        error.args, error.message, error.env_index = original.args, message, index
        return error
    except Exception:  # a type that can't be inherited from, or is unknown here
        return EnvError(message, index)
