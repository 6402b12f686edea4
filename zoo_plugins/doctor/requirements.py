"""What distributions need, and whether it is installed."""

from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def extras(distribution: str) -> list[str]:
    """
    List the extras of an installed distribution.

    :param distribution: Its name
    :return: their names; none if the distribution is not installed
    """
    try:
        return metadata.metadata(distribution).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []


def unmet(distribution: str, extra: str = "") -> list[dict[str, Any]]:
    """
    List what a distribution, or an extra of it, needs and does not have.

    :param distribution: Name of an installed distribution
    :param extra: Name of the extra; by default, what is needed without one
    :return: for each requirement that is not met, ``"requirement"`` as text, and ``"found"``: the version that is installed,
        None if there is none
    """
    problems = []
    for text in metadata.requires(distribution) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue  # needed without the extra, too
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        found = installed_version(requirement.name)
        # A prerelease that somebody has installed is what they want
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            problems.append({"requirement": f"{requirement.name}{requirement.specifier}", "found": found})
        if canonicalize_name(requirement.name) == canonicalize_name(distribution):
            problems += [problem for own in requirement.extras for problem in unmet(distribution, own)]
    return problems


def installed_version(distribution: str) -> str | None:
    """
    Look up a version, without importing anything.

    :param distribution: Name of a distribution
    :return: its version, None if it is not installed
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
