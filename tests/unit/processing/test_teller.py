"""Event times that a task sends to the tasks behind it."""

from streamsx.model import Headers
from streamsx.processing.inbox import Outbox, Send, SendRows
from streamsx.processing.progress import NOTHING, Told, decode
from streamsx.processing.teller import Teller
from streamsx.topology.time_links import TimeLinks, Writer

ME = Writer(7, 3)
TOPIC = "between"


class Sent(Outbox):
    """Sent times, with the partition of each."""

    def __init__(self) -> None:
        self.times: list[tuple[int | None, Told | None]] = []

    def to(self, topic: str, partition: int | None = None) -> Send:
        assert topic == TOPIC

        def send(
            key: bytes | None,
            value: bytes | None,
            timestamp: int,
            headers: Headers | None,
            partition_key: bytes | None = None,
        ) -> None:
            assert value is not None
            self.times.append((partition, decode(value)))

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        raise AssertionError("a time is no row")


def made(partitions: int = 1) -> tuple[Teller, Sent]:
    sent = Sent()
    return Teller(TimeLinks(ME, {TOPIC: partitions}, idle_ms={TOPIC: 5}), sent), sent


def test_time_is_told_to_each_partition_when_it_has_moved() -> None:
    teller, sent = made(partitions=2)
    teller.tell(TOPIC, [10])
    teller.tell(TOPIC, [10])
    assert sent.times == [(0, Told(ME, 10)), (1, Told(ME, 10))]


def test_task_with_input_tells_at_once_that_it_is_idle_no_more() -> None:
    """Its next commit would be too late: the task may stop at a bad record before it."""
    teller, sent = made()
    teller.tell(TOPIC, [10])
    assert teller.rests(TOPIC)
    teller.tell(TOPIC, [10])
    teller.awake(["another"])
    teller.awake([TOPIC])
    teller.awake([TOPIC])
    assert [told for _, told in sent.times] == [
        Told(ME, 10),
        Told(ME, 10, idle=True),
        Told(ME, 10),
    ]


def test_task_that_has_not_told_that_it_is_idle_tells_nothing_when_it_gets_input() -> None:
    teller, sent = made()
    teller.tell(TOPIC, [10])
    teller.rests(TOPIC)  # to be told with the next commit
    teller.awake([TOPIC])
    assert [told for _, told in sent.times] == [Told(ME, 10)]


def test_task_that_begins_with_input_tells_that_it_is_not_idle() -> None:
    """The task before it may have sent that it is idle."""
    teller, sent = made()
    teller.awake([TOPIC])
    teller.awake([TOPIC])
    assert [told for _, told in sent.times] == [Told(ME, NOTHING)]
