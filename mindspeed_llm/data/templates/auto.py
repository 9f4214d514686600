"""The tokenizer's own chat template as a :class:`Template` (``--prompt-type auto``)."""

from __future__ import annotations

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message
from mindspeed_llm.data.templates.jinja import PROBE, JinjaText, own_template
from mindspeed_llm.data.templates.locate import Locator
from mindspeed_llm.data.templates.recognise import recognise
from mindspeed_llm.data.templates.template import Rendered, Template, TemplateError
from mindspeed_llm.data.templates.thinking import without_thinking
from mindspeed_llm.data.tokenizer import Tokenizer


class AutoTemplate(Template):
    """Writes conversations by a chat template in jinja.

    Args:
        tokenizer: whose template and special tokens are used.
        enable_thinking: "true", "false" or "none"; the first two are given to the template.
        train_turns, preserve_thinking: as the flags.
        source: a template in place of the tokenizer's own.
        fast: let a named template that gives the same stand in for it.

    Attributes:
        fast_form: the name of the named template that stands in for it; None for none.

    Raises:
        UserError: there is no template, it is no valid one, or it cannot think as asked.
    """

    name = "auto"

    def __init__(
        self,
        tokenizer: Tokenizer,
        enable_thinking: str = "none",
        train_turns: str = "all",
        preserve_thinking: bool = False,
        source: str | None = None,
        fast: bool = True,
    ) -> None:
        self.train_turns = train_turns
        self.source = source or own_template(tokenizer)
        self._enable = enable_thinking
        # Templates let the caller keep thinking under either of two names.
        keep = {"preserve_thinking": True, "clear_thinking": False} if preserve_thinking else {}
        asked = {} if enable_thinking == "none" else {"enable_thinking": enable_thinking == "true"}
        self._text = JinjaText(tokenizer, self.source, keep, asked)
        self._locator = Locator(self._text, tokenizer)
        self.stop = self._locator.ends
        if enable_thinking == "true" and not self._text.thinks:
            raise UserError(
                f"--enable-thinking true: the chat template of {tokenizer.folder} writes no "
                "thinking."
            )
        if preserve_thinking and not self._keeps():
            raise UserError(
                f"--preserve-thinking: the chat template of {tokenizer.folder} removes the "
                "thinking of earlier answers and has no variable for keeping it. Use a named "
                "template, or --train-turns each."
            )

        self._fast = (
            recognise(
                tokenizer, self._text.tested, self._by_template, enable_thinking, preserve_thinking
            )
            if fast
            else None
        )
        self.fast_form = self._fast.name if self._fast else None

    def _keeps(self) -> bool:
        asked, thought = Message("user", "x"), Message("assistant", "y", reasoning=PROBE)
        return PROBE in (self._text.probe((asked, thought, asked, Message("assistant", "y"))) or "")

    def render(self, conversation: Conversation) -> Rendered:
        """The whole conversation; see :meth:`Template.render`."""
        if self._fast is not None:
            rendered = self._fast.render(conversation, self._by_template)
            if rendered is not None:
                return rendered
        return self._by_template(conversation)

    def _by_template(self, conversation: Conversation) -> Rendered:
        conversation = self._prepared(conversation)
        if self._text.marked:
            return self._by_marks(conversation)
        text = self._text(conversation)
        spans = self._locator.spans(conversation, text, train_empty=self._enable == "true")
        last = conversation.messages[-1] if conversation.messages else None
        if last is not None and last.role == "assistant":
            end = self._locator.final[bool(last.tool_calls)]
            start, stop = spans[-1] or (0, 0)
            text, spans[-1] = text + end, (start, stop + len(end))
        trained = zip(conversation.messages, spans, strict=True)
        return Rendered(text, tuple(span for message, span in trained if span and message.trained))

    def prompt(self, conversation: Conversation) -> str:
        """The text to generate from; see :meth:`Template.prompt`."""
        return self._text(self._prepared(conversation), prompt=True)

    def _prepared(self, conversation: Conversation) -> Conversation:
        """The conversation without thinking if so asked; refuses what would be dropped."""
        if conversation.tools and "tools" not in self._text.names:
            raise TemplateError("the chat template has no form for tools")
        if self._enable == "false":
            return without_thinking(conversation)
        if not self._text.thinks and any(message.reasoning for message in conversation.messages):
            raise TemplateError(
                "the chat template has no form for thinking (--enable-thinking false leaves it out)"
            )
        return conversation

    def _by_marks(self, conversation: Conversation) -> Rendered:
        """What the template itself marks; a mark belongs to the turn whose text it holds."""
        text, marks = self._text.with_marks(conversation)
        messages = conversation.messages
        if all(message.trained for message in messages if message.role == "assistant"):
            return Rendered(text, tuple(marks))
        turns = self._locator.turns(conversation, text)
        kept, trained = [], False
        for first, last in marks:
            for message, turn in zip(messages, turns, strict=True):
                if message.role == "assistant" and first <= turn.first <= last:
                    trained = message.trained
            if trained:
                kept.append((first, last))
        return Rendered(text, tuple(kept))
