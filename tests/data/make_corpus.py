"""Writes ``corpus.jsonl``: small texts of our own in English, Chinese and code, with odd Unicode.

python tests/data/make_corpus.py
"""

from __future__ import annotations

import json
from pathlib import Path

ENGLISH = (
    "A river does not hurry, yet it reaches the sea before those who wait for it on the shore.",
    "The baker opens at six. By seven the first loaves are gone, and by eight the street knows it.",
    "Measure twice, cut once; then measure again, because the wood has moved in the meantime.",
    "In winter the harbour lights are lit at four o'clock, and the gulls sleep on the warm roofs.",
    "She wrote the number down: 3.14159, then 2.71828, then a shopping list with 12 eggs.",
    "Nobody remembered who had planted the pear tree, but everybody remembered who had pruned it.",
)
CHINESE = (
    "河水从不着急，却总能在岸上等待的人之前到达大海。",
    "面包店六点开门。七点时第一批面包已经卖完，八点时整条街都知道了。",
    "量两次，切一次；然后再量一次，因为木头在这段时间里又动了。",
    "冬天的港口四点就亮灯，海鸥睡在温暖的屋顶上。今天气温是零下3.5度。",
)
CODE = (
    "def area(width: float, height: float) -> float:\n    return width * height\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += values[i] * weights[i];\n}\n",
    "SELECT name, count(*)\n  FROM visits\n GROUP BY name\nHAVING count(*) > 10;\n",
)
ODD = (
    "A family: \U0001f468\u200d\U0001f469\u200d\U0001f467, a flag \U0001f1e8\U0001f1f3, e\u0301.",
    "Tabs\there,  two spaces,\u00a0a fixed one,\r\nand a Windows line end.",
    'Quotes "so", backslashes \\n, and <|endoftext|> written out in the text.',
)


def documents() -> list[str]:
    """Each text alone, then neighbours joined to longer ones."""
    texts = [*ENGLISH, *CHINESE, *CODE, *ODD]
    joined = ["\n\n".join(texts[i : i + 3]) for i in range(len(texts))]
    return texts + joined


def main() -> None:
    """Write the file beside this one."""
    with open(Path(__file__).with_name("corpus.jsonl"), "w", encoding="utf-8") as file:
        for number, text in enumerate(documents()):
            record = {"id": number, "text": text, "meta": {"title": f"Text {number}"}}
            file.write(json.dumps(record, ensure_ascii=number % 2 == 0) + "\n")


if __name__ == "__main__":
    main()
