"""Producer with a transactional id, on the harness of the coordinator."""

from types import SimpleNamespace
from typing import Any

from streamsx.broker.groups.coordinator_events import AddPartition
from streamsx.protocol.error_codes import ErrorCode
from tests.support.coordinator_harness import CoordinatorHarness, Place

TOPIC = "t"


class Transactor:
    """Producer that keeps the ids it gets. `modern`: it uses the second version of the protocol
    (KIP-890).
    """

    def __init__(
        self, harness: CoordinatorHarness, name: str = "x", *, modern: bool = True
    ) -> None:
        self.harness, self.name, self.modern = harness, name, modern
        self.owner = (-1, -1)

    def init(self, owner: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000) -> int:
        told = self._told(
            22, 4, transactional_id=self.name, transaction_timeout=timeout_ms, producer_id=owner[0],
            producer_epoch=owner[1],
        )  # fmt: skip
        return self._keeps(told)

    def add(self, *places: Place, version: int = 3) -> list[int]:
        topics = [
            SimpleNamespace(name=t, partitions=[p for n, p in places if n == t])
            for t in sorted({t for t, _ in places})
        ]
        told = self._told(
            24, version, v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.owner[0], v3_and_below_producer_epoch=self.owner[1],
            v3_and_below_topics=topics,
        )  # fmt: skip
        return [
            p["partition_error_code"]
            for t in told["results_by_topic_v3_and_below"]
            for p in t["results_by_partition"]
        ]

    def write(self, what: int, place: Place = (TOPIC, 0)) -> int:
        """Write as a batch would."""
        if self.modern:
            wall_ms = int(self.harness.now * 1000)
            self.harness.step(AddPartition(self.name, self.owner, place, wall_ms))
        code = self.harness.machine.transactions.may_write(self.name, self.owner, place)
        if not code:
            self.harness.logs[place].write(self.owner, what)
        return code

    def add_group(self, group: str = "g") -> int:
        body = {"producer_id": self.owner[0], "producer_epoch": self.owner[1], "group_id": group}
        return int(self._told(25, 3, transactional_id=self.name, **body)["error_code"])

    def commit_offset(
        self, offset: int, group: str = "g", *, place: Place = (TOPIC, 0), member: str = "",
        generation: int = -1, version: int | None = None, instance: str | None = None,
    ) -> int:  # fmt: skip
        partition = SimpleNamespace(
            partition_index=place[1], committed_offset=offset, committed_leader_epoch=-1,
            committed_metadata="",
        )  # fmt: skip
        told = self._told(
            28, version or (5 if self.modern else 3), transactional_id=self.name, group_id=group,
            producer_id=self.owner[0], producer_epoch=self.owner[1], generation_id=generation,
            member_id=member, group_instance_id=instance,
            topics=[SimpleNamespace(name=place[0], partitions=[partition])],
        )  # fmt: skip
        return int(told["topics"][0]["partitions"][0]["error_code"])

    def end(self, *, commit: bool = True, version: int | None = None) -> int:
        body = {"producer_id": self.owner[0], "producer_epoch": self.owner[1]}
        version = version or (5 if self.modern else 3)
        told = self._told(26, version, transactional_id=self.name, committed=commit, **body)
        return self._keeps(told) if version >= 5 else int(told["error_code"])

    def _told(self, api: int, version: int, **body: Any) -> dict[str, Any]:
        return self.harness.replies[self.harness.ask(api, version, **body)]

    def _keeps(self, told: dict[str, Any]) -> int:
        code = int(told.get("error_code", ErrorCode.NONE))
        if code == ErrorCode.NONE:
            self.owner = told["producer_id"], told["producer_epoch"]
        return code
