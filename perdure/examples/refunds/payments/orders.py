"""Made-up orders. Numbers 1 to 99999 exist; what is in them repeats the eight below. No person or shop is meant."""

from dataclasses import dataclass

CURRENCY = "EUR"
MADE_UP = "All customers, orders and payments here are fictional."
_MAX_NUMBER = 99_999
_SAMPLE = (
    ("Ada Example", "desk lamp", 4_990),
    ("Ben Sample", "rain jacket", 12_900),
    ("Cleo Placeholder", "coffee grinder", 7_450),
    ("Dan Fictional", "bicycle bell", 1_295),
    ("Eve Invented", "bookshelf", 18_900),
    ("Finn Madeup", "tea kettle", 3_999),
    ("Gil Nobody", "running shoes", 9_500),
    ("Hana Specimen", "garden chair", 6_250),
)


@dataclass(frozen=True, slots=True)
class Order:
    """One order."""

    number: str
    customer: str
    item: str
    total_cents: int


def find_order(number: str) -> Order | None:
    """The order with this number (leading zeros do not count), or None."""
    if not number.isascii() or not number.isdecimal() or not 1 <= int(number[:12]) <= _MAX_NUMBER or len(number) > 12:
        return None
    value = int(number)
    customer, item, total_cents = _SAMPLE[value % len(_SAMPLE)]
    return Order(str(value), customer, item, total_cents)
