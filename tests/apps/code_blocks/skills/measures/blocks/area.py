"""The area of a rectangle, in square millimetres."""

from typing import Any


def run(width: float, height: float, data: dict[str, Any], unit: str = "mm") -> dict[str, Any]:
    """Both sides are in `unit`."""
    rows = data["units"]["rows"]
    if unit not in rows:
        raise ValueError(f"no unit {unit}; known: {', '.join(rows)}")
    print(f"one {unit} is {rows[unit]} mm")
    return {"square_millimetres": round(width * height * rows[unit] ** 2, 2)}
