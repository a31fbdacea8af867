"""`make demo`: one turn loses its workers to kill -9 again and again, and its effect happens exactly once.

Nothing here is staged for the show: the stack is the one of `perdure up`, the turn goes over REST, the decision goes
through the `perdure` command, and what happened is counted by the payments service, a process with a store of its own.
"""
