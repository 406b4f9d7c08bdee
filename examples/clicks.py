"""Clicks: the visits of each user to a site. A visit is over when nothing came for half an hour.

    python -m streamsx worker streamsx.examples.clicks
    python -m streamsx send clicks ann='{"page": "/", "at": 1795860000}'
    python -m streamsx send clicks ann='{"page": "/buy", "at": 1795860060}'
    python -m streamsx send clicks ann='{"page": "/", "at": 1795867200}'     # two hours later
    python -m streamsx read visits

The third click ends the visit of the first two, so `visits` has one visit of two clicks.
Each visit leaves once, when it is over. Clicks may come up to a minute late: a click between two
visits makes one visit of both, and `merge` one result of two.
"""

from dataclasses import dataclass

from streamsx import App, session


@dataclass(frozen=True)
class Click:
    """Click of a user, at a time in seconds since 1970. The key of the record is the user."""

    page: str
    at: float


@dataclass(frozen=True)
class Visit:
    """Pages of a visit: how many, the first one and the last one, with their times."""

    clicks: int = 0
    entry: str = ""
    left_from: str = ""
    first: float = float("inf")
    last: float = float("-inf")


def add(user: str, click: Click, visit: Visit) -> Visit:
    return merge(user, visit, Visit(1, click.page, click.page, click.at, click.at))


def merge(_user: str, one: Visit, other: Visit) -> Visit:
    begins = min(one, other, key=lambda visit: visit.first)
    ends = max(one, other, key=lambda visit: visit.last)
    clicks = one.clicks + other.clicks
    return Visit(clicks, begins.entry, ends.left_from, begins.first, ends.last)


app = App("clicks")
clicks = app.topic("clicks", key_type=str, value_type=Click)
visits = app.topic("visits", value_type=Visit, retention="infinite")

(
    app.flow(clicks, timestamp=lambda click: click.at)
    .group_by_key()
    .window(session("30m", grace="1m"))
    .aggregate(Visit, add, "open-visits", merge=merge, value_type=Visit, emit="final")
    .to(visits)
)


if __name__ == "__main__":
    app.main()
