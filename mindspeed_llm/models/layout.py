"""Which layer lies on which pipeline stage.

``PipelineLayout`` is the one place that decides it; model building, conversion and loading all
ask it, so a global layer always lands on the right stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed.errors import UserError


@dataclass(frozen=True)
class PipelineLayout:
    """Global layer indices per stage and, within a stage, per model chunk (virtual stage).

    ``stages[pp][chunk]`` lists the layers in order; without virtual stages there is one chunk.
    None stands for a no-op layer: it takes a place, but is no layer of the model.
    """

    stages: tuple[tuple[tuple[int | None, ...], ...], ...]

    @property
    def pipeline_parallel(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages)

    @property
    def chunks(self) -> int:
        """Model chunks per stage (Megatron's virtual pipeline size; 1 without)."""
        return len(self.stages[0])

    @property
    def uneven(self) -> bool:
        """Whether some chunks hold more layers than others."""
        return len({len(chunk) for stage in self.stages for chunk in stage}) > 1

    @property
    def places(self) -> list[int | None]:
        """All layers in the order in which they are computed, None for each no-op layer."""
        return [
            layer for chunk in range(self.chunks) for stage in self.stages for layer in stage[chunk]
        ]

    @property
    def noop_layers(self) -> tuple[int, ...]:
        """Places of the no-op layers, counted over all layers and themselves."""
        return tuple(place for place, layer in enumerate(self.places) if layer is None)

    def locate(self, layer: int) -> tuple[int, int, int]:
        """(stage, chunk, index within the chunk) of a global layer."""
        for stage, chunks in enumerate(self.stages):
            for chunk, layers in enumerate(chunks):
                if layer in layers:
                    return stage, chunk, layers.index(layer)
        raise KeyError(layer)

    def is_first(self, stage: int, chunk: int) -> bool:
        """Whether this chunk holds the embedding."""
        return stage == 0 and chunk == 0

    def is_last(self, stage: int, chunk: int) -> bool:
        """Whether this chunk holds the final norm and the output layer."""
        return stage == self.pipeline_parallel - 1 and chunk == self.chunks - 1

    def chunk_keys(self) -> list[str]:
        """Names of the chunks' state dicts in a checkpoint file: model, or model0, model1, …"""
        return ["model"] if self.chunks == 1 else [f"model{i}" for i in range(self.chunks)]

    def describe(self) -> str:
        """Layers per stage in one line, e.g. ``15,15,15,16``."""
        return ",".join("+".join(str(len(chunk)) for chunk in stage) for stage in self.stages)

    @classmethod
    def build(
        cls,
        num_layers: int,
        pipeline_parallel: int = 1,
        layers_per_virtual_stage: int | None = None,
        num_layer_list: tuple[int, ...] | None = None,
        noop_layers: tuple[int, ...] = (),
    ) -> PipelineLayout:
        """Lay ``num_layers`` out as the flags of the same meaning ask.

        Args:
            num_layers: layers of the model, without no-op layers.
            noop_layers: places of no-op layers, counted over the layers and themselves.

        Raises:
            UserError: when the layers do not divide, or a list does not fit.
        """
        if noop_layers:
            if num_layer_list is not None:
                raise UserError(
                    "--num-layer-list and --noop-layers exclude each other: uneven stages need no "
                    "no-op layers; leave one out"
                )
            total = num_layers + len(noop_layers)
            layout = cls.build(total, pipeline_parallel, layers_per_virtual_stage)
            return layout._with_noop_layers(noop_layers)
        if num_layer_list is not None:
            if layers_per_virtual_stage is not None:
                raise UserError(
                    "--num-layer-list and --num-layers-per-virtual-pipeline-stage exclude each "
                    "other: the list gives the layers of whole stages; leave one out"
                )
            return cls(_from_list(num_layers, pipeline_parallel, num_layer_list))
        if num_layers % pipeline_parallel:
            raise UserError(_does_not_divide(num_layers, pipeline_parallel))
        per_stage = num_layers // pipeline_parallel
        per_chunk = layers_per_virtual_stage or per_stage
        if per_stage % per_chunk:
            raise UserError(
                f"{per_stage} layers per pipeline stage do not divide into virtual stages of "
                f"{per_chunk} (--num-layers-per-virtual-pipeline-stage); use a divisor of "
                f"{per_stage}"
            )
        if pipeline_parallel == 1 and per_chunk != per_stage:
            raise UserError(
                "virtual pipeline stages need --pipeline-model-parallel-size greater than 1"
            )
        return cls(_interleaved(num_layers, pipeline_parallel, per_chunk))

    def _with_noop_layers(self, noop_layers: tuple[int, ...]) -> PipelineLayout:
        """The same places, some of them without a layer, and the layers counted anew."""
        total = len(self.places)
        listed = ",".join(map(str, noop_layers))
        if len(set(noop_layers)) != len(noop_layers) or not set(noop_layers) <= set(range(total)):
            raise UserError(
                f"--noop-layers {listed}: places must differ and lie between 0 and {total - 1} "
                f"({total - len(noop_layers)} layers and {len(noop_layers)} no-op layers)"
            )
        layers = iter(range(total))
        numbers = [None if place in noop_layers else next(layers) for place in range(total)]
        stages = tuple(
            tuple(tuple(numbers[place] for place in chunk if place is not None) for chunk in stage)
            for stage in self.stages
        )
        layout = PipelineLayout(stages)
        for stage, chunks in enumerate(stages):
            for which, chunk in enumerate(chunks):
                ends = layout.is_first(stage, which) or layout.is_last(stage, which)
                if set(chunk) == {None} and not ends:
                    raise UserError(
                        f"--noop-layers {listed} leaves pipeline stage {stage} without a layer"
                        f"{f' in its model chunk {which}' if len(chunks) > 1 else ''}; spread "
                        "them over the stages"
                    )
        return layout


def _from_list(
    num_layers: int, pipeline_parallel: int, sizes: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    if len(sizes) != pipeline_parallel:
        raise UserError(
            f"--num-layer-list has {len(sizes)} entries for {pipeline_parallel} pipeline stages; "
            "give one number per stage"
        )
    if min(sizes) < 1 or sum(sizes) != num_layers:
        raise UserError(
            f"--num-layer-list {','.join(map(str, sizes))} adds up to {sum(sizes)}, the model has "
            f"{num_layers} layers; each stage needs at least one layer and the sum must fit"
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        (tuple(range(start, start + size)),) for start, size in zip(starts, sizes, strict=True)
    )


def _interleaved(
    num_layers: int, pipeline_parallel: int, per_chunk: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    stride = pipeline_parallel * per_chunk
    return tuple(
        tuple(
            tuple(range(start, start + per_chunk))
            for start in range(stage * per_chunk, num_layers, stride)
        )
        for stage in range(pipeline_parallel)
    )


def _does_not_divide(num_layers: int, pipeline_parallel: int) -> str:
    small, extra = divmod(num_layers, pipeline_parallel)
    sizes = [small] * (pipeline_parallel - extra) + [small + 1] * extra
    hint = (
        f"give the layers of each stage with --num-layer-list {','.join(map(str, sizes))}"
        if small
        else "use fewer pipeline stages"
    )
    return f"{num_layers} layers do not divide over {pipeline_parallel} pipeline stages; {hint}"
