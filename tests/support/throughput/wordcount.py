"""App that counts words, to be measured (`measuring`); the environment has its settings."""

import os

from streamsx import App, Stream

app = App(
    os.environ.get("GROUP", "throughput"),
    broker=f"kafka://{os.environ.get('BOOTSTRAP', 'localhost:9092')}",
    state_dir=os.environ.get("STATE_DIR"),
    topic_partitions=int(os.environ.get("PARTITIONS", "4")),
)
lines = app.topic(os.environ.get("TOPIC", "lines"), value_type=str, value_serializer="raw")
words = app.topic(f"{app.conf.id}-words", value_type=str, value_serializer="raw")
counts = app.Table("counts", default=int, key_type=str, value_type=int)


@app.agent(lines)
async def split(stream: Stream[str]) -> None:
    async for line in stream:
        for word in line.lower().split():
            await words.send(key=word, value=word)


@app.agent(words)
async def count(stream: Stream[str]) -> None:
    async for word in stream:
        counts[word] += 1
