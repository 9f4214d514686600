"""Fixtures that every test folder uses."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("MINDSPEED_DEVICE", "cpu")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``cuda`` skip without a CUDA device; those of the pool share one process."""
    for item in items:
        if "pool" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("pool"))
    wanted = [item for item in items if item.get_closest_marker("cuda")]
    if not wanted:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def pool():
    """``pool(n)`` gives the session's pool of n ranks (see tests/parallel/pool.py)."""
    from tests.parallel.pool import Pool

    pools: dict[int, Pool] = {}

    def get(size: int) -> Pool:
        return pools.setdefault(size, Pool(size))

    yield get
    for one in pools.values():
        one.close()
