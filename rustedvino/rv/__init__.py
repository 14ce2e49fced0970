"""The ``rv`` command: a small client of the server's API.

It starts in the time of an interpreter and an argument parser: nothing here imports the runtime, the event loop or the
server, and what only some verbs need (HTTP, tables, downloads) is imported by those verbs. Values are NamedTuples for
the same reason.
"""
