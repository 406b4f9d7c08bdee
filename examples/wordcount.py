"""Word count: one agent cuts lines into words, the other counts each word.

    python -m streamsx worker streamsx.examples.wordcount
    python -m streamsx send wordcount-lines 'to be or not to be'
    python -m streamsx table --app wordcount counts

Lines are plain text, so any producer can write them. Each word is its own key: equal words meet in
one partition, and so in one task, which keeps their count. Another WORDCOUNT_NAME makes another
app, with topics of its own: several can share a broker.
"""

import os

from streamsx import App, Stream

name = os.environ.get("WORDCOUNT_NAME", "wordcount")
app = App(name)
lines = app.topic(f"{name}-lines", value_type=str, value_serializer="raw")
words = app.topic(f"{name}-words", value_type=str, value_serializer="raw")
counts = app.Table("counts", default=int, key_type=str, value_type=int)


@app.agent(lines)
async def split(stream: Stream[str]) -> None:
    async for line in stream:
        for word in line.split():
            await words.send(key=word, value=word)


@app.agent(words)
async def count(stream: Stream[str]) -> None:
    async for word in stream:
        counts[word] += 1


if __name__ == "__main__":
    app.main()
