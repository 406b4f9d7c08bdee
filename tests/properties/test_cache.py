"""state/cache.py against a model: in any order of commits and aborts, it behaves as a dict."""

from copy import deepcopy

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamsx.serde.codec import table_codec
from streamsx.state.cache import CachedStore
from streamsx.state.careful import Careful
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from tests.support.codecs import coded

KEYS = st.sampled_from([f"k{n}" for n in range(8)])
ROWS = st.integers(1, 5)
VALUES = st.integers(0, 1000)

JSON = coded(orjson.loads, orjson.dumps)


class CacheIsADict(RuleBasedStateMachine):
    """Machine of a cache and its model. `now`: what a user reads; `sealed` and `committed`: what it
    was at these points.
    """

    stage = "open"
    careful = False

    @initialize(
        budget=st.sampled_from([0, 500, 2000, 1 << 20]), rows=st.booleans(), careful=st.booleans()
    )
    def start(self, budget: int, rows: bool, careful: bool) -> None:
        below = MemoryRows()
        if rows:
            below.write({b"\x01" + orjson.dumps(f"k{n}"): b"[%d]" % n for n in range(6)}, 6)
        node = StoreNode("s", "log", JSON, table_codec(None))
        self.cached: CachedStore = CachedStore(node, below, budget)
        self.careful = careful
        self.cached.check_values(checking=careful, at_set=False)
        self.now: dict[str, list[int]] = {f"k{n}": [n] for n in range(6)} if rows else {}
        self.committed, self.sealed = deepcopy(self.now), deepcopy(self.now)

    def end_record(self) -> None:
        """End a record that has touched one row: the row keeps its object."""
        if isinstance(self.cached.hot, Careful):
            self.cached.hot.encode(alone=True)
        self.cached.keep()

    @rule(key=KEYS, value=VALUES)
    @precondition(lambda self: self.stage != "sealing")
    def put(self, key: str, value: int) -> None:
        self.cached.put(key, [value])
        self.end_record()
        self.now[key] = [value]

    @rule(key=KEYS, value=VALUES)
    @precondition(lambda self: self.stage != "sealing")
    def change_in_place(self, key: str, value: int) -> None:
        if (found := self.cached.get(key)) is not None:
            found.append(value)
            self.cached.put(key, found)
            self.now[key] = [*self.now[key], value]
        self.end_record()

    @rule(key=KEYS, other=KEYS, value=VALUES)
    @precondition(lambda self: self.careful and self.stage != "sealing")
    def fail(self, key: str, other: str, value: int) -> None:
        """Fail a record that put a value or changed it in place: no change may stay."""
        if (found := self.cached.get(key)) is not None:
            found.append(value)
        self.cached.put(other, [value])
        self.cached.undo()

    @rule(key=KEYS, value=VALUES)
    @precondition(lambda self: not self.careful and self.stage == "open")
    def fail_while_nothing_is_dirty(self, key: str, value: int) -> None:
        if self.cached.dirty:
            return
        if (found := self.cached.get(key)) is not None:
            found.append(value)
        assert self.cached.drop_clean()

    @rule(key=KEYS)
    @precondition(lambda self: self.stage != "sealing")
    def delete(self, key: str) -> None:
        self.cached.delete(key)
        self.end_record()
        self.now.pop(key, None)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        assert self.cached.get(key) == self.now.get(key)
        self.end_record()

    @rule()
    def items(self) -> None:
        assert list(self.cached.items()) == sorted(self.now.items())
        self.end_record()

    @rule(rows=ROWS)
    def preload(self, rows: int) -> None:
        self.cached.preload_some(rows)

    @rule()
    @precondition(lambda self: self.stage == "open")
    def begin_to_seal(self) -> None:
        self.stage, self.sealed = "sealing", deepcopy(self.now)

    @rule(rows=ROWS)
    @precondition(lambda self: self.stage == "sealing")
    def seal(self, rows: int) -> None:
        if not self.cached.seal(rows).keys:
            self.stage = "sealed"

    @rule()
    @precondition(lambda self: self.stage in ("open", "sealed"))
    def abort(self) -> None:
        if self.stage == "open" and self.cached.pending:
            return
        self.cached.aborted()
        self.stage, self.now = "open", deepcopy(self.committed)

    @rule()
    @precondition(lambda self: self.stage == "sealed")
    def commit(self) -> None:
        self.cached.adopt(1)
        self.stage, self.committed = "writing", self.sealed

    @rule(rows=ROWS)
    @precondition(lambda self: self.stage == "writing")
    def write(self, rows: int) -> None:
        if self.cached.write_some(rows):
            self.stage = "open"

    @invariant()
    def complete_means_all(self) -> None:
        if hasattr(self, "cached") and self.cached.complete and self.stage == "open":
            held = {**self.cached.old, **self.cached.young, **self.cached.hot}
            assert self.now.keys() <= held.keys()


TestCacheIsADict = CacheIsADict.TestCase
