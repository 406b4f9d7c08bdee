"""examples/wordcount.py, as examples/README.md tells it."""

from collections import Counter
from pydoc_data.topics import topics

from streamsx.examples import wordcount
from streamsx.testing import TestDriver


def test_word_count_equals_plain_python() -> None:
    lines = [line for text in topics.values() for line in text.splitlines()][:2000]
    with TestDriver(wordcount.app, partitions={"wordcount-lines": 2}) as driver:
        driver.pipe("wordcount-lines", lines[:1000])
        driver.restart()
        driver.pipe("wordcount-lines", lines[1000:])
        assert driver.table("counts") == Counter(word for line in lines for word in line.split())
        assert driver.failures == []
