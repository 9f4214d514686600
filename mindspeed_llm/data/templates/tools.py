"""How functions, calls of them and their results are written, by model family."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mindspeed_llm.data.conversation import ToolCall
from mindspeed_llm.data.templates.template import TemplateError


class ToolFormat(ABC):
    """One way to write them. The texts are those of the family's official template.

    Attributes:
        bare_calls: a turn that calls is not written in the form of an answer.
    """

    bare_calls = False

    @abstractmethod
    def system(self, system: str | None, tools: Sequence[dict[str, Any]]) -> str:
        """The content of the system turn (None: there is no system text) that lists ``tools``."""

    @abstractmethod
    def calls(self, content: str, calls: Sequence[ToolCall]) -> str:
        """The text of an assistant's turn: ``content`` and the calls behind it."""

    @abstractmethod
    def results(self, contents: Sequence[str]) -> str:
        """The whole turn of consecutive results."""

    def is_result(self, content: str) -> bool:
        """Whether a user's text is a result in disguise, so that thinking before it stays."""
        return False


QWEN_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
    "{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


class QwenTools(ToolFormat):
    """Qwen2.5 and Qwen3.

    Args:
        quote: write arguments that are text as a JSON string (Qwen2.5), not as they are (Qwen3).
        result_in_user: a user's text in the marks of a result counts as one (Qwen3).
    """

    def __init__(self, quote: bool, result_in_user: bool) -> None:
        self._quote = quote
        self._result_in_user = result_in_user

    def system(self, system: str | None, tools: Sequence[dict[str, Any]]) -> str:
        listed = QWEN_TOOLS.format(tools="".join("\n" + dumps(tool) for tool in tools))
        return listed if system is None else f"{system}\n\n{listed}"

    def calls(self, content: str, calls: Sequence[ToolCall]) -> str:
        written = [
            f'<tool_call>\n{{"name": "{call.name}", "arguments": {self._arguments(call)}}}\n'
            "</tool_call>"
            for call in calls
        ]
        return "\n".join([content, *written] if content else written)

    def _arguments(self, call: ToolCall) -> str:
        if isinstance(call.arguments, str) and not self._quote:
            return call.arguments
        return dumps(call.arguments)

    def results(self, contents: Sequence[str]) -> str:
        written = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in contents)
        return f"<|im_start|>user{written}<|im_end|>\n"

    def is_result(self, content: str) -> bool:
        if not self._result_in_user:
            return False
        return content.startswith("<tool_response>") and content.endswith("</tool_response>")


class Glm4Tools(ToolFormat):
    """GLM-4-0414."""

    bare_calls = True

    def system(self, system: str | None, tools: Sequence[dict[str, Any]]) -> str:
        if system is not None:
            raise TemplateError("glm4 lists tools in a system turn of their own; take out either")
        functions = [tool.get("function") or tool for tool in tools]
        return "# 可用工具" + "".join(
            f"\n\n## {function['name']}\n\n{dumps(function, indent=4)}\n"
            "在调用上述函数时，请使用 Json 格式表示调用的参数。"
            for function in functions
        )

    def calls(self, content: str, calls: Sequence[ToolCall]) -> str:
        if content or len(calls) > 1:
            raise TemplateError("glm4 writes one call a turn, and no text beside it")
        arguments = calls[0].arguments
        text = arguments if isinstance(arguments, str) else dumps(arguments)
        return f"{calls[0].name}\n{text}"

    def results(self, contents: Sequence[str]) -> str:
        return "".join(f"<|observation|>\n{text}" for text in contents)


GLM4_MOE_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    "{tools}</tools>\n\n"
    "For each function call, output the function name and arguments within the following XML "
    "format:\n<tool_call>{{function-name}}\n<arg_key>{{arg-key-1}}</arg_key>\n"
    "<arg_value>{{arg-value-1}}</arg_value>\n<arg_key>{{arg-key-2}}</arg_key>\n"
    "<arg_value>{{arg-value-2}}</arg_value>\n...\n</tool_call>"
)


class Glm4MoeTools(ToolFormat):
    """GLM-4.5."""

    def system(self, system: str | None, tools: Sequence[dict[str, Any]]) -> str:
        listed = GLM4_MOE_TOOLS.format(tools="".join(dumps(tool) + "\n" for tool in tools))
        return listed if system is None else f"{listed}<|system|>\n{system}"

    def calls(self, content: str, calls: Sequence[ToolCall]) -> str:
        return content + "".join(f"\n{self._call(call)}" for call in calls)

    def _call(self, call: ToolCall) -> str:
        if isinstance(call.arguments, str):
            raise TemplateError(f"arguments of {call.name} are no JSON object")
        arguments = "".join(
            f"<arg_key>{key}</arg_key>\n"
            f"<arg_value>{value if isinstance(value, str) else dumps(value)}</arg_value>\n"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>{call.name}\n{arguments}</tool_call>"

    def results(self, contents: Sequence[str]) -> str:
        written = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in contents)
        return f"<|observation|>{written}"


def dumps(value: Any, indent: int | None = None) -> str:
    """JSON as the ``tojson`` of chat templates writes it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


TOOL_FORMATS: dict[str, ToolFormat] = {
    "qwen2.5": QwenTools(quote=True, result_in_user=False),
    "qwen3": QwenTools(quote=False, result_in_user=True),
    "glm4": Glm4Tools(),
    "glm4_moe": Glm4MoeTools(),
}
