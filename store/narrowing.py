"""The conditions of a list that are asked for, and no others: one that is not there keeps no index from being used.

A plan is made once for all parameters (`database.py`). So the name of a state stands in the statement itself: only a
plan made for that state knows that it is a rare one, and goes by the index.
"""

from collections.abc import Collection


class Narrowing:
    """A WHERE clause and its parameters, as both grow."""

    def __init__(self, *conditions: str) -> None:
        self._conditions = list(conditions)
        self.given: list[object] = []
        """The parameters, $1 first."""

    def by(self, condition: str, *values: object) -> None:
        """Narrow by `condition`, in which `{0}` and so on stand for `values`; not where the first one is None."""
        if values and values[0] is None:
            return
        self._conditions.append(condition.format(*(self.parameter(value) for value in values)))

    def being(self, column: str, state: str | None, states: Collection[str]) -> None:
        """Narrow by a state, one of `states`; any other is nobody's. Not where it is None."""
        if state is not None:
            self._conditions.append(f"{column} = '{state}'" if state in states else "false")

    def parameter(self, value: object) -> str:
        """The place of one more parameter, as `$3`."""
        self.given.append(value)
        return f"${len(self.given)}"

    def __str__(self) -> str:
        return "WHERE " + (" AND ".join(self._conditions) or "true")
