"""Judge of histories: finds the anomalies, with the events that show them. Pure.

Each check looks for its own kinds of anomalies. Not here: whether a history got anywhere; a broker
that does nothing has a clean one.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from streamsx.model import TopicPartition
from tests.support.history.anomalies import ALLOWED, Anomaly, Kind
from tests.support.history.cycles import cycles
from tests.support.history.events import History, Level, Phase, Send
from tests.support.history.facts import NEVER, Facts, Fate, Operation, Stretch, of
from tests.support.history.groups import commits, effects

Check = Callable[[Facts], Iterator[Anomaly]]


def judge(history: History) -> list[Anomaly]:
    """Return all anomalies, also those that Kafka allows.

    Raises:
        ValueError: not a history: an operation ends without a beginning, or a value is sent twice.
    """
    facts = Facts(history)
    return [anomaly for check in CHECKS for anomaly in check(facts)]


def forbidden(anomalies: Iterable[Anomaly]) -> list[Anomaly]:
    return [anomaly for anomaly in anomalies if anomaly.kind not in ALLOWED]


def missing(facts: Facts) -> Iterator[Anomaly]:
    """Yield lost writes and torn transactions: beyond the end, or passed by readers and never
    read.
    """
    for send in facts.sends:
        action, known = of(send, Send), facts.known_since(send)
        if facts.fate(send) is not Fate.THERE and not facts.read_by(action.value, Level.COMMITTED):
            continue
        witness = cut_off(facts, send, known)
        if witness is None and not facts.readings.get(action.value):
            witness = passed(facts, send)
        if witness is not None:
            kind = Kind.TORN_TRANSACTION if is_torn(facts, send) else Kind.LOST_WRITE
            shown = tuple(at for at in (send.began, send.ended, known, witness) if at != NEVER)
            yield Anomaly(kind, f"{action.value} of {action.tp}", shown)


def cut_off(facts: Facts, send: Operation, known: int) -> int | None:
    """Yield records that were cut off: a reader came to an end before a record that had to exist.

    For a record with an unknown offset that no reader got, any end counts.
    """
    places = {offset for _, offset in facts.places(of(send, Send).value)}
    for stretch in facts.stretches_of[of(send, Send).tp]:
        end, at = stretch.end
        if at > known and all(offset >= end for offset in places) and (places or not stretch.start):
            return at
    return None


def passed(facts: Facts, send: Operation) -> int | None:
    for tp, offset in facts.places(of(send, Send).value):
        for stretch in facts.stretches_of[tp]:
            if stretch.start <= offset < stretch.reached:
                return stretch.by
    return None


def is_torn(facts: Facts, send: Operation) -> bool:
    """Return whether another record of the same transaction was read as committed."""
    txn = of(send, Send).txn
    return txn is not None and any(
        facts.read_by(of(other, Send).value, Level.COMMITTED)
        for other in facts.transactions[txn].sends
        if other is not send
    )


def fates(facts: Facts) -> Iterator[Anomaly]:
    """Yield reads of aborted, refused, uncommitted and never sent records."""
    for each in facts.deliveries:
        row, read = each.row, each.poll.ended
        send = facts.sender.get(row.value)
        about = f"{row.value} of {row.tp} at {row.offset} by {each.poll.client}"
        if send is None or of(send, Send).tp != row.tp or read < send.began:
            began = () if send is None else (send.began,)
            yield Anomaly(Kind.UNSENT_READ, about, (*began, read))
            continue
        txn = of(send, Send).txn
        refused = send.phase is Phase.FAIL
        if facts.fate(send) is Fate.GONE and (refused or each.level is Level.COMMITTED):
            ends = [] if txn is None else [op.began for op in facts.transactions[txn].ends]
            yield Anomaly(Kind.ABORTED_READ, about, (send.began, *ends, read))
        elif txn is not None and each.level is Level.COMMITTED:
            committing = facts.transactions[txn].committing
            if read < committing:
                yield Anomaly(Kind.DIRTY_READ, about, (send.began, read, committing))


def offsets(facts: Facts) -> Iterator[Anomaly]:
    """Yield two records at one offset, and one record at two offsets."""
    values: dict[tuple[TopicPartition, int], dict[str, int]] = defaultdict(dict)
    stands: dict[str, dict[tuple[TopicPartition, int], int]] = defaultdict(dict)
    for value, place, at in seen(facts):
        values[place].setdefault(value, at)
        stands[value].setdefault(place, at)
    for (tp, offset), found in values.items():
        if len(found) > 1:
            about = f"{tp} at {offset} is {' and '.join(found)}"
            yield Anomaly(Kind.INCONSISTENT_OFFSET, about, tuple(found.values()))
    for value, where in stands.items():
        if len(where) > 1:
            about = f"{value} at {' and '.join(f'{tp}:{offset}' for tp, offset in where)}"
            yield Anomaly(Kind.DUPLICATE, about, tuple(where.values()))


def seen(facts: Facts) -> Iterator[tuple[str, tuple[TopicPartition, int], int]]:
    """Return the record at an offset, as the event has it."""
    for send in facts.sends:
        action = of(send, Send)
        if send.phase is Phase.OK and action.offset is not None:
            yield action.value, (action.tp, action.offset), send.ended
    for each in facts.deliveries:
        yield each.row.value, (each.row.tp, each.row.offset), each.poll.ended


def polls(facts: Facts) -> Iterator[Anomaly]:
    """Yield readers that go back, or that skip what another reader got."""
    known: dict[TopicPartition, dict[int, tuple[str, int]]] = defaultdict(dict)
    for each in facts.deliveries:
        known[each.row.tp].setdefault(each.row.offset, (each.row.value, each.poll.ended))
    in_order = {tp: sorted(found) for tp, found in known.items()}
    for stretch in facts.stretches:
        yield from goes_back(stretch)
        yield from skips(facts, stretch, known[stretch.tp], in_order.get(stretch.tp, []))


def goes_back(stretch: Stretch) -> Iterator[Anomaly]:
    before, by = stretch.start - 1, stretch.by
    for each in stretch.deliveries:
        if each.row.offset <= before:
            about = f"{stretch.client} of {stretch.tp}: {each.row.offset} after {before}"
            yield Anomaly(Kind.NONMONOTONIC_POLL, about, (by, each.poll.ended))
        before, by = each.row.offset, each.poll.ended


def skips(
    facts: Facts, stretch: Stretch, known: dict[int, tuple[str, int]], in_order: list[int]
) -> Iterator[Anomaly]:
    """Yield skipped records. `known`: by offset, the records that any reader got, and where."""
    own = {each.row.offset for each in stretch.deliveries}
    first, end = bisect_left(in_order, stretch.start), bisect_left(in_order, stretch.reached)
    for offset in in_order[first:end]:
        value, at = known[offset]
        if offset not in own and facts.visible(value, stretch.level):
            about = f"{stretch.client} passed {value} of {stretch.tp} at {offset}"
            yield Anomaly(Kind.POLL_SKIP, about, (at, stretch.by))


def order_of_sends(facts: Facts) -> Iterator[Anomaly]:
    """Yield records out of order: a client's later sends, and sends after an acknowledgement, must
    come later.
    """
    by_tp: dict[TopicPartition, list[tuple[int, Operation]]] = defaultdict(list)
    for send in facts.sends:
        if places := facts.places(of(send, Send).value):
            tp, offset = min(places)  # that there are several is another anomaly
            by_tp[tp].append((offset, send))
    for tp, rows in by_tp.items():
        highest: dict[str, tuple[int, int]] = {}
        for offset, send in sorted(rows, key=lambda row: row[1].began):
            before, at = highest.get(send.client, (-1, -1))
            if offset < before:
                yield backwards(tp, send, offset, before, at)
            else:
                highest[send.client] = offset, send.began
        yield from after_acknowledged(tp, rows)


def after_acknowledged(tp: TopicPartition, rows: list[tuple[int, Operation]]) -> Iterator[Anomaly]:
    """Yield records before one of another client that was acknowledged earlier, in real time."""
    ended = sorted((send.ended, offset, send) for offset, send in rows if send.phase is Phase.OK)
    highest, at, i, by = -1, -1, 0, ""
    for offset, send in sorted(rows, key=lambda row: row[1].began):
        while i < len(ended) and ended[i][0] < send.began:
            if ended[i][1] > highest:
                at, highest, by = ended[i][0], ended[i][1], ended[i][2].client
            i += 1
        if offset < highest and by != send.client:
            yield backwards(tp, send, offset, highest, at)


def backwards(tp: TopicPartition, send: Operation, offset: int, before: int, at: int) -> Anomaly:
    about = f"{of(send, Send).value} of {tp} at {offset}, sent after what is at {before}"
    return Anomaly(Kind.NONMONOTONIC_SEND, about, (at, send.began))


CHECKS: tuple[Check, ...] = (
    missing, fates, offsets, polls, order_of_sends, commits, effects, cycles,
)  # fmt: skip
