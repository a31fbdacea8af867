"""A model worker in a process of its own, to be killed. Its model says what the user's message tells it to."""

from perdure.contracts.turns import Kind
from tests.doubles.killed_worker import serve
from tests.doubles.message_script import MessageScriptModel, MessageScriptModels

if __name__ == "__main__":
    serve(Kind.LLM, models=MessageScriptModels(MessageScriptModel()))
