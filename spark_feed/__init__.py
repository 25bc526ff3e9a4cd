"""The feed source: recordings of ticks, the Spark job that numbers them into a journal, the gateway that sends them.

Never imports adapter or admin_server. Invariant: (source_stream_id, source_seq) always identifies the same
content.
"""
