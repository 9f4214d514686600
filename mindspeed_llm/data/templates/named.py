"""A template that a table of texts defines: fast, and the same for every tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message
from mindspeed_llm.data.templates.definition import Definition
from mindspeed_llm.data.templates.template import Rendered, Template, TemplateError
from mindspeed_llm.data.templates.thinking import split_thinking, without_thinking
from mindspeed_llm.data.templates.tools import TOOL_FORMATS
from mindspeed_llm.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Around:
    """What stands before and behind the content of a turn."""

    before: str
    after: str

    @classmethod
    def of(cls, text: str) -> Around:
        before, after = text.split("{content}")
        return cls(before, after)


class NamedTemplate(Template):
    """Writes conversations by a :class:`Definition`.

    Args:
        definition: the texts.
        tokenizer: whose BOS and EOS are meant.
        enable_thinking: "true", "false" or "none"; what becomes of an answer without thinking is
            in docs/templates.md.
        train_turns, preserve_thinking: as the flags.

    Raises:
        UserError: a token of the template is none of the tokenizer's, or the template cannot think.
    """

    def __init__(
        self,
        definition: Definition,
        tokenizer: Tokenizer,
        enable_thinking: str = "none",
        train_turns: str = "all",
        preserve_thinking: bool = False,
    ) -> None:
        self.definition = definition
        self.name = definition.name
        self.train_turns = train_turns
        self._bos, self._eos = tokenizer.hf.bos_token, definition.eos or tokenizer.hf.eos_token
        self._thinking = definition.thinking
        if self._thinking is None and (enable_thinking == "true" or preserve_thinking):
            raise UserError(
                f"--prompt-type {self.name} writes no thinking: leave out --enable-thinking and "
                "--preserve-thinking."
            )
        self._enable = enable_thinking
        self._preserve = preserve_thinking or (self._thinking is not None and self._thinking.keep)
        off = self._thinking.switch_off if self._thinking is not None else ""
        self._switch_off = off if enable_thinking == "false" else ""
        self._texts(definition)
        self._check_tokens(tokenizer)

    def _texts(self, definition: Definition) -> None:
        fill = self._fill
        self._prefix = fill(definition.prefix)
        self._system = None if definition.system is None else Around.of(fill(definition.system))
        self._user = Around.of(fill(definition.user))
        self._numbered = "{round}" in definition.user
        self._opening = fill(definition.opening)
        self._assistant = Around.of(fill(definition.assistant))
        self._end, self._last_end = fill(definition.end), fill(definition.last_end)
        self._closing, self._between = fill(definition.closing), fill(definition.between)
        self._tools = TOOL_FORMATS[definition.tools] if definition.tools else None
        result = definition.tool_result
        self._result = None if result is None else Around.of(fill(result))
        ends = (self._end, self._last_end, *definition.next.values(), *map(fill, definition.stop))
        self.stop = tuple(dict.fromkeys(end for end in ends if end))
        self._empty = (
            f"{self._thinking.open}{self._thinking.close}" if self._thinking is not None else ""
        )

    def _fill(self, text: str) -> str:
        for name, token in (("bos", self._bos), ("eos", self._eos)):
            mark = f"{{{name}}}"
            if mark in text:
                if token is None and name == "eos":
                    raise UserError(
                        f"--prompt-type {self.name} ends a turn with the tokenizer's EOS token, "
                        'and this tokenizer names none. Set "eos_token" in its '
                        "tokenizer_config.json."
                    )
                # A tokenizer without a BOS token has none to write.
                text = text.replace(mark, token or "")
        return text

    def _check_tokens(self, tokenizer: Tokenizer) -> None:
        """Marks that are no tokens would be trained as letters, and a turn would never end."""
        missing = [
            token
            for token in (*self.definition.tokens, *self.stop)
            if len(tokenizer.encode(token, add_special_tokens=False)) != 1
        ]
        if missing:
            raise UserError(
                f"--prompt-type {self.name} writes {', '.join(dict.fromkeys(missing))}, which "
                f"{tokenizer.folder} has no token for. Use the template that belongs to the "
                "tokenizer (--prompt-type auto takes its own), or add the tokens to it."
            )

    def render(self, conversation: Conversation) -> Rendered:
        """The whole conversation; see :meth:`Template.render`."""
        text, spans, last = self._write(conversation)
        if last is not None:
            end = self._last_end or self.definition.next.get("tool" if last.tool_calls else "user")
            if end and not self._end:
                text += end
                if last.trained:
                    spans[-1] = (spans[-1][0], len(text))
        return Rendered(text, tuple(span for span in spans if span[0] < span[1]))

    def prompt(self, conversation: Conversation) -> str:
        """The text to generate from; see :meth:`Template.prompt`."""
        text = self._write(conversation)[0] + self._opening
        return text + self._empty if self._enable == "false" else text

    def _write(
        self, conversation: Conversation
    ) -> tuple[str, list[tuple[int, int]], Message | None]:
        """The text, the trained spans, and the last turn if it is an assistant's."""
        if self._enable == "false":
            conversation = without_thinking(conversation)
        text, turns, first_user = self._head(conversation)
        parts, size = [text], len(text)
        spans: list[tuple[int, int]] = []
        live = self._live(turns)
        rounds, index = 0, 0
        self._check_order(turns)
        while index < len(turns):
            message = turns[index]
            if message.role == "assistant":
                last = index + 1 == len(turns)
                body, skipped = self._answer(message, index > live, last)
                start = size + len(self._opening) + skipped
                parts.append(f"{self._opening}{body}{self._end}{self._closing}")
                end = size + len(self._opening) + len(body) + len(self._end)
                size += len(parts[-1])
                if not last and self.definition.next:
                    end += len(self._mark(turns[index + 1]))
                if message.trained:
                    spans.append((start, end))
            else:
                if index and turns[index - 1].role == "assistant" and self._between:
                    parts.append(self._between)
                    size += len(self._between)
                if message.role == "tool":
                    group = [message]
                    while index + 1 < len(turns) and turns[index + 1].role == "tool":
                        index += 1
                        group.append(turns[index])
                    parts.append(self._results(group))
                elif message.role == "user":
                    rounds += 1
                    content = first_user if not index else ""
                    content = content or self._trimmed(message.content)
                    parts.append(self._user_text(content, rounds))
                else:
                    parts.append(self._later_system(message))
                size += len(parts[-1])
            index += 1
        last_turn = turns[-1] if turns and turns[-1].role == "assistant" else None
        return "".join(parts), spans, last_turn

    def _head(self, conversation: Conversation) -> tuple[str, Sequence[Message], str]:
        """What stands before the first turn, the turns, and the first one's text if it changes."""
        turns: Sequence[Message] = conversation.messages
        system = self.definition.default_system
        if turns and turns[0].role == "system":
            system, turns = turns[0].content, turns[1:]
            if not self.definition.system_in_user:
                system = self._trimmed(system)
        if conversation.tools:
            if self._tools is None:
                raise TemplateError(f"template {self.name} has no form for tools")
            system = self._tools.system(system, conversation.tools)
        if system is None:
            return self._prefix, turns, ""
        if self._system is None:
            raise TemplateError(f"template {self.name} has no form for a system text")
        written = f"{self._system.before}{system}{self._system.after}"
        if not self.definition.system_in_user:
            return self._prefix + written, turns, ""
        if not turns or turns[0].role != "user":
            raise TemplateError(f"template {self.name} writes the system text into a user's turn")
        content = turns[0].content
        if self.definition.system_in_user == "joined":
            return self._prefix, turns, self._trimmed(written + content)
        return self._prefix, turns, written + self._trimmed(content)

    def _user_text(self, content: str, rounds: int) -> str:
        before = self._user.before
        if self._numbered:
            before = before.replace("{round}", str(rounds))
        if self._switch_off and not content.endswith(self._switch_off):
            content += self._switch_off
        return f"{before}{content}{self._user.after}"

    def _answer(self, message: Message, live: bool, last: bool) -> tuple[str, int]:
        """The text of an assistant's turn, and how many characters of it belong to the prompt."""
        if self._thinking is None:
            if message.reasoning:
                raise TemplateError(
                    f"template {self.name} has no form for thinking (--enable-thinking false "
                    "leaves it out)"
                )
            marked, answer, skipped = "", self._trimmed(message.content), 0
        else:
            marked, answer, skipped = self._thought(message, live or self._preserve, last)
        if message.tool_calls:
            if self._tools is None:
                raise TemplateError(f"template {self.name} has no form for calls of tools")
            answer = self._tools.calls(answer, message.tool_calls)
            if self._tools.bare_calls:
                return answer, 0
        before = self._assistant.before
        skipped += len(before) if skipped else 0
        return f"{before}{marked}{answer}{self._assistant.after}", skipped

    def _thought(self, message: Message, live: bool, last: bool) -> tuple[str, str, int]:
        """The thinking in its marks, the answer, and how many characters belong to the prompt."""
        thinking = self._thinking
        assert thinking is not None
        reasoning, content = split_thinking(message, thinking.open.strip(), thinking.close.strip())
        # Thinking of white space alone counts as thinking, and is empty.
        empty = thinking.empty == "all" or self._preserve or (live and (last or bool(reasoning)))
        reasoning = reasoning.strip(thinking.strip) if live else ""
        if thinking.strip is None:
            content = content.strip()
        elif reasoning or empty:
            content = content.lstrip(thinking.strip)
        answer = thinking.answer.replace("{content}", content) if content else ""
        if reasoning:
            return f"{thinking.open}{reasoning}{thinking.close}", answer, 0
        if empty:
            # The model is to write the empty marks itself only if it is trained to.
            return self._empty, answer, 0 if self._enable == "true" else len(self._empty)
        return "", answer, 0

    def _results(self, group: Sequence[Message]) -> str:
        contents = [self._trimmed(message.content) for message in group]
        if self._tools is not None:
            return self._tools.results(contents)
        if self._result is None:
            raise TemplateError(f"template {self.name} has no form for results of tools")
        return "".join(f"{self._result.before}{one}{self._result.after}" for one in contents)

    def _later_system(self, message: Message) -> str:
        if not self.definition.system_anywhere or self._system is None:
            raise TemplateError(f"template {self.name} has no form for a later system text")
        content = self._trimmed(message.content)
        return f"{self._system.before}{content}{self._system.after}"

    def _mark(self, following: Message) -> str:
        """The token that opens the next turn, and so ends the assistant's one."""
        return self.definition.next.get(following.role, "")

    def _trimmed(self, text: str) -> str:
        return text.strip() if self.definition.trim else text

    def _live(self, turns: Sequence[Message]) -> int:
        """The place of the last question: answers behind it keep their thinking."""
        if self._thinking is None:
            return -1
        for index in range(len(turns) - 1, -1, -1):
            message = turns[index]
            if message.role == "user" and not (
                self._tools is not None and self._tools.is_result(message.content)
            ):
                return index
        return -1

    def _check_order(self, turns: Sequence[Message]) -> None:
        if not self.definition.alternate:
            return
        for index, message in enumerate(turns):
            if message.role != ("assistant" if index % 2 else "user"):
                raise TemplateError(
                    f"template {self.name} demands user and assistant in turn, but turn "
                    f"{index + 1} is {message.role}"
                )
