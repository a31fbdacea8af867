"""Two reads that return at once: the benchmark measures everything around a tool. The shop is fictional."""

from typing import Annotated

from pydantic import Field, JsonValue

from perdure import tool

Article = Annotated[str, Field(pattern=r"^\w{1,40}$", description="The article's name")]


@tool(effect="read")
async def price(article: Article) -> JsonValue:
    """The price of an article, from the price list."""
    cents = 1_000 + 100 * len(article)
    return {"status": "ok", "article": article, "cents": cents, "currency": "EUR", "valid_until": "2030-12-31"}


@tool(effect="read")
async def stock(article: Article) -> JsonValue:
    """Return how many pieces of an article are in stock, and their place."""
    return {"status": "ok", "article": article, "pieces": 3 + len(article), "place": "Springfield", "shelf": "C-14"}
