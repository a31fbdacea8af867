"""The form of an event as it is sent."""

import json

from perdure.api.streams import encode_frame
from perdure.core.events.stream import Frame


def test_an_event_can_be_read_by_every_idea_of_a_line_end() -> None:
    data = {"text": "one\u2028two\u0085three\u2029four\x0b\x1c\r\n\U0001f600"}
    sent = encode_frame(Frame("token", "1", "t", data)).decode()
    assert sent.splitlines() == sent.split("\n")[:-1]
    assert json.loads(next(line for line in sent.splitlines() if line.startswith("data:"))[5:]) == data
