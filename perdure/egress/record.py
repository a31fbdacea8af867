"""The record of the last request of one call, for the sentence about its failure."""

from dataclasses import dataclass

HEAD_BYTES = 2048
"""Number of bytes of a body that are kept."""


@dataclass(slots=True)
class Exchange:
    """One request and its response. A redirect or a second request begins it again."""

    host: str = ""
    """Host and port. Empty if nothing was to be sent."""
    path: str = ""
    """The path without the query, which may have a key."""
    status: int | None = None
    media: str = ""
    """The media type in the response's header, without parameters."""
    head: bytes = b""
    """The beginning of the body, decompressed."""

    def begin(self, host: str, path: str) -> None:
        """Records a request that is about to be sent."""
        self.host, self.path, self.status, self.media, self.head = host, path[:200], None, "", b""

    def respond(self, status: int, content_type: str) -> None:
        """Records the head of the response."""
        self.status, self.media = status, content_type.partition(";")[0].strip().lower()[:100]

    def read(self, piece: bytes) -> None:
        """Records a piece of the body."""
        if len(self.head) < HEAD_BYTES:
            self.head += piece[: HEAD_BYTES - len(self.head)]
