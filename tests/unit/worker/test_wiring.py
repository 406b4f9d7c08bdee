"""Settings that are converted when the parts of a worker are made."""

import pytest

from streamsx.app.settings import resolve_config
from streamsx.worker.wiring import eager


@pytest.mark.parametrize(
    ("code", "lets_go"),
    [
        ({}, False),
        ({"upgrade_from": "0.10.0"}, True),
        ({"upgrade_from": "2.3"}, True),
        ({"upgrade_from": "2.4"}, False),
        ({"upgrade_from": "3.10"}, False),
        ({"upgrade_from": "eager"}, True),
        ({"upgrade_from": "none"}, False),
        ({"rebalancing_mode": "upgrading"}, True),
        ({"config": {"stream.rebalancing.mode": "default"}}, False),
        ({"config": {"stream.rebalancing.mode": "upgrading"}}, True),
        ({"revoke_before_join": "all"}, True),
    ],
)
def test_worker_revokes_all_before_join_as_configured(
    code: dict[str, object], lets_go: bool
) -> None:
    assert eager(resolve_config("shop", code, {}, {}).config) is lets_go
