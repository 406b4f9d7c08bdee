"""Apps whose results show lost, doubled and reordered records; each with its feed.

Payments of users have a running total, and a receipt each. A second app has a slow agent beside it
that fails at some payments. A third one is a shop of flows: windows with final results after a
`group_by`, and a left join. `findings` compares the results, read committed, with plain Python.

Not here: running and killing the apps (`kills`).
"""

import json
import os
import random
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar, Self

from streamsx.model import Headers, TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.topology.build import Topology
from tests.support.client import Client
from tests.support.feed import Feed

MODULE = "exactapp"
PARTITIONS = 4
USERS = 40
KINDS = ("card", "cash", "coin")
UNLUCKY = 13
"""Amounts that it divides fail in the slow agent."""
BROKEN = 66
BAD = (33, BROKEN, 99)
"""Payments that fail, of each hundred: one of them cannot be decoded."""
TRACE = ("trace", "empty")
PLACE = ("topic", "partition", "offset")
KEPT_HEADERS = {
    *(f"__streams.errors.{each}" for each in ("exception", "message", "stacktrace", *PLACE)),
    "__streamsx.task", "__streamsx.operator", "__streamsx.attempt",
}  # fmt: skip
KEPT = sorted(KEPT_HEADERS)
BEGIN_MS = 1_700_000_000_000
STEP_MS = 100
SIZE_MS = 10_000
CLOSING_MS = 3_600_000
PAID_AT_ONCE = 100
"""Orders that are sent ahead of their payments: 10 s of event time, below `within` and `grace`."""
TOLD = 5
FOREVER = {"retention.ms": "-1"}

PAYMENTS = """
import asyncio
import random

import streamsx

app = streamsx.App(name, topic_partitions=4)
payments = app.topic(name + "-payments", key_type=str)
receipts = app.topic(name + "-receipts", key_type=str)
accounts = app.Table("accounts", key_type=str)


@app.agent(payments)
async def pay(stream):
    async for user, payment in stream.items():
        account = accounts.get(user) or {"count": 0, "sums": {}}
        sums = account["sums"]
        account["count"] += 1
        sums[payment["kind"]] = sums.get(payment["kind"], 0) + payment["amount"]
        accounts[user] = account
        if "wait_s" in payment:
            await asyncio.sleep(payment["wait_s"])
        receipt = [payment["n"], account["count"], sum(sums.values())]
        await receipts.send(key=user, value=receipt)
"""
PAIR = (
    PAYMENTS
    + """

checks = app.topic(name + "-checks", key_type=str)
checked = app.Table("checked", key_type=str, default=int)


@app.agent(payments)
async def check(stream):
    async for user, payment in stream.items():
        await asyncio.sleep(random.random() * 0.004)
        if payment["amount"] % 13 == 0:
            raise ValueError("unlucky")
        checked[user] += payment["amount"]
        await checks.send(key=user, value=[payment["n"], checked[user]])
"""
)
POISON = PAYMENTS.replace(
    '        if "wait_s" in payment:\n',
    '        if payment["n"] % 100 == 7:\n'
    '            await receipts.send(key=user, value=["of a record that fails"])\n'
    '            raise ValueError("odd")\n'
    '        if "wait_s" in payment:\n',
)
DEAD = """
import streamsx

app = streamsx.App(name, topic_partitions=4, on_error="dlq", on_decode_error="dlq")
payments = app.topic(name + "-payments", key_type=str)
receipts = app.topic(name + "-receipts", key_type=str)
totals = app.Table("totals", key_type=str, default=int)


@app.agent(payments)
async def pay(stream):
    async for user, payment in stream.items():
        if payment["n"] % 100 in (33, 99):
            raise ValueError("odd")
        totals[user] += 1
        await receipts.send(key=user, value=[payment["n"], totals[user]])
"""
SHOP = """
import streamsx
from streamsx.app.window import tumbling

app = streamsx.App(name, topic_partitions=4)
orders = app.flow(name + "-orders")
users = orders.rekey(lambda order: order["user"]).group_by_key()
users.window(tumbling("10s", grace="2s")).count("per-10s", emit="final").to(name + "-counts")
payments = app.flow(name + "-payments")
paid = orders.join(
    payments, lambda order, payment: [order["n"], payment], kind="left", within="5s", grace="20s",
    name="paid",
)
paid.to(name + "-paid")
"""


class ExactApp:
    """App with topics of its own. A context manager; `seed` draws its input.

    `source`: text of its module; `consumed`, `written`: endings of its topics.
    """

    source: ClassVar[str]
    consumed: ClassVar[tuple[str, ...]]
    written: ClassVar[tuple[str, ...]]
    inner: ClassVar[tuple[str, ...]] = ()

    def __init__(self, bootstrap: str, folder: Path, seed: int) -> None:
        self.name = f"exact-{uuid.uuid4().hex[:8]}"
        self.client = Client(bootstrap)
        self.fed = 0
        self._feeder = Client(bootstrap)
        self._feed = Feed(self.send)
        self._draw = random.Random(seed)
        self._module = folder / f"{MODULE}.py"
        self._module.write_text(f"name = {self.name!r}\n{self.source}")
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.env = {"PYTHONPATH": path}
        for ending in (*self.consumed, *self.written):
            self.client.create(f"{self.name}-{ending}", PARTITIONS, FOREVER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.end()
        self.client.close()
        self._feeder.close()

    def of(self, ending: str) -> list[TopicPartition]:
        return [TopicPartition(f"{self.name}-{ending}", n) for n in range(PARTITIONS)]

    def topology(self) -> Topology:
        spec = spec_from_file_location(MODULE, self._module)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[MODULE] = module
        spec.loader.exec_module(module)
        found = module.app.topology()
        assert isinstance(found, Topology)
        return found

    # -- in

    def send(self, count: int) -> None:
        """Send this many records."""
        raise NotImplementedError

    def feed(self, per_s: int) -> None:
        """Send from now on, beside the test, until `enough`."""
        self._feed.start(per_s)

    def enough(self) -> None:
        self._feed.enough()

    def close(self) -> None:
        """Send what makes results that wait for time come out."""

    @property
    def drained(self) -> bool:
        """Return whether no transaction is open and all committed records are processed."""
        tps = [tp for ending in (*self.consumed, *self.inner) for tp in self.of(ending)]
        ends = self.client.ends(tps)
        if self.client.stable_ends(tps) != ends:
            return False
        at = self.client.committed(self.name, tps)
        return not any(
            next(self.client.read(tp, max(at[tp], 0)), None) for tp in tps if at[tp] < ends[tp]
        )

    # -- out

    def findings(self) -> list[str]:
        """Return what is lost, doubled or wrong, at most some of each kind."""
        raise NotImplementedError

    def results(self, ending: str) -> dict[str, list[Any]]:
        """Return the values of a topic by key, in their order."""
        found = defaultdict(list)
        for tp in self.of(ending):
            for record in self.client.read(tp):
                found[text(record.key)].append(json.loads(record.value or b"null"))
        return dict(found)

    def table(self, name: str) -> dict[str, Any]:
        """Return the values of a table, as its changelog has them committed."""
        found: dict[bytes | None, bytes | None] = {}
        for tp in self.of(f"{name}-changelog"):
            found |= {record.key: record.value for record in self.client.read(tp)}
        return {text(key): json.loads(value) for key, value in found.items() if value}


class Payments(ExactApp):
    """Payments with a running total by user; `users`: their number; `slow`: every how many
    payments one waits, and for how long.
    """

    source = PAYMENTS
    consumed = ("payments",)
    written: ClassVar[tuple[str, ...]] = ("receipts",)

    def __init__(
        self, bootstrap: str, folder: Path, seed: int, *, users: int = USERS,
        slow: tuple[int, float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(bootstrap, folder, seed)
        self._users, self._slow = users, slow
        self.payments: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def send(self, count: int) -> None:
        records: dict[TopicPartition, list[tuple[bytes, bytes]]] = defaultdict(list)
        tps = self.of("payments")
        for n in range(self.fed, self.fed + count):
            user = f"u{self._draw.randrange(self._users)}"
            payment = {
                "n": n, "kind": self._draw.choice(KINDS), "amount": self._draw.randrange(1, 100),
            }  # fmt: skip
            if self._slow is not None and n % self._slow[0] == 0:
                payment["wait_s"] = self._slow[1]
            self.payments[user].append(payment)
            key = user.encode()
            records[tps[partition_of(key, PARTITIONS)]].append((key, json.dumps(payment).encode()))
        self.fed += count
        for tp, some in records.items():
            self._feeder.send(tp, some)

    def counts(self, payment: dict[str, Any]) -> bool:
        """Return whether a payment is counted, as it does not fail."""
        return True

    def findings(self) -> list[str]:
        receipts: dict[str, list[list[int]]] = {}
        accounts = {}
        for user, payments in self.payments.items():
            sums: Counter[str] = Counter()
            receipts[user] = []
            counted = [payment for payment in payments if self.counts(payment)]
            if not counted:
                continue
            for count, payment in enumerate(counted, 1):
                sums[payment["kind"]] += payment["amount"]
                receipts[user].append([payment["n"], count, sums.total()])
            accounts[user] = {"count": len(counted), "sums": dict(sums)}
        return [
            *differences("receipts", receipts, self.results("receipts")),
            *table_differences("accounts", accounts, self.table("accounts")),
        ]


class PoisonedPayments(Payments):
    """Payments of which one in a hundred fails, after it has changed the table and sent
    a record.
    """

    source = POISON

    def counts(self, payment: dict[str, Any]) -> bool:
        return bool(payment["n"] % 100 != 7)


class PaymentsOfTwo(Payments):
    """Payments with a second agent that awaits at each one, and fails at unlucky amounts."""

    source = PAIR
    written = ("receipts", "checks")

    def findings(self) -> list[str]:
        checks: dict[str, list[list[int]]] = {}
        for user, payments in self.payments.items():
            total = 0
            for payment in payments:
                if payment["amount"] % UNLUCKY:
                    total += payment["amount"]
                    checks.setdefault(user, []).append([payment["n"], total])
        checked = {user: some[-1][1] for user, some in checks.items()}
        return [
            *super().findings(),
            *differences("checks", checks, self.results("checks")),
            *table_differences("checked", checked, self.table("checked")),
        ]


class DeadLetters(ExactApp):
    """Payments of which three in a hundred are bad, and kept as dead letters.

    `limit`: number of payments that are sent.
    """

    source = DEAD
    consumed, written = ("payments",), ("receipts", "dlq")

    def __init__(self, bootstrap: str, folder: Path, seed: int, *, limit: int) -> None:
        super().__init__(bootstrap, folder, seed)
        self._limit = limit
        self.good: dict[str, list[int]] = defaultdict(list)

    @property
    def all_sent(self) -> bool:
        return self.fed == self._limit

    def send(self, count: int) -> None:
        parts: dict[TopicPartition, list[int]] = defaultdict(list)
        users = {}
        first, self.fed = self.fed, min(self._limit, self.fed + count)
        tps = self.of("payments")
        for n in range(first, self.fed):
            name = users[n] = f"u{self._draw.randrange(USERS)}"
            parts[tps[partition_of(name.encode(), PARTITIONS)]].append(n)
            if n % 100 not in BAD:
                self.good[name].append(n)
        for tp, some in parts.items():
            values = [b"{%d" % n if n % 100 == BROKEN else b'{"n": %d}' % n for n in some]
            records = [(users[n].encode(), value) for n, value in zip(some, values, strict=True)]
            headers: list[Headers] = [[("trace", b"%d" % n), ("empty", None)] for n in some]
            self._feeder.send(tp, records, [time_of(n) for n in some], headers)

    def findings(self) -> list[str]:
        receipts = {
            name: [[n, count] for count, n in enumerate(some, 1)]
            for name, some in self.good.items()
        }
        totals = {name: len(some) for name, some in self.good.items()}
        return [
            *differences("receipts", receipts, self.results("receipts")),
            *table_differences("totals", totals, self.table("totals")),
            *differences("letters", self._bad(), self._letters()),
        ]

    def _bad(self) -> dict[str, list[Any]]:
        """Return the records that fail, by their places."""
        found = {}
        for tp in self.of("payments"):
            for record in self.client.read(tp):
                n = int(record.headers[0][1] or b"")
                if n % 100 in BAD:
                    found[f"{tp}@{record.offset}"] = [[*map(str, record[1:]), KEPT]]
        return found

    def _letters(self) -> dict[str, list[Any]]:
        found = defaultdict(list)
        for tp in self.of("dlq"):
            for letter in self.client.read(tp):
                told = dict(letter.headers[len(TRACE) :])
                place = [(told[f"__streams.errors.{name}"] or b"").decode() for name in PLACE]
                original = letter._replace(headers=letter.headers[: len(TRACE)])
                kept = sorted(KEPT_HEADERS & told.keys())
                key = "{}-{}@{}".format(*place)
                found[key].append([*map(str, original[1:]), kept])
        return dict(found)


class FlowShop(ExactApp):
    """Orders of users, of which two in three are paid for: counted in windows, and joined."""

    source = SHOP
    consumed, written = ("orders", "payments"), ("counts", "paid")
    inner = ("per-10s-repartition",)

    def send(self, count: int) -> None:
        """Send orders, then their payments, in the order of time.

        A feed that was held up has many to send. With all orders first, workers would reach the end
        of the join's grace before a payment is there.
        """
        for begun in range(0, count, PAID_AT_ONCE):
            self._send_some(min(PAID_AT_ONCE, count - begun))

    def _send_some(self, count: int) -> None:
        numbers = range(self.fed, self.fed + count)
        self.fed += count
        orders = {n: {"n": n, "user": user(n)} for n in numbers}
        self._send("orders", orders)
        self._send("payments", {n: n for n in numbers if is_paid(n)})

    def _send(self, ending: str, values: Mapping[int, Any]) -> None:
        for tp in self.of(ending):
            mine = [n for n in values if partition_of(order_key(n), PARTITIONS) == tp.partition]
            records = [(order_key(n), json.dumps(values[n]).encode()) for n in mine]
            if records:
                self._feeder.send(tp, records, [time_of(n) for n in mine])

    def close(self) -> None:
        """Move time beyond all windows, in each partition of the topic of orders and behind it."""
        names = {partition_of(b"closing-%d" % n, PARTITIONS): f"closing-{n}" for n in range(100)}
        records = [(None, json.dumps({"n": -1, "user": each}).encode()) for each in names.values()]
        for tp in self.of("orders"):
            self._feeder.send(tp, records, [time_of(self.fed) + CLOSING_MS] * len(records))

    def findings(self) -> list[str]:
        windows: Counter[str] = Counter()
        for n in range(self.fed):
            start = time_of(n) - time_of(n) % SIZE_MS
            windows[json.dumps([user(n), start, start + SIZE_MS])] += 1
        counts = self.results("counts")
        found = {json.dumps(json.loads(key)): some for key, some in counts.items()}
        paid = {str(n): [[n, n if is_paid(n) else None]] for n in range(self.fed)}
        joined = defaultdict(list)
        for some in self.results("paid").values():
            for n, payment in some:
                joined[str(n)].append([n, payment])
        del joined["-1"]  # orders without a key that move time
        return [
            *differences("counts", {key: [n] for key, n in windows.items()}, found),
            *differences("paid", paid, joined),
        ]


def user(n: int) -> str:
    return f"u{n * 7 % 20}"


def order_key(n: int) -> bytes:
    return b"order-%d" % n


def time_of(n: int) -> int:
    return BEGIN_MS + n * STEP_MS


def is_paid(n: int) -> bool:
    return n % 3 > 0


def text(key: bytes | None) -> str:
    """Return a key as text, whether it is JSON's or plain."""
    raw = (key or b"").decode()
    return str(json.loads(raw)) if raw.startswith('"') else raw


def differences(
    what: str, expected: Mapping[str, Sequence[Any]], found: Mapping[str, Sequence[Any]]
) -> Iterator[str]:
    """Return the first differences of results by key: what is lost, doubled or wrong.

    Results are known by their first field where they are lists.
    """
    wrong = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    for key in wrong[:TOLD]:
        wanted, had = expected.get(key, ()), found.get(key, ())
        names, told = Counter(map(identity, wanted)), Counter(map(identity, had))
        lost, more = sorted((names - told).elements()), sorted((told - names).elements())
        at = next(
            (n for n, (w, h) in enumerate(zip(wanted, had, strict=False)) if w != h),
            min(len(wanted), len(had)),
        )
        yield (
            f"{what} of {key}: {len(lost)} lost {lost[:TOLD]}, {len(more)} too many {more[:TOLD]}, "
            f"first at result {at}: {list(had[at : at + 3])} and not {list(wanted[at : at + 3])}"
        )
    if len(wrong) > TOLD:
        yield f"{what}: {len(wrong)} keys of {len(expected)} are wrong"


def identity(result: Any) -> str:
    return json.dumps(result[0] if isinstance(result, list) else result)


def table_differences(
    what: str, expected: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[str]:
    wrong = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    for key in wrong[:TOLD]:
        yield f"table {what}: {key}: {found.get(key)} and not {expected.get(key)}"
    if len(wrong) > TOLD:
        yield f"table {what}: {len(wrong)} keys of {len(expected)} are wrong"
