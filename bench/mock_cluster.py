"""librdkafka's own mock cluster in a process of its own: a broker in C that keeps 5 MB a partition in memory.

python -m bench.mock_cluster        prints: ready kafka=HOST:PORT
"""

from __future__ import annotations

import signal

from confluent_kafka import Producer


def main() -> None:
    holder = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = holder.list_topics(timeout=10).brokers.values()
    print(f"ready kafka={broker.host}:{broker.port}", flush=True)
    # The cluster lives in threads of `holder`; this one has nothing to do.
    signal.pause()


if __name__ == "__main__":
    main()
