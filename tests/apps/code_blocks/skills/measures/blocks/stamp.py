"""Stamps a number, which a person has to allow."""


def run(number: int) -> dict[str, str]:
    """The stamped text."""
    return {"text": f"No. {number}"}
