"""Clients of environment servers.

`transports` carries bytes, `pool` has the servers and `session_state` a session's turns, `protocol`
decides what is sent and reads the replies without input or output, and `sync` and `aio` are the two
clients on top.
"""
