"""Refusal of steps that flows do not have, with a remedy for each.

The names are those of Kafka Streams, and of steps that come at another place of a flow.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from streamsx.app.declaration import declaration
from streamsx.app.users_code import users_line
from streamsx.errors import NotSupported


def _by_name(rows: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: text for names, text in rows.items() for name in names.split()})


LEFT: Final = 'use join(..., kind="left")'
OUTER: Final = 'use join(..., kind="outer")'
AGENT: Final = "write an agent, with tables and timers"
COGROUP: Final = "map the flows to values of one form, and merge them before the aggregate"
OF_FLOW: Final = _by_name(
    {
        "async_map": "write an agent, whose body may await: flows call plain functions",
        "process process_values transform transform_values": AGENT,
        "cogroup": COGROUP,
        "select_key": "use rekey",
        "split": "use branch",
        "left_join": LEFT,
        "outer_join": OUTER,
        "window windowed_by": "call group_by or group_by_key before the window",
        "count sum min max reduce aggregate collect": "call group_by or group_by_key before it",
        "suppress": "only tables have this step: call to_table before it",
    }
)
OF_GROUPS: Final = _by_name(
    {
        "cogroup": COGROUP,
        "windowed_by": "use window",
        "to to_flow to_table join filter map_values": "call an aggregate before it",
    }
)
OF_TABLE: Final = _by_name(
    {
        "to_stream": "use to_flow",
        "transform_values": AGENT,
        "left_join": LEFT,
        "outer_join": OUTER,
        "rekey peek foreach branch merge map flat_map flat_map_values through repartition "
        "group_by_key deduplicate": "call to_flow before it",
        "count sum min max reduce aggregate collect window": "call group_by before it",
    }
)


class AbsentSteps:
    """Base of the classes of flows: steps that are not here are refused by name."""

    _absent: ClassVar[Mapping[str, str]]

    if not TYPE_CHECKING:

        @declaration
        def __getattr__(self, name: str) -> Any:
            remedy = self._absent.get(name)
            if remedy is None:
                return object.__getattribute__(self, name)  # raises the error
            kind = type(self).__name__
            raise NotSupported(f"a {kind} has no step {name} ({users_line()}): {remedy}")
