"""Text of one record, for people and for programs. Pure.

Bytes that are text are shown as text, on one line; all others as hexadecimal digits. The headers of
a dead letter are told as a sentence: why the record failed, and where it came from.
"""

import json
import math
from datetime import UTC, datetime
from typing import Any, Final

from streamsx.model import Headers
from streamsx.processing.batch import Batch

NO_KEY: Final = "-"
NO_TIME: Final = "-"
TOMBSTONE: Final = "(tombstone)"
FAILURES: Final = "__streams.errors."
OURS: Final = ("__streams.errors.", "__streamsx.")
"""Prefixes of the headers of a dead letter that do not come from its record."""
UNDECODABLE: Final = "backslashreplace"
NESTED_MAX: Final = 200
"""Most brackets of a text that is decoded without a look at how deep they are nested."""


def line(batch: Batch, index: int, *, headers: bool) -> str:
    """Return a record as one line: partition, offset, time, key, value, and headers if wanted."""
    error = batch.error(index)
    key = batch.keys[index]
    value = batch.values[index]
    parts = [
        str(batch.partition),
        str(batch.offsets[index]),
        time_text(batch.timestamps[index]),
        NO_KEY if key is None else plain(key),
        f"(damaged: {error})" if error else TOMBSTONE if value is None else plain(value),
    ]
    if headers:
        parts.append(headers_text(batch.headers[index] if batch.headers else []))
    return "\t".join(parts)


def as_data(batch: Batch, index: int) -> dict[str, Any]:
    """Return a record as the object that `--json` prints; its timestamp is in ms since 1970."""
    headers = batch.headers[index] if batch.headers else []
    time_ms = batch.timestamps[index]
    damaged = batch.error(index) is not None
    return {
        "topic": batch.topic,
        "partition": batch.partition,
        "offset": batch.offsets[index],
        "timestamp": time_ms if time_ms >= 0 else None,
        "key": parsed(batch.keys[index]),
        "value": None if damaged else parsed(batch.values[index]),
        "headers": [[name, None if raw is None else _text(raw)] for name, raw in headers],
    }


def time_text(time_ms: int) -> str:
    """Return a time in UTC, with ms; a dash for none, and the number for one beyond year 9999."""
    if time_ms < 0:
        return NO_TIME
    try:
        at = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms}ms"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"


def plain(data: bytes) -> str:
    """Return text on one line, with escapes for what cannot be printed; other bytes as digits."""
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError:
        return f"0x{bytes(data).hex()}"
    if not text:
        return '""'
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def parsed(data: bytes | None) -> Any:
    """Decode JSON, else text; return None for no bytes at all."""
    return None if data is None else parsed_text(_text(data))


def parsed_text(text: str) -> Any:
    """Decode JSON; return the text itself if it is no JSON, or if JSON cannot say its value.

    NaN and Infinity are no JSON, a number such as 1e999 becomes infinity, and a list may be nested
    too deep to be written again.
    """
    try:
        found = json.loads(text, parse_constant=_no_json, parse_float=_finite)
        if text.count("[") + text.count("{") > NESTED_MAX:
            json.dumps([[found]])  # as deep as any line that has it
    except (ValueError, RecursionError):
        return text
    return found


def _no_json(word: str) -> float:
    raise ValueError(f"no JSON: {word}")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"no JSON: {digits}")
    return number


def json_text(found: Any) -> str:
    """Return JSON as one line that can be written as UTF-8.

    A text with half of a surrogate pair, as of the JSON value "\\ud83d", gets escapes.
    """
    text = json.dumps(found, ensure_ascii=False)
    return text if encodable(text) else json.dumps(found)


def encodable(text: str) -> bool:
    """Return whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def headers_text(headers: Headers) -> str:
    """Return headers on one line; those of a dead letter as a sentence behind the record's own."""
    own = [
        f"{name}={'' if raw is None else plain(raw)}"
        for name, raw in headers
        if not name.startswith(OURS)
    ]
    failed = {name: plain(raw) for name, raw in headers if raw is not None}
    return " ".join([*own, *failure_text(failed)])


def failure_text(told: dict[str, str]) -> list[str]:
    """Return the failure of a dead letter as one sentence; nothing for other records."""
    known = {name.removeprefix(FAILURES): text for name, text in told.items()}
    if f"{FAILURES}exception" not in told:
        return []
    source = f"{known.get('topic', '?')} partition {known.get('partition', '?')}"
    offset = known.get("offset")
    where = f"to {source}" if offset is None else f"from {source} offset {offset}"
    reader = told.get("__streamsx.operator")
    task = told.get("__streamsx.task")
    tries = told.get("__streamsx.attempt", "1")
    parts = [
        f"failed: {known['exception']}: {known.get('message', '')}",
        where,
        *([f"in {reader}"] if reader else []),
        *([f"task {task}"] if task else []),
        *([f"{tries} tries"] if tries != "1" else []),
    ]
    return [", ".join(parts)]


def _text(data: bytes) -> str:
    return bytes(data).decode(errors=UNDECODABLE)
