"""What Spark users read from and write to by name: journals as tables, live subscriptions, a feed source as a sink.

`register(spark)` makes the names known to a session. Executors import this package, so they need it installed. Never:
a loop in Python over the messages of fixed size.
"""

from tandemfeed.spark_feed.spark.registration import register

__all__ = ["register"]
