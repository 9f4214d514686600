"""Handlers of pretraining: a record becomes one text a key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Pair
from mindspeed_llm.data.handlers.base import Handler, as_list, as_text
from mindspeed_llm.data.handlers.faults import Malformed
from mindspeed_llm.data.readers import BadRecords, Batch, Fields

TEXT = ("text",)
# The conversation form of Vicuna v1.1 (https://github.com/lm-sys/FastChat).
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. USER: {} ASSISTANT: {}"
)


class TextHandler(Handler):
    """Makes texts of records.

    Attributes:
        keys: the data sets made, ``{prefix}_{key}_document`` each.
    """

    kind = "pretrain"

    def __init__(
        self,
        map_keys: str | None = None,
        additional: Sequence[str] = (),
        keys: Sequence[str] = TEXT,
    ) -> None:
        super().__init__(map_keys, additional)
        if additional:
            raise UserError("--dataset-additional-keys goes with handlers of instructions.")
        self.keys = tuple(keys)

    def texts(self, batch: Batch, bad: BadRecords) -> Batch:
        """The texts of a batch, a column for each of ``keys``.

        Raises:
            UserError: a record that is not of the schema, unless such are skipped.
        """
        columns: dict[str, list[Any]] = {key: [] for key in self.keys}
        positions = []
        for index, position in enumerate(batch.positions):
            record = {name: column[index] for name, column in batch.columns.items()}
            try:
                texts = [self.text_of(record, key) for key in self.keys]
            except Malformed as error:
                bad.reject(batch.place(index), str(error))
                continue
            for column, text in zip(columns.values(), texts, strict=True):
                column.append(text)
            positions.append(position)
        return Batch(batch.path, columns, positions, batch.consumed)

    @abstractmethod
    def text_of(self, record: Mapping[str, Any], key: str) -> str | None:
        """One text; None or white space for none.

        Raises:
            Malformed: the record is not of the schema.
        """

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """No conversation is made of plain text."""
        raise NotImplementedError


class GeneralPretrainHandler(TextHandler):
    """``{"text": str, ...}``: each key of ``--json-keys`` is a text of its own, as it stands."""

    @property
    def fields(self) -> Fields:
        """The keys, which every record must have as texts (or null)."""
        return Fields(self.keys)

    def texts(self, batch: Batch, bad: BadRecords) -> Batch:
        """The batch as it is: its reader has looked at every value."""
        return batch

    def text_of(self, record: Mapping[str, Any], key: str) -> str | None:
        """The value of the key."""
        return record[key]


class AlpacaPretrainHandler(TextHandler):
    """``{"instruction": str, "input": str?, "output": str}`` as one text of a chat.

    The user's part is ``instruction``, and under a line ``###`` the ``input`` if it is not empty.
    """

    defaults: ClassVar[Mapping[str, str]] = {
        "prompt": "instruction",
        "query": "input",
        "response": "output",
    }
    required: ClassVar[Sequence[str]] = ("prompt", "response")

    def __init__(
        self,
        map_keys: str | None = None,
        additional: Sequence[str] = (),
        keys: Sequence[str] = TEXT,
    ) -> None:
        super().__init__(map_keys, additional, keys)
        if self.keys != TEXT:
            raise UserError("AlpacaPretrainHandler takes --map-keys, not --json-keys.")

    def text_of(self, record: Mapping[str, Any], key: str) -> str | None:
        """The text of the chat; none without a question or an answer."""
        question, query = self.text(record, "prompt"), self.text(record, "query")
        answer = self.text(record, "response")
        if not question.strip() or not answer.strip():
            return None
        return VICUNA.format(f"{question}\n###\n{query}" if query else question, answer)


class SharegptPretrainHandler(TextHandler):
    """``{"conversations": [{"value": str}, ...]}``: the texts of all turns, one a line.

    ``--json-keys`` names other columns of turns (a data set each); a turn's text stands under
    ``value`` or ``content``.
    """

    @property
    def fields(self) -> Fields:
        """The columns of turns."""
        names = tuple(self._column(key) for key in self.keys)
        return Fields(names, text=False, flag="--json-keys")

    def _column(self, key: str) -> str:
        return "conversations" if self.keys == TEXT else key

    def text_of(self, record: Mapping[str, Any], key: str) -> str | None:
        """The turns' texts, a line break between them."""
        column = self._column(key)
        texts = []
        for turn in as_list(record[column], column):
            value = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
            if value is None:
                raise Malformed(f'a turn of "{column}" has no text under "value" or "content"')
            texts.append(as_text(value, column))
        return "\n".join(text for text in texts if text)
