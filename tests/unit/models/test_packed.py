"""PACK-01: sequences of one row do not see each other, in every family and form of attention."""

from __future__ import annotations

import pytest
import torch

from mindspeed.transformer.packed import PADDING_BLOCK, PackedRows
from tests.families import CONFIGS, VOCAB

# Two rows; 0 is padding.
SEGMENTS = [[1] * 13 + [2] * 9 + [3] * 11, [1] * 26 + [2] * 5 + [0] * 2]
QUICK = ("qwen3", "mistral-window", "gemma2", "glm4_9b", "phi3.5-long", "deepseek3")


@pytest.fixture(scope="module")
def place():
    """The process as the one rank of a run."""
    from mindspeed_llm import distributed
    from mindspeed_llm.flags import parse

    yield distributed.initialize(parse("inference", ["--mock-data"]))
    distributed.shutdown()


@pytest.fixture
def model(place, request, tmp_path):
    """A tiny model of a family, and the function of its logits, tokens [b, s] -> [b, s, v]."""
    from mindspeed_llm.flags import parse
    from mindspeed_llm.live_model import build_live_model
    from mindspeed_llm.model_source import resolve_model
    from tests.families import write_tiny_hf

    write_tiny_hf(tmp_path, request.param)
    cfg = parse("inference", ["--load", str(tmp_path)])
    resolved = resolve_model(cfg, cfg.checkpoint.load)
    live = build_live_model(resolved.fill(cfg), resolved, place, load_weights=True)
    return live.chunks[0].eval()


def positions_of(segments: torch.Tensor) -> torch.Tensor:
    """Counted from the beginning of each sequence."""
    rows = [
        [index - row.index(number) for index, number in enumerate(row)] for row in segments.tolist()
    ]
    return torch.tensor(rows)


def families() -> list:
    marks = {name: () if name in QUICK else pytest.mark.slow for name in CONFIGS}
    return [pytest.param(name, marks=mark, id=name) for name, mark in marks.items()]


@pytest.mark.parametrize("model", families(), indirect=True)
def test_packed_logits_are_those_of_each_sample_alone(model):
    """And a change in one sample does not move another's."""
    segments = torch.tensor(SEGMENTS)
    positions = positions_of(segments)
    tokens = torch.randint(VOCAB, segments.shape, generator=torch.Generator().manual_seed(3))

    def logits(ids: torch.Tensor) -> torch.Tensor:
        packed = PackedRows.of(segments, positions)
        return model(ids, positions, None, packed_seq_params=packed)[..., :VOCAB]

    with torch.no_grad():
        together = logits(tokens)
        for row, number in ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2)):
            mine = segments[row] == number
            ids = tokens[row][mine][None]
            alone = model(ids, torch.arange(ids.shape[1])[None], None)[0, :, :VOCAB]
            torch.testing.assert_close(together[row][mine], alone, rtol=1e-4, atol=1e-5)
        changed = tokens.clone()
        changed[0, 4] = (changed[0, 4] + 1) % VOCAB
        moved = logits(changed) - together
    others = torch.ones_like(segments, dtype=torch.bool)
    others[0, :13] = False
    assert moved[0, 4:13].abs().max() > 1e-3
    # Experts compute whatever tokens come to them in one product, whose rounding depends on it.
    assert moved[others].abs().max() <= (1e-6 if model.shape.experts else 0.0)


@pytest.mark.parametrize("model", ["qwen3"], indirect=True)
def test_positions_that_go_on_change_nothing_but_rounding(model):
    """Rotary attention sees differences of positions alone."""
    segments = torch.tensor(SEGMENTS)
    tokens = torch.randint(VOCAB, segments.shape, generator=torch.Generator().manual_seed(3))
    found = []
    for positions in (positions_of(segments), torch.arange(33).expand(2, 33)):
        packed = PackedRows.of(segments, positions)
        with torch.no_grad():
            found.append(model(tokens, positions, None, packed_seq_params=packed))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_rows_as_megatron_hands_them_through():
    size = 2 * PADDING_BLOCK + 9
    segments = torch.tensor([[1] * 4 + [2] * (size - 4), [1] * 3 + [0] * (size - 3)])
    packed = PackedRows.of(segments, positions_of(segments))
    assert packed.lengths == (4, size - 4, 3, PADDING_BLOCK, PADDING_BLOCK, 6)
    assert packed.ends[0].nonzero().flatten().tolist() == [3, size - 1]
    assert packed.ends.sum() == 6
    assert packed.max_seqlen_q == size - 3
    assert packed.reach[0, 3] == 4 and packed.reach[0, 4] == size - 4
