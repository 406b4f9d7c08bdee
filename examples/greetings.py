"""Greetings: one agent that reads names and sends greetings. The smallest app; it keeps nothing.

    python -m streamsx broker                                # in a terminal of its own
    python -m streamsx worker streamsx.examples.greetings    # in a second one
    python -m streamsx send names Ann Bob                    # in a third one

The worker prints `Hello Ann` and `Hello Bob`, and the topic `greetings` has both. Start a second
worker: the two divide the partitions of `names`, and each name is greeted by one of them.
"""

from streamsx import App, Stream

app = App("greetings")
names = app.topic("names", value_type=str, value_serializer="raw")
greetings = app.topic("greetings", value_type=str, value_serializer="raw")


@app.agent(names)
async def greet(stream: Stream[str]) -> None:
    async for name in stream:
        greeting = f"Hello {name}"
        print(greeting)
        await greetings.send(key=name, value=greeting)


if __name__ == "__main__":
    app.main()
