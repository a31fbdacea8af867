"""Files that a person puts into a conversation."""

from fastapi import APIRouter
from fastapi.responses import Response

from perdure.client import ApiError
from policy.uploads import BY_ENDING
from reviewer.forms import most_upload_bytes
from reviewer.routes.conversation import agent_of, back, show
from reviewer.view import page
from reviewer.visit import Post, Uploaded

router = APIRouter()
_BY_ENDING = {**BY_ENDING, ".md": "text/plain"}
"""What a file is by its name: browsers say so by what is installed on the machine."""


@router.post("/chat/{conversation_id}/files")
async def upload(post: Uploaded, conversation_id: str) -> Response:
    """Put a file into the conversation, for the agent's tools."""
    visit, why = post.visit, await _kept(post, conversation_id)
    if not visit.is_live:
        return await show(visit, conversation_id, file_why=why, status=422) if why else back(conversation_id)
    files = (await visit.api.files.list(conversation_id)).items
    agent = await agent_of(visit, (await visit.api.conversations.get(conversation_id)).agent)
    most = most_upload_bytes(visit.request)
    return page(visit, "chat_files.html", id=conversation_id, agent=agent, uploads=files, file_why=why, most_bytes=most)


async def _kept(post: Post, conversation_id: str) -> str:
    """Keep the file; why it was not, empty where it was."""
    if post.upload is None:
        return "Choose a file first."
    kind = _BY_ENDING.get("." + post.upload.name.rpartition(".")[2].lower(), post.upload.media_type)
    try:
        await post.visit.api.files.upload(
            conversation_id,
            post.upload.name,
            post.upload.chunks(),
            kind or "application/octet-stream",
            idempotency_key=post.form.get("key"),
            length=post.upload.size_bytes,
        )
    except ApiError as error:
        if error.status in (401, 404):
            raise
        return f"Not uploaded: {error.message}"
    return ""
