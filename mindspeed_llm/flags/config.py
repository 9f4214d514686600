"""The frozen ``Config`` that a command line becomes, and which groups each tool accepts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.flags.checkpoint import CheckpointFlags
from mindspeed_llm.flags.convert import ConvertFlags
from mindspeed_llm.flags.convert_v1 import ConvertV1Flags
from mindspeed_llm.flags.core import TRAINERS, FlagSpec, Group, specs_of
from mindspeed_llm.flags.data import DataFlags
from mindspeed_llm.flags.inference import InferenceFlags
from mindspeed_llm.flags.logging import LoggingFlags
from mindspeed_llm.flags.lora import LoraFlags
from mindspeed_llm.flags.model import ModelFlags
from mindspeed_llm.flags.moe import MoeFlags
from mindspeed_llm.flags.ops import OpsFlags
from mindspeed_llm.flags.optimizer import OptimizerFlags
from mindspeed_llm.flags.parallel import ParallelFlags
from mindspeed_llm.flags.posttrain import PosttrainFlags
from mindspeed_llm.flags.preprocess import PreprocessFlags
from mindspeed_llm.flags.status import Kind
from mindspeed_llm.flags.tokenizer import TokenizerFlags
from mindspeed_llm.flags.training import TrainingFlags

GROUPS: dict[str, type[Group]] = {
    "inference": InferenceFlags,
    "preprocess": PreprocessFlags,
    "convert": ConvertFlags,
    "convert_v1": ConvertV1Flags,
    "lora": LoraFlags,
    "posttrain": PosttrainFlags,
    "model": ModelFlags,
    "moe": MoeFlags,
    "parallel": ParallelFlags,
    "training": TrainingFlags,
    "optimizer": OptimizerFlags,
    "data": DataFlags,
    "tokenizer": TokenizerFlags,
    "checkpoint": CheckpointFlags,
    "logging": LoggingFlags,
    "ops": OpsFlags,
}
_TRAINER = (
    "model",
    "moe",
    "parallel",
    "training",
    "optimizer",
    "data",
    "tokenizer",
    "checkpoint",
    "logging",
    "ops",
)
TOOLS: dict[str, tuple[str, ...]] = {
    "preprocess": ("preprocess", "tokenizer"),
    "convert": ("convert", "lora"),
    "convert_v1": ("convert_v1", "convert", "lora"),
    "pretrain": (*_TRAINER, "posttrain"),
    "posttrain": ("posttrain", *_TRAINER),
    "inference": ("inference", *_TRAINER),
}
"""Groups whose flags each tool accepts. Flags of training take no effect in inference."""


@functools.cache
def group_specs(group: str) -> tuple[FlagSpec, ...]:
    """The flags of one group."""
    return specs_of(group, GROUPS[group])


@functools.cache
def tool_specs(tool: str) -> dict[str, FlagSpec]:
    """The flags that ``tool`` accepts, by dest, in the order of their groups."""
    specs: dict[str, FlagSpec] = {}
    for group in TOOLS[tool]:
        for spec in group_specs(group):
            assert spec.dest not in specs, f"{spec.dest} is declared twice for {tool}"
            specs[spec.dest] = spec
    return specs


@dataclass(frozen=True)
class Config:
    """All flags of one run, by group; each field is named as Megatron's argparse dest.

    Groups that the tool does not accept hold their defaults. ``given`` tells a value that the
    user set (on the command line or in the YAML file) from a default.
    """

    tool: str
    given: frozenset[str] = frozenset()
    model: ModelFlags = field(default_factory=ModelFlags)
    moe: MoeFlags = field(default_factory=MoeFlags)
    parallel: ParallelFlags = field(default_factory=ParallelFlags)
    training: TrainingFlags = field(default_factory=TrainingFlags)
    optimizer: OptimizerFlags = field(default_factory=OptimizerFlags)
    data: DataFlags = field(default_factory=DataFlags)
    tokenizer: TokenizerFlags = field(default_factory=TokenizerFlags)
    checkpoint: CheckpointFlags = field(default_factory=CheckpointFlags)
    logging: LoggingFlags = field(default_factory=LoggingFlags)
    ops: OpsFlags = field(default_factory=OpsFlags)
    posttrain: PosttrainFlags = field(default_factory=PosttrainFlags)
    preprocess: PreprocessFlags = field(default_factory=PreprocessFlags)
    convert: ConvertFlags = field(default_factory=ConvertFlags)
    convert_v1: ConvertV1Flags = field(default_factory=ConvertV1Flags)
    lora: LoraFlags = field(default_factory=LoraFlags)
    inference: InferenceFlags = field(default_factory=InferenceFlags)

    @classmethod
    def from_values(cls, tool: str, values: Mapping[str, Any]) -> Config:
        """Build from ``dest -> value`` of what was given; the rest are defaults."""
        return cls(tool=tool).replace(**values)

    def replace(self, **values: Any) -> Config:
        """A copy with other values, by dest; they count as given."""
        specs = tool_specs(self.tool)
        changes: dict[str, dict[str, Any]] = {}
        for dest, value in values.items():
            changes.setdefault(specs[dest].group, {})[dest] = value
        groups = {g: dataclasses.replace(getattr(self, g), **v) for g, v in changes.items()}
        return dataclasses.replace(self, given=self.given | values.keys(), **groups)

    def value(self, dest: str) -> Any:
        """The value of a flag, whatever group holds it."""
        return getattr(getattr(self, tool_specs(self.tool)[dest].group), dest)

    @property
    def trains(self) -> bool:
        """Whether the tool trains a model."""
        return self.tool in TRAINERS

    @property
    def params_dtype(self) -> str:
        """Type of the weights: ``bf16``, ``fp16`` or ``fp32``."""
        return "bf16" if self.training.bf16 else "fp16" if self.training.fp16 else "fp32"

    def inactive_flags(self, device: str) -> list[str]:
        """Given flags that have no effect in this run, each with the reason.

        Args:
            device: ``cpu``, ``cuda`` or ``npu``.
        """
        lines = []
        for dest, spec in tool_specs(self.tool).items():
            value = self.value(dest)
            if dest in self.given and value != spec.default:
                reason = self._why_inactive(spec, device)
                if reason:
                    lines.append(f"{spec.spelled(value)} ({reason})")
        return lines

    def _why_inactive(self, spec: FlagSpec, device: str) -> str | None:
        if spec.tools and self.tool not in spec.tools:
            return f"no effect in {self.tool}"
        effect = spec.effect
        if effect.kind is Kind.NEUTRAL and device not in effect.devices:
            return effect.note
        if effect.kind is Kind.PART_OF:
            known = tool_specs(self.tool)
            parents = [known[name] for name in effect.parents if name in known]
            if not parents:
                return f"no effect in {self.tool}"
            if all(self.value(parent.dest) == parent.default for parent in parents):
                return f"no effect without {' or '.join(parent.name for parent in parents)}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe form with every value, as stored in checkpoints."""
        result: dict[str, Any] = {"tool": self.tool, "given": sorted(self.given)}
        for group in TOOLS[self.tool]:
            result[group] = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in dataclasses.asdict(getattr(self, group)).items()
            }
        return result

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Config:
        """The inverse of :meth:`to_dict`; flags that no longer exist are left out.

        Raises:
            UserError: when ``stored`` is not such a dictionary.
        """
        tool = stored.get("tool")
        if tool not in TOOLS:
            raise UserError(f"the stored configuration names no known tool but {tool!r}")
        groups = {}
        for group in TOOLS[tool]:
            known = {spec.dest for spec in group_specs(group)}
            groups[group] = GROUPS[group](
                **{
                    key: tuple(value) if isinstance(value, list) else value
                    for key, value in stored.get(group, {}).items()
                    if key in known
                }
            )
        given = frozenset(stored.get("given", ())) & tool_specs(tool).keys()
        return cls(tool=tool, given=given, **groups)  # type: ignore[arg-type]
