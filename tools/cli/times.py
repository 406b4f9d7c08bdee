"""Times as commands show them: UTC in ISO form, and ages in one unit."""

from datetime import UTC, datetime

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (0, "s"))
"""Units of an age, by the seconds from which on they are shown."""


def utc(seconds: float) -> str:
    """Return a Unix time as `2026-11-28T12:30:08Z`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%FT%TZ}"


def age(seconds: float) -> str:
    """Return an age in its largest whole unit, such as `41 s` or `3 min`; never below 0."""
    whole = max(0, int(seconds))
    least, unit = next(each for each in UNITS if whole >= each[0])
    return f"{whole // max(1, least)} {unit}"
