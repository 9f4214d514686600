"""Parts of an input: every record once, in order; joined parts equal a run without parts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.preprocess import subs
from mindspeed_llm.data.preprocess.command import PreprocessOptions, Summary, preprocess
from mindspeed_llm.data.preprocess.options import shard_of
from mindspeed_llm.data.readers import BadRecords, Part, find_inputs, read_batches, share_out
from mindspeed_llm.data.storage.merging import merge_groups
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import chats


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(chats.folder())


def texts_of(parts: list[Part], size: int = 64) -> list[tuple[str, int, str]]:
    found = []
    for batch in read_batches(parts, ("text",), BadRecords(), size):
        for position, text in zip(batch.positions, batch.columns["text"], strict=True):
            found.append((batch.path.name, position, text))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_shares_hold_every_record_once_in_order_with_its_line(tmp_path: Path, count: int) -> None:
    draw = random.Random(count)
    for name in ("a.jsonl", "b.parquet", "c.json", "d.jsonl.gz", "e.csv"):
        rows = [
            {"text": f"{name}-{i}-" + "x" * draw.randrange(30)}
            for i in range(draw.randrange(1, 30))
        ]
        chats.write(tmp_path / name, rows)
    (tmp_path / "f.txt").write_text("first\nsecond\n\nfourth, which has no end")
    files, _ = find_inputs(str(tmp_path))
    whole = texts_of([Part(path) for path in files])
    shares = share_out(files, count)
    assert len(shares) == count
    assert [one for share in shares for one in texts_of(share)] == whole


def chat_rows(folder: Path) -> Path:
    draw = random.Random(0)
    rows = [
        chats.openai([("user", f"{i} " * draw.randrange(1, 20)), ("assistant", "a " * (i % 7))])
        for i in range(200)
    ]
    for number, kind in enumerate(("jsonl", "parquet", "jsonl.gz")):
        chats.write(folder / "in" / f"{number}.{kind}", rows)
    return folder / "in"


def run(source: Path, name: str, tokenizer: Tokenizer, **options: Any) -> Summary:
    return preprocess(
        PreprocessOptions(
            str(source),
            str(source.parent / name),
            handler_name="OpenAIInstructionHandler",
            template={"prompt_type": "chatml"},
            **options,
        ),
        tokenizer,
    )


def content(folder: Path, name: str) -> dict[str, bytes]:
    """The files of a data set, notes aside."""
    return {
        path.name.removeprefix(name): path.read_bytes()
        for path in sorted(folder.glob(f"{name}_*"))
        if path.suffix in (".bin", ".idx")
    }


def test_shards_of_several_machines_merge_to_the_whole(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats.keep_one_engine(monkeypatch)
    source = chat_rows(tmp_path)
    run(source, "whole", tokenizer)
    for index in range(1, 4):
        run(source, f"shards/s{index}", tokenizer, shard=(index, 3))
    keys = [f"packed_{key}_document" for key in ("input_ids", "labels", "attention_mask")]
    merged = merge_groups(tmp_path / "shards", str(tmp_path / "merged"), keys)
    assert set(merged) == set(keys)
    assert content(tmp_path, "merged") == content(tmp_path, "whole")


def test_groups_that_do_not_belong_together_are_not_merged(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats.keep_one_engine(monkeypatch)
    source = chat_rows(tmp_path)
    for index in (1, 2):
        run(source, f"shards/s{index}", tokenizer, shard=(index, 2))
    with pytest.raises(UserError, match="cannot be merged: key is"):
        merge_groups(tmp_path / "shards", str(tmp_path / "merged"), ["packed"])
    (tmp_path / "shards" / "s1_packed_labels_document.idx").unlink()
    with pytest.raises(UserError, match="they are not parts of the same runs, or one is missing"):
        merge_groups(tmp_path / "shards", str(tmp_path / "merged"), ["input_ids", "labels"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"pack": True, "neat_pack": True, "seq_length": 128, "append_eod": True}],
    ids=["plain", "packed"],
)
def test_parts_in_processes_join_to_the_same_result(
    tmp_path: Path, tokenizer: Tokenizer, options: dict[str, Any]
) -> None:
    source = chat_rows(tmp_path)
    one = run(source, "one", tokenizer, **options)
    many = run(source, "many", tokenizer, n_subs=5, workers=2, **options)
    assert content(tmp_path, "one") == content(tmp_path, "many")
    assert many.tally == one.tally and many.packed == one.packed
    for key, note in one.manifests.items():
        mine = many.manifests[key]
        assert (mine.tokens, mine.documents, mine.dropped) == (
            note.tokens,
            note.documents,
            note.dropped,
        )
    assert not (tmp_path / ".many.parts").exists()


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_parts_that_are_complete(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DATA-07: the join is interrupted; the next run makes no part again."""
    source = chat_rows(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(subs, "_join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run(source, "x", tokenizer, n_subs=2)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / ".x.parts").iterdir()}
    assert len([path for path in made if path.suffix == ".state"]) == 2
    kept: dict[Path, int] = {}
    join = subs._join

    def look(*arguments: Any) -> Summary:
        kept.update({path: path.stat().st_mtime_ns for path in (tmp_path / ".x.parts").iterdir()})
        return join(*arguments)

    monkeypatch.setattr(subs, "_join", look)
    run(source, "x", tokenizer, n_subs=2)
    assert kept == made


@pytest.mark.slow
def test_an_error_in_a_part_names_the_line_of_the_whole_file(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    rows = [chats.openai([("user", "q"), ("assistant", "a")])] * 50
    rows[40] = {"messages": 3}
    source = chats.write(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError, match=rf"{source}:41: .* a number, not a list"):
        run(source, "x", tokenizer, n_subs=3)
    assert not list(tmp_path.glob("x_*"))


@pytest.mark.slow
def test_a_ray_cluster_makes_the_same_parts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    ray = pytest.importorskip("ray")
    source = chat_rows(tmp_path)
    run(source, "one", tokenizer)
    try:
        run(source, "many", tokenizer, n_subs=3, engine="ray", workers=2)
    finally:
        ray.shutdown()
    assert content(tmp_path, "one") == content(tmp_path, "many")


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", ""])
def test_wrong_shards(text: str) -> None:
    with pytest.raises(UserError, match="expected i/n"):
        shard_of(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_subs": 2, "max_samples": 3}, "--max-samples"),
        ({"engine": "ray"}, "--engine ray makes the parts of --n-subs"),
        ({"mix_strategy": "interleave_under"}, "LlamaFactoryInstructionHandler"),
        ({"json_keys": ("a",)}, "--json-keys is for plain text"),
    ],
)
def test_wrong_requests(
    tmp_path: Path, tokenizer: Tokenizer, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run(chat_rows(tmp_path), "x", tokenizer, **options)
