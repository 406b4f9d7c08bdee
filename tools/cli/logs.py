"""Log of a command: one line per decision on stderr, as text or as JSON.

`2026-11-21T08:08:00.123Z INFO  Worker a left the group.`: text has a sentence for each event, JSON
has the event's name and fields (`log_sentences`). Libraries are kept at WARNING. The level of the
root logger is never changed: with a lower level, even records that a library does not print would
cost time.
"""

import json
import logging
import sys
import time

OURS = "streamsx"


TEXT = "%(asctime)s.%(msecs)03.0fZ %(levelname)-5s %(message)s"
SECOND = "%Y-%m-%dT%H:%M:%S"


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object per line; fields of an event stand beside the event's name."""

    def format(self, record: logging.LogRecord) -> str:
        told = {"t": round(record.created, 3), "level": record.levelname}
        told |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def set_up(level: str, form: str) -> None:
    """Set up logging to stderr by the settings `log_level` and `log_format`."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(TEXT, SECOND)
    text.converter = time.gmtime
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    for name, threshold in ((OURS, level.upper()), ("aiokafka", "WARNING"), ("asyncio", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(threshold)
