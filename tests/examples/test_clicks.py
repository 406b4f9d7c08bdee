"""examples/clicks.py, against plain Python."""

import json
import random
from itertools import pairwise

from streamsx.examples import clicks
from streamsx.examples.clicks import Click, Visit
from streamsx.testing import TestDriver

GAP_S = 1800
BEGIN_S = 1_700_000_000
END_S = BEGIN_S + 30 * 86_400


def some_clicks() -> list[tuple[str, Click]]:
    """Return clicks of 40 users in the order in which they come, each up to a minute late."""
    rng = random.Random(7)
    made = list[tuple[float, str, Click]]()
    for number in range(40):
        at = float(BEGIN_S + rng.randrange(3600))
        for _ in range(100):
            at += rng.choice((5, 60, 600, GAP_S, GAP_S + 1, 7200))
            click = Click(f"/{rng.randrange(9)}", at)
            made.append((at + rng.uniform(0, 60), f"user-{number}", click))
    made.sort(key=lambda each: each[0])
    return [(user, click) for _, user, click in made]


def plain_visits(come: list[tuple[str, Click]]) -> list[tuple[str, Visit]]:
    """Return the visits of each user, by plain Python."""
    visits = list[tuple[str, Visit]]()
    for user in {user for user, _ in come}:
        own = sorted((each for name, each in come if name == user), key=lambda click: click.at)
        cuts = [n + 1 for n, (a, b) in enumerate(pairwise(own)) if b.at - a.at > GAP_S]
        for start, stop in pairwise([0, *cuts, len(own)]):
            one = own[start:stop]
            ends = one[0].page, one[-1].page, one[0].at, one[-1].at
            visits.append((user, Visit(len(one), *ends)))
    return visits


def test_visits_equal_plain_python_over_restarts_and_late_clicks() -> None:
    come = some_clicks()
    assert any(a.at > b.at for (_, a), (_, b) in pairwise(come))
    with TestDriver(clicks.app, partitions={"clicks": 1}) as driver:
        for at in range(0, len(come), 500):
            driver.pipe(clicks.clicks, come[at : at + 500])
            driver.restart()
        driver.pipe(clicks.clicks, [("nobody", Click("/", END_S))])
        found = driver.read(clicks.visits)
    visits = [(json.loads(each.key), each.value) for each in found]
    assert sorted((key[0], repr(visit)) for key, visit in visits) == sorted(
        (user, repr(visit)) for user, visit in plain_visits(come)
    )
    assert all(
        (start, end) == (visit.first * 1000, visit.last * 1000) for (_, start, end), visit in visits
    )
