"""Conversion away from the wire: captures and files as tables of Spark, and journals converted again.

It stands above adapter and spark_feed, and neither imports it: one has the conversion, the other journals and Spark.
"""
