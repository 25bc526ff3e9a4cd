"""The feed source: recordings of ticks, the Spark job that numbers them into a journal, the gateway that sends them.

Never imports adapter, admin_server or client_lib. Invariant: (source_stream_id, source_seq) always identifies the same
content.
"""
