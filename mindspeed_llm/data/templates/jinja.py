"""The tokenizer's own chat template: its text, and how it treats what a conversation can hold.

The text is what ``apply_chat_template`` gives. What is trained of it is found by
:mod:`mindspeed_llm.data.templates.locate`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message, ToolCall
from mindspeed_llm.data.templates.template import TemplateError
from mindspeed_llm.data.templates.tools import dumps
from mindspeed_llm.data.tokenizer import Tokenizer

if TYPE_CHECKING:
    import jinja2.nodes

# Stands for a text while a template is probed: private code points, which no template trims,
# splits at or writes itself.
PROBE = "\ue0f0\ue0f1"
CALL = ToolCall("probe", {"probe": PROBE}, id="probe1234")


def own_template(tokenizer: Tokenizer) -> str:
    """The chat template in the tokenizer's folder.

    Raises:
        UserError: it has none.
    """
    template: str | dict[str, str] | None = tokenizer.hf.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        raise UserError(
            f"{tokenizer.folder}: this tokenizer has no chat template of its own, which "
            "--prompt-type auto takes (a base model's often has none). Name one with "
            "--prompt-type; docs/templates.md lists them."
        )
    return template


class JinjaText:
    """Conversations as the text of a chat template, in transformers' own sandbox.

    Args:
        tokenizer: whose special tokens are used.
        source: the template.
        variables: further variables for it.
        asked: variables for conversations, but not for probes (``enable_thinking``).

    Attributes:
        names: the variables that the template asks for.
        tested: strings that the template looks for in texts.
        marked: whether it has ``{% generation %}`` marks.
        thinks: whether it writes the thinking of the last answer.

    Raises:
        UserError: the template does not compile.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str,
        variables: dict[str, Any],
        asked: dict[str, Any],
    ) -> None:
        import jinja2
        import jinja2.meta
        from transformers.utils import chat_template_utils

        self._asked = asked
        self._variables = {**tokenizer.hf.special_tokens_map, **variables}
        # What a template does wrong with odd data surfaces as any of these.
        self._errors = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError)
        self._render_marked = chat_template_utils._render_with_assistant_indices
        try:
            self._template = chat_template_utils._compile_jinja_template(source)
        except (jinja2.TemplateError, ImportError) as error:
            words = f"{tokenizer.folder}: its chat template does not compile: {error}"
            raise UserError(words) from error
        tree = self._template.environment.parse(source)
        self.names = frozenset(jinja2.meta.find_undeclared_variables(tree))
        self.tested = tested_strings(tree)
        self.marked = re.search(r"\{%[-+]?\s*generation\b", source) is not None
        self._tool_role: str = "tool"
        self._no_content: str | None = ""
        self._arguments_as_text = False
        self._probe_tools()
        thinking = (Message("user", "x"), Message("assistant", "y", reasoning=PROBE))
        self.thinks = PROBE in (self.probe(thinking) or "")

    def __call__(self, conversation: Conversation, prompt: bool = False) -> str:
        """The text; with ``prompt`` up to where the assistant goes on.

        Raises:
            TemplateError: the template refuses the conversation.
        """
        return self._render(conversation, prompt, self._asked)

    def _render(self, conversation: Conversation, prompt: bool, variables: dict[str, Any]) -> str:
        try:
            return str(self._template.render(**self._arguments(conversation, prompt, variables)))
        except self._errors as error:
            raise refusal(error) from error

    def with_marks(self, conversation: Conversation) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the ``[start, end)`` of what stands in ``{% generation %}`` marks.

        Raises:
            TemplateError: the template refuses the conversation.
        """
        try:
            return self._render_marked(
                self._template, **self._arguments(conversation, False, self._asked)
            )
        except self._errors as error:
            raise refusal(error) from error

    def probe(
        self, messages: Sequence[Message], prompt: bool = False, **variables: Any
    ) -> str | None:
        """The text of a made-up conversation; None where the template refuses it."""
        try:
            return self._render(Conversation(tuple(messages)), prompt, variables)
        except TemplateError:
            return None

    def _arguments(
        self, conversation: Conversation, prompt: bool, variables: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            **self._variables,
            **variables,
            "messages": [self._message(message) for message in conversation.messages],
            "tools": list(conversation.tools) or None,
            "documents": None,
            "add_generation_prompt": prompt,
        }

    def _message(self, message: Message) -> dict[str, Any]:
        role = self._tool_role if message.role == "tool" else message.role
        written: dict[str, Any] = {"role": role, "content": message.content}
        if message.reasoning is not None:
            written.update(reasoning_content=message.reasoning, thinking=message.reasoning)
        if message.tool_calls:
            if not message.content:
                written["content"] = self._no_content
            written["tool_calls"] = [self._call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            written["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            written["name"] = message.name
        return written

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = call.arguments
        if self._arguments_as_text and not isinstance(arguments, str):
            arguments = dumps(arguments)
        function = {"name": call.name, "arguments": arguments}
        written: dict[str, Any] = {"type": "function", "function": function}
        if call.id is not None:
            written["id"] = call.id
        return written

    def _probe_tools(self) -> None:
        """Find the form of calls and results that this template writes out.

        Templates differ in what they take: arguments as an object or as text, a turn that only
        calls with content "" or none, and the name of a result's role.
        """
        asked = Message("user", "x")
        for self._tool_role in ("tool", "observation"):
            result = Message("tool", PROBE, tool_call_id="probe1234")
            if PROBE in (self.probe((asked, Message("assistant", "y"), result)) or ""):
                break
        else:
            self._tool_role = "tool"
        call = (asked, Message("assistant", "", tool_calls=(CALL,)))
        for self._arguments_as_text in (False, True):
            for self._no_content in ("", None):
                text = self.probe(call) or ""
                if PROBE in text and "None" not in text:
                    return
        self._arguments_as_text, self._no_content = False, ""


def refusal(error: Exception) -> TemplateError:
    """What the template said, as an error of the conversation."""
    words = " ".join(str(error).split())[:200]
    return TemplateError(f"the chat template refuses it: {words}")


def tested_strings(tree: jinja2.nodes.Template) -> set[str]:
    """What a template looks for in texts: ``'x' in content``, ``content.split('x')`` ...

    Words that ``in`` looks for (``'tool_calls' in message``) are names of fields.
    """
    from jinja2 import nodes

    found: set[str] = set()
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops):
            found |= {one for one in _strings(compare.expr) if not one.isidentifier()}
    for kind in (nodes.Call, nodes.Filter, nodes.Test):
        for call in tree.find_all(kind):
            if isinstance(call, nodes.Call) and isinstance(call.node, nodes.Name):
                continue  # namespace(...), raise_exception(...)
            for argument in getattr(call, "args", None) or ():
                found |= {one for one in _strings(argument) if not one.isidentifier()}
    return {one for one in found if one.strip()}


def _strings(node: jinja2.nodes.Node) -> list[str]:
    from jinja2 import nodes

    if isinstance(node, nodes.Const):
        return [node.value] if isinstance(node.value, str) else []
    return [one.value for one in node.find_all(nodes.Const) if isinstance(one.value, str)]
