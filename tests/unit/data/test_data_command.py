"""``data show`` and ``data stats``: what is printed is what is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.storage.parts import INSTRUCTION, Parts
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
from mindspeed_llm.data.view.command import main
from mindspeed_llm.data.view.show import Viewer
from mindspeed_llm.data.view.stats import bars, collect_all, histogram
from tests.data import small
from tests.instruction_data import IGNORE, Row, pack, sample, samples, write, write_pairs


@pytest.fixture(scope="module")
def tokenizer():
    return load_hf_tokenizer(small.byte_level())


@pytest.fixture
def chat(tmp_path, tokenizer) -> Path:
    prompt, answer = (tokenizer.encode(text) for text in ("<|start|>say it\n", "so be it"))
    return write(tmp_path / "chat", [sample(prompt, [*answer, tokenizer.eod])])


def test_trained_tokens_are_marked(chat, tokenizer, capsys):
    assert (
        main(["show", str(chat), "--tokenizer", str(small.byte_level()), "--color", "never"]) == 0
    )
    out = capsys.readouterr().out
    assert "⟦trained⟧  not trained" in out
    assert "<|start|>say it\n⟦so be it⟧⟦<|endoftext|>⟧" in out
    main(["show", str(chat), "--tokenizer", str(small.byte_level()), "--color", "always"])
    out = capsys.readouterr().out
    assert "\x1b[36m<|start|>\x1b[0msay it\n\x1b[32mso be it\x1b[0m\x1b[1;32m<|endoftext|>" in out


def test_samples_of_a_packed_row_have_their_places(tmp_path, capsys):
    rows = [sample([11, 12], [13]), sample([21], [22, 23])]
    main(["show", str(write(tmp_path / "p", pack(rows, 8))), "--color", "never"])
    captured = capsys.readouterr()
    assert "p has no note: tokens are shown as ids" in captured.err
    assert (
        "-- sample 1 of 2, tokens 0 to 2: 1 of 3 tokens trained (33%)\n11 12 ⟦13 ⟧" in captured.out
    )
    assert (
        "-- sample 2 of 2, tokens 3 to 5: 2 of 3 tokens trained (67%)\n21 ⟦22 23 ⟧" in captured.out
    )
    assert "-- 2 tokens of padding" in captured.out


def test_pairs_and_text_are_shown(tmp_path, capsys):
    pairs = write_pairs(tmp_path / "pairs", [(sample([1], [2]), sample([1], [3]))])
    main(["show", str(pairs), "--color", "never"])
    out = capsys.readouterr().out
    assert "== row chosen 0: 2 tokens" in out and "1 ⟦3 ⟧" in out
    main(["show", f"{pairs}_packed_chosen_labels_document", "--color", "never"])
    assert "== document 0: 2 tokens" in capsys.readouterr().out


def test_text_cannot_steer_the_terminal(tokenizer):
    ids = np.array(tokenizer.encode("a\x1b[2Jb\x07"))
    text = Viewer(tokenizer, color=False).text(ids, np.full(len(ids), IGNORE))
    assert text == "a\\x1b[2Jb\\x07"


def test_numbers_by_hand(tmp_path):
    rows = [sample([11, 12], [13]), sample([21], [22, 23]), sample([1, 2, 3, 4], [5])]
    packed = write(tmp_path / "p", pack(rows, 8))
    found = collect_all(Parts(str(packed), INSTRUCTION))[""]
    assert found.lengths.tolist() == [3, 3, 5] and found.trained.tolist() == [1, 2, 1]
    assert found.padding == 2 + 3 and found.tokens == 11
    assert found.last == {13: 1, 23: 1, 5: 1}
    assert "packing   68.75% of the rows is samples, 1.5 of them a row" in found.lines()
    plain = collect_all(Parts(str(write(tmp_path / "q", rows)), INSTRUCTION))[""]
    assert plain.lengths.tolist() == [3, 3, 5] and plain.trained.tolist() == [1, 2, 1]
    assert "packing   none; of rows of 5 tokens, samples would be 73.3%" in plain.lines()


def test_numbers_do_not_depend_on_how_many_rows_are_read_at_once(tmp_path, monkeypatch):
    from mindspeed_llm.data.view import stats

    parts = Parts(str(write(tmp_path / "p", pack(samples(40), 64))), INSTRUCTION)
    whole = collect_all(parts)[""]
    monkeypatch.setattr(stats, "ROWS_AT_ONCE", 3)
    again = collect_all(parts)[""]
    assert again.lengths.tolist() == whole.lengths.tolist() and again.last == whole.last
    assert again.trained.tolist() == whole.trained.tolist()


def test_histogram_counts_each_length_once():
    lengths = np.array([3, 3, 4, 90])
    counts, edges = histogram(lengths)
    assert counts.sum() == 4 and counts[0] == 3 and edges[0] == 2 and edges[-1] == 90
    assert [line.split()[-1] for line in bars(np.array([7, 7, 8]))] == ["2", "1"]


def test_suspicious_masks(tmp_path, capsys):
    rows = [
        Row([1, 2], [IGNORE, IGNORE], [1, 1]),
        Row([3, 4], [3, 4], [1, 1]),
        Row([5, 6, 7], [IGNORE, 6, 9], [1, 1, 1]),
    ]
    assert main(["stats", str(write(tmp_path / "odd", rows))]) == 1
    err = capsys.readouterr().err
    assert "1 of 3 samples have no trained token" in err
    assert "1 of 3 samples are trained from their first token to their last" in err
    assert "1 labels are another id than the token they lie on" in err


def test_plots(tmp_path, capsys):
    data = write(tmp_path / "p", samples(30))
    assert main(["stats", str(data), "--plot", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text()
    assert (
        page.count("<svg") == 2 and "trained share of a sample" in page and "samples   30" in page
    )
    pytest.importorskip("matplotlib")
    main(["stats", str(data), "--plot", str(tmp_path / "p.png")])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"must end in \.png or \.html"):
        main(["stats", str(data), "--plot", str(tmp_path / "p.jpg")])


def test_mistakes(tmp_path, chat):
    with pytest.raises(UserError, match=r"PREFIX .*nothing: no such data set. Of this kind there"):
        main(["show", str(tmp_path / "nothing")])
    with pytest.raises(UserError, match=r"--start 1: .* has rows 0 to 0"):
        main(["show", str(chat), "--start", "1"])
