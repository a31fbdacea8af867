"""`make demo`: one turn loses its workers to kill -9 several times, and its effect happens exactly once.

Nothing is simulated for the demo. The stack is that of `perdure up`, the turn uses the REST API, and the decision uses
the `perdure` command. The payments service, a process with its own store, counts the effects.
"""
