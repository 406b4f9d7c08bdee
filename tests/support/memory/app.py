"""App whose table is filled and then read; records choose the shape of the rows.

A record is a key, and what to do with it: "put" or "get".
"""

import os
from typing import Any

import streamsx

SHAPE = os.environ.get("SHAPE", "small")
TEXT_LETTERS = 100_000
SMALL_FIELDS, LARGE_FIELDS = 15, 2_000

app = streamsx.App("memory", topic_partitions=1, session_timeout="10s")
work = app.topic("work", partitions=1)
docs = app.Table("docs")


def document(number: int, fields: int) -> dict[str, Any]:
    """Return a document of `fields` lists, 50 bytes of JSON each."""
    made = range(fields)
    return {f"field_{i}": [f"value {number} {i}", number * 1000 + i, i / 7] for i in made}


def row(number: int) -> Any:
    """Return the row of a key: 0.8 KB of small objects, or 100 KB of text or of small objects."""
    if SHAPE == "large":
        return f"{number:06}" + "x" * TEXT_LETTERS
    return document(number, LARGE_FIELDS if SHAPE == "nested" else SMALL_FIELDS)


@app.agent(work, name="docs")
async def run(records: Any) -> None:
    async for number, what in records:
        if what == "put":
            docs[number] = row(number)
        else:
            assert docs.get(number) is not None, f"the row of {number} is not there"
