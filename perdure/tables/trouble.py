"""What is wrong with a table or a plan, in a sentence for whoever wrote it."""


class TableTrouble(Exception):
    """A plan cannot be carried out, or a table cannot be read; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
