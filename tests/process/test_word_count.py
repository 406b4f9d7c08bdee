"""A group of real workers counts words: it starts, grows, shrinks, and every count is right."""

from streamsx.testing.wordcount import WordCount
from streamsx.testing.workers import Workers


def test_one_worker_counts_every_word_once(workers: Workers, wordcount: WordCount) -> None:
    wordcount.send(2000)
    workers.start("a", commit_interval="200ms")
    workers.until(lambda: wordcount.drained, "drained")
    assert workers.stop("a") == [0]
    assert wordcount.counts() == wordcount.words
