"""A corpus that every machine with Python has: the language reference, as ``help()`` prints it."""

from __future__ import annotations

import json
from pathlib import Path

from mindspeed_llm.files import atomic_path


def write_corpus(target: Path) -> int:
    """Write the reference's topics as jsonl with a ``text`` key.

    Returns:
        The number of documents.
    """
    from pydoc_data.topics import topics

    with atomic_path(target) as temporary, temporary.open("w", encoding="utf-8") as file:
        for _, text in sorted(topics.items()):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return len(topics)
