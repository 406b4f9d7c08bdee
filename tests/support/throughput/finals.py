"""App that counts per user and 10 s, each result sent once its window has closed, to be
measured.
"""

import os

from streamsx import App
from streamsx.app.window import tumbling

app = App(
    os.environ.get("GROUP", "throughput"),
    broker=f"kafka://{os.environ.get('BOOTSTRAP', 'localhost:9092')}",
    state_dir=os.environ.get("STATE_DIR"),
    topic_partitions=int(os.environ.get("PARTITIONS", "4")),
)


results = app.topic(f"{os.environ.get('GROUP', 'throughput')}-finals")
orders = app.flow(os.environ.get("TOPIC", "orders"), key_type=str)
windows = orders.group_by_key().window(tumbling("10s", grace="0s"))
windows.count("counts", emit="final").to(results)
