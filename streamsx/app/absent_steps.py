"""Refusal of steps that flows do not have, with a remedy for each.

The names are those of Kafka Streams, and of steps that come at another place of a flow.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from streamsx.app.compat import users_line
from streamsx.errors import NotSupported


def _by_name(rows: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: text for names, text in rows.items() for name in names.split()})


LEFT: Final = 'use join(..., kind="left")'
OUTER: Final = 'use join(..., kind="outer")'
AGENT: Final = "write an agent, with tables and timers"
COGROUP: Final = "give the flows values of one form, and merge them ahead of the aggregate"
OF_FLOW: Final = _by_name(
    {
        "async_map": "write an agent, whose body may await: flows call plain functions",
        "process process_values transform transform_values": AGENT,
        "cogroup": COGROUP,
        "select_key": "use rekey",
        "split": "use branch",
        "left_join": LEFT,
        "outer_join": OUTER,
        "window windowed_by": "write group_by or group_by_key ahead of the window",
        "count sum min max reduce aggregate collect": "write group_by or group_by_key ahead of it",
        "suppress": "a table has that step: write to_table ahead of it",
    }
)
OF_GROUPS: Final = _by_name(
    {
        "cogroup": COGROUP,
        "windowed_by": "use window",
        "to to_flow to_table join filter map_values": "write an aggregate ahead of it",
    }
)
OF_TABLE: Final = _by_name(
    {
        "to_stream": "use to_flow",
        "transform_values": AGENT,
        "left_join": LEFT,
        "outer_join": OUTER,
        "rekey peek foreach branch merge map flat_map flat_map_values through repartition "
        "group_by_key deduplicate": "use to_flow ahead of it",
        "count sum min max reduce aggregate collect window": "write group_by ahead of it",
    }
)


class AbsentSteps:
    """Base of the classes of flows: steps that are not here are refused by name."""

    _absent: ClassVar[Mapping[str, str]]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            remedy = self._absent.get(name)
            if remedy is None:
                return object.__getattribute__(self, name)  # raises the error
            kind = type(self).__name__
            raise NotSupported(f"no step of a {kind}: {name} ({users_line()}): {remedy}")
