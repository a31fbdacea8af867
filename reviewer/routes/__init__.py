"""One module a page, or a family of them."""
