"""Logs of a command, which keep the logging that a user's module has set up."""

import logging
from collections.abc import Iterator

import pytest

from streamsx.tools.cli.logs import set_up

NAMES = ("streamsx", "aiokafka", "asyncio")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(each, each.handlers, each.propagate, each.level) for each in loggers]
    yield
    for each, handlers, propagate, level in before:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


def test_user_loggers_keep_handlers_levels_and_format(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The root logger too belongs to the user."""
    root, own = logging.getLogger(), logging.getLogger("shop.orders")
    before = (root.level, list(root.handlers), own.level, own.propagate, own.disabled)
    set_up("info", "text")
    assert (root.level, list(root.handlers), own.level, own.propagate, own.disabled) == before
    own.warning("an order of %d", 3)
    assert [each.getMessage() for each in caplog.records] == ["an order of 3"]


def test_streamsx_log_line_is_written_once_beside_any_root_logger(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    set_up("info", "text")
    logging.getLogger("streamsx").info("worker_started")
    logging.getLogger("streamsx").debug("too much")
    logging.getLogger("aiokafka").info("a library's")
    assert capsys.readouterr().err.count("\n") == 1
    assert caplog.records == []
