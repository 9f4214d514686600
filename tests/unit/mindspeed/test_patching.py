"""The patch registry on a small package of its own: any import order, undone as a whole."""

from __future__ import annotations

import importlib
import sys

import pytest

from mindspeed.patching import PackagePatch, Patcher, PatchError, SymbolPatch, set_attribute


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package ``shop`` with a module that copies a symbol from another."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "prices.py").write_text(
        "def price(): return 1\n"
        "class Till:\n"
        "    def total(self): return price()\n"
        "    @staticmethod\n"
        "    def name(): return 'till'\n"
    )
    (folder / "copies.py").write_text("from shop.prices import price as copied\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "shop"
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.fixture
def patcher():
    patcher = Patcher()
    yield patcher
    patcher.revert()


def two(original):
    return lambda: 2


def price_patch(**kwargs) -> SymbolPatch:
    return SymbolPatch("price", "too cheap", "shop.prices:price", two, **kwargs)


def test_a_loaded_module_and_its_copies_are_patched_and_restored(package, patcher):
    copies = importlib.import_module("shop.copies")
    prices = sys.modules["shop.prices"]
    original = prices.price
    patcher.add("shop", 0, [price_patch()])
    patcher.apply()
    assert prices.price() == copies.copied() == 2
    patcher.revert()
    assert prices.price is original and copies.copied is original


def test_a_module_is_patched_when_it_is_imported(package, patcher):
    patcher.add("shop", 0, [price_patch()])
    patcher.apply()
    assert "shop" not in sys.modules  # nothing is imported in order to patch it
    assert patcher.listing()[0].state == "waits for its module"
    copies = importlib.import_module("shop.copies")
    assert copies.copied() == 2
    assert patcher.listing()[0].state == "applied"
    patcher.revert()
    assert sys.modules["shop.prices"].price() == 1 and copies.copied() == 1


def test_after_revert_imports_are_left_alone(package, patcher):
    finders = list(sys.meta_path)
    patcher.add("shop", 0, [price_patch()])
    patcher.apply()
    patcher.revert()
    assert sys.meta_path == finders
    assert importlib.import_module("shop.prices").price() == 1


def test_twice_is_once(package, patcher):
    prices = importlib.import_module("shop.prices")
    count = SymbolPatch("more", "", "shop.prices:price", lambda old: lambda: old() + 1)
    patcher.add("shop", 0, [count])
    patcher.apply()
    patcher.apply()
    assert prices.price() == 2


def test_methods_and_static_methods_are_restored_as_they_were(package, patcher):
    till = importlib.import_module("shop.prices").Till
    before = dict(vars(till))
    patcher.add(
        "shop",
        0,
        [
            SymbolPatch("total", "", "shop.prices:Till.total", lambda old: lambda self: 7),
            SymbolPatch("name", "", "shop.prices:Till.name", lambda old: staticmethod(lambda: "x")),
        ],
    )
    patcher.apply()
    assert till().total() == 7 and till().name() == "x"
    patcher.revert()
    assert dict(vars(till)) == before


def test_a_missing_symbol_undoes_everything_and_says_which(package, patcher):
    prices = importlib.import_module("shop.prices")
    original = prices.price
    missing = SymbolPatch("gone", "", "shop.prices:discount", two)
    patcher.add("shop", 0, [price_patch(), missing])
    with pytest.raises(PatchError, match=r"shop\.prices:discount does not exist"):
        patcher.apply()
    assert prices.price is original and not patcher.active


def test_a_failing_patch_at_a_late_import_undoes_everything(package, patcher):
    def fail(original):
        raise KeyError("no such thing")

    patcher.add("shop", 0, [price_patch()])
    patcher.add("shop", 0, [SymbolPatch("bad", "", "shop.copies:copied", fail)])
    prices = importlib.import_module("shop.prices")
    patcher.apply()
    with pytest.raises(PatchError, match=r"patch bad on shop\.copies failed"):
        importlib.import_module("shop.copies")
    assert prices.price() == 1 and not patcher.active


def test_a_symbol_may_be_missing(package, patcher):
    prices = importlib.import_module("shop.prices")
    patch = SymbolPatch("new", "", "shop.prices:discount", lambda old: old, may_be_missing=True)
    patcher.add("shop", 0, [patch])
    patcher.apply()
    assert prices.discount is None
    patcher.revert()
    assert not hasattr(prices, "discount")


def test_a_whole_package(package, patcher):
    def mark(module):
        return [set_attribute(module, "marked", True)]

    patcher.add("shop", 0, [PackagePatch("mark", "", "shop", mark, "marked")])
    importlib.import_module("shop.prices")
    patcher.apply()
    importlib.import_module("shop.copies")
    info = patcher.listing()[0]
    assert set(info.modules) == {"shop", "shop.prices", "shop.copies"}
    assert info.state == "applied in 3 modules" and info.target == "shop.*:marked"
    assert sys.modules["shop.copies"].marked
    patcher.revert()
    assert not hasattr(sys.modules["shop.prices"], "marked")


def test_names_are_unique(patcher):
    patcher.add("shop", 0, [price_patch()])
    with pytest.raises(PatchError, match="two patches are named price"):
        patcher.add("shop", 0, [price_patch()])
