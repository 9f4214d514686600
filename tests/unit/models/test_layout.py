"""Which layer lies on which stage, against tables written by hand."""

from __future__ import annotations

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.models.layout import PipelineLayout

TABLE = [
    # layers, stages, layers per virtual stage, list -> layers of each stage's chunks
    ((4, 1, None, None), [[[0, 1, 2, 3]]]),
    ((4, 2, None, None), [[[0, 1]], [[2, 3]]]),
    ((8, 2, 2, None), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
    ((8, 4, 1, None), [[[0], [4]], [[1], [5]], [[2], [6]], [[3], [7]]]),
    ((7, 3, None, (3, 3, 1)), [[[0, 1, 2]], [[3, 4, 5]], [[6]]]),
]


@pytest.mark.parametrize("arguments, expected", TABLE)
def test_layers_per_stage(arguments, expected) -> None:
    layout = PipelineLayout.build(*arguments)
    assert [[list(chunk) for chunk in stage] for stage in layout.stages] == expected
    for layer in range(arguments[0]):
        stage, chunk, index = layout.locate(layer)
        assert layout.stages[stage][chunk][index] == layer


def test_embedding_is_first_and_output_is_last_with_chunks() -> None:
    layout = PipelineLayout.build(8, 2, 2)
    places = [(stage, chunk) for stage in range(2) for chunk in range(2)]
    assert [p for p in places if layout.is_first(*p)] == [(0, 0)]
    assert [p for p in places if layout.is_last(*p)] == [(1, 1)]
    assert layout.chunk_keys() == ["model0", "model1"]


REFUSED = [
    ((30, 4, None, None), r"30 layers do not divide over 4 .*--num-layer-list 7,7,8,8"),
    ((7, 2, None, None), "--num-layer-list 3,4"),
    ((30, 4, None, (8, 8, 8, 7)), "adds up to 31, the model has 30"),
    ((30, 4, None, (10, 10, 10)), "3 entries for 4 pipeline stages"),
    ((30, 4, None, (15, 15, 0, 0)), "at least one layer"),
    ((8, 2, 3, None), "4 layers per pipeline stage do not divide into virtual stages of 3"),
    ((8, 2, 2, (4, 4)), "exclude each other"),
    ((8, 1, 2, None), "need --pipeline-model-parallel-size greater than 1"),
    ((2, 4, None, None), "use fewer pipeline stages"),
]


@pytest.mark.parametrize("arguments, message", REFUSED)
def test_refused_layouts(arguments, message) -> None:
    with pytest.raises(UserError, match=message):
        PipelineLayout.build(*arguments)
