"""Text from outside, made inert and honest: what stands on the page is what stands in the text."""

from markupsafe import Markup, escape

from policy.printable import flat, one_line, pieces

_UNSEEN = Markup('<span class="unseen" title="a character that cannot be seen, written out">{}</span>')
_ISOLATED = Markup("<bdi>{}</bdi>")


def seen(value: object) -> Markup:
    """Text from outside as a person may read it: no markup of its own, no hidden character, no turned direction.

    Text that runs from right to left stays among itself, and turns nothing beside it.
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return escape(text)
    drawn = Markup("").join(_UNSEEN.format(piece) if hidden else piece for piece, hidden in pieces(text))
    return _ISOLATED.format(drawn)


def brief(value: object, most: int = 120) -> Markup:
    """The same on one line, cut."""
    return seen(flat(str(value), most))


def plain(value: object, most: int = 120) -> str:
    """The same without marks, for a place that holds no markup: an attribute, an option."""
    return one_line(str(value), most)
