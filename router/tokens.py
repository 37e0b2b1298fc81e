"""Tokens: a request's prompt as the token ids its engine will compute, from the model's own files.

Rendered with the model's chat template and tokenizer, as vLLM does it by default. What depends on
an engine's options or on other files (media, templates of a request's own, truncation, several
prompts) is not guessed at: `ids_of` answers None, and the caller makes do with characters.

Slow (milliseconds) and blocking: for a thread of the caller's. `transformers` is imported when a
tokenizer is opened, not before. It must not know hashes, replicas or sockets.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Protocol


class Kind(enum.Enum):
    """How a prompt came to be; parity with the engine is watched for each apart."""

    IDS = "token ids"
    COMPLETION = "completion"
    CHAT = "chat"
    TOOLS = "chat with tools"


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is needed."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...


class TokenizerError(Exception):
    """The tokenizer cannot be opened; the message says what to do."""


_UNFORESEEABLE = (
    "truncate_prompt_tokens",
    "prompt_embeds",
    "chat_template",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "echo",
)
"""Fields with which an engine's prompt is not only the model's files' business."""
_NOT_FOR_TEMPLATES = frozenset(
    (
        "chat_template", "tokenize", "tokenizer_kwargs", "padding", "truncation", "max_length",
        "return_tensors", "return_dict", "return_assistant_tokens_mask",
    )
)  # fmt: skip
"""What `chat_template_kwargs` must not reach: arguments of the renderer itself. A client's own
template would run here, for as long and in as much memory as it likes. vLLM refuses it."""
CHARACTERS_MAX = 8 << 20
"""Of a rendered chat; what a template makes of documents and arguments nobody has measured."""
_KEPT = ("name", "tool_call_id", "reasoning", "reasoning_content")
"""Beside role, content and tool calls, what templates may see of a message."""


def open_tokenizer(path: str) -> Tokenizer:
    """The tokenizer in a model's directory (or of a hub id in the local cache)."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise TokenizerError(f"exact mode needs `transformers` ({error}): install it") from error
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"{path}: no tokenizer can be read ({error}); give the model's directory"
        ) from error
    return tokenizer


def kind_of(path: bytes, fields: Mapping[str, Any]) -> Kind | None:
    """The kind of a request's prompt; None where its tokens cannot be foreseen."""
    if any(fields.get(name) for name in _UNFORESEEABLE):
        return None
    more = fields.get("chat_template_kwargs")
    if type(more) is dict and not _NOT_FOR_TEMPLATES.isdisjoint(more):
        return None
    path = path.partition(b"?")[0]
    if path == b"/v1/chat/completions":
        return Kind.TOOLS if fields.get("tools") else Kind.CHAT
    if path == b"/v1/completions":
        prompt = fields.get("prompt")
        if type(prompt) is str:
            return Kind.COMPLETION
        if type(prompt) is list and prompt and type(prompt[0]) is int:
            return Kind.IDS
    return None


def ids_of(tokenizer: Tokenizer, kind: Kind, fields: Mapping[str, Any]) -> list[int] | None:
    """The prompt's token ids, or None: not foreseeable, or the template refuses it."""
    if kind is Kind.IDS:
        ids: list[int] = fields["prompt"]
        return ids
    special = fields.get("add_special_tokens")
    if kind is Kind.COMPLETION:
        return tokenizer.encode(fields["prompt"], add_special_tokens=special is not False)
    messages = [_message(message) for message in fields.get("messages") or ()]
    if not messages or None in messages:
        return None
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **_options(fields))
    except Exception:  # a template may raise anything; the engine will say so to the client
        return None
    if type(text) is not str or len(text) > CHARACTERS_MAX:
        return None
    return tokenizer.encode(text, add_special_tokens=special is True)


def _options(fields: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "tools": [_tool(tool) for tool in fields.get("tools") or ()] or None,
        "documents": fields.get("documents"),
        "add_generation_prompt": fields.get("add_generation_prompt", True),
        "continue_final_message": fields.get("continue_final_message", False),
    }
    effort = fields.get("reasoning_effort")
    if effort is not None:
        options |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    more = fields.get("chat_template_kwargs")
    return options | more if type(more) is dict else options


def _tool(tool: Any) -> Any:
    """The tool as vLLM hands it to a template: fields it knows, in its order, nulls included."""
    function = tool.get("function") if type(tool) is dict else None
    if type(function) is not dict:
        return tool
    known = {name: function.get(name) for name in ("name", "description", "parameters")}
    later = tool.get("defer_loading")
    more = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading", later)}
    known |= {name: value for name, value in more.items() if value is not None}
    made = {"type": tool.get("type", "function"), "function": known}
    return made if later is None else {**made, "defer_loading": later}


def _message(message: Any) -> dict[str, Any] | None:
    """The message as vLLM hands it to a template; None where it holds anything but one text."""
    if type(message) is not dict:
        return None
    content = message.get("content")
    if type(content) is list:
        texts = [part.get("text") for part in content if type(part) is dict]
        if len(content) != 1 or len(texts) != 1:
            return None
        content = texts[0]
    elif content is None:
        content = ""
    if type(content) is not str:
        return None
    result = {"role": message.get("role"), "content": content}
    result |= {name: message[name] for name in _KEPT if message.get(name) is not None}
    calls = message.get("tool_calls")
    if calls:
        result["tool_calls"] = [_call(call) for call in calls]
    return result


def _call(call: Any) -> Any:
    """Arguments travel as JSON text and reach the template as an object."""
    function = call.get("function") if type(call) is dict else None
    if type(function) is not dict or type(function.get("arguments")) is not str:
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
