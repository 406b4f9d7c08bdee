"""One batch on executors of their own, all of which are killed when its tasks are done and nothing
of it has left: `python -m tests.spark.cluster APP URI SINK SCRATCH BROKERS`.
"""

import os
import signal
import sys
from typing import Any

from streamsx.app.lookup import app_named
from streamsx.spark.publish import options_of
from streamsx.spark.runner import begin, counts_found, pipeline
from streamsx.spark.session import session
from streamsx.spark.source import frame
from tests.spark.apps import executor


def main(name: str, uri: str, out: str, scratch: str, brokers: str) -> None:
    app_named(name).override(bootstrap=brokers)
    settings = {
        "spark.master": "local-cluster[2,1,1024]", "spark.driver.memory": "1g",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    }  # fmt: skip
    spark = session(settings)

    def sink(rows: Any) -> None:
        places = spark.sparkContext.parallelize(range(8), 8)
        for pid in places.map(lambda _: executor()).distinct().collect():
            os.kill(pid, signal.SIGKILL)
        rows.write.parquet(out)

    line = pipeline(spark, name, uri, counts_found(name), sink, publishes=False, scratch=scratch)
    begin(line)
    rows = frame(spark, options_of(name) | {"subscribe": "words"})
    line.batch(rows, line.work(0, None), None, by="run", planned=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
