"""CHAT-05: the token that ends a turn is trained, and a cut answer has none."""

from __future__ import annotations

import numpy as np
import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.templates import IGNORE, load_template
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
from tests.data import small
from tests.unit.data.templates import official
from tests.unit.data.templates.official import plain


@pytest.mark.parametrize("name", ["named", "auto"])
def test_every_span_ends_with_a_token_that_stops_generation(name: str) -> None:
    """CHAT-05: cut after any token, labels are ids, and no end is made up."""
    tokenizer, _ = official.load("qwen3")
    template = load_template(tokenizer, "qwen3" if name == "named" else "auto")
    encoded = official.encoder("qwen3").encode(
        [template.render(plain("q", "an answer", "r", "another answer"))]
    )
    stops = [tokenizer.hf.convert_tokens_to_ids(stop) for stop in template.stop]
    for start, end in encoded.spans:
        assert encoded.ids[end - 1] in stops
        assert not np.isin(encoded.ids[start : end - 1], stops).any()
    labels = encoded.labels
    for cut in range(encoded.ids.size):
        kept = labels[:cut]
        assert np.array_equal(kept[kept != IGNORE], encoded.ids[:cut][encoded.trained[:cut]])
        whole = int((encoded.spans[:, 1] <= cut).sum())
        assert np.isin(kept, stops).sum() == whole


def test_a_base_model_without_the_end_token_is_refused() -> None:
    """CHAT-05: the template's end must be a token of the tokenizer."""
    tokenizer = load_hf_tokenizer(small.ALL["with_bos"]())
    with pytest.raises(UserError, match="has no token for"):
        load_template(tokenizer, "llama3")
    with pytest.raises(UserError, match="no chat template of its own"):
        load_template(tokenizer, "auto")
    assert load_template(tokenizer, "alpaca").stop == (tokenizer.hf.eos_token,)
