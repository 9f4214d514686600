"""``posttrain_gpt.py`` / ``mindspeed-llm posttrain``: tune a model on answers or on preferences.

Run it under torchrun, or let ``--nproc N`` start N processes::

    mindspeed-llm posttrain --nproc 2 --tensor-model-parallel-size 2 --stage sft --finetune \
        --load HF_DIR --data-path alpaca --is-instruction-dataset --prompt-type qwen3 \
        --no-pad-to-seq-lengths --seq-length 4096 --global-batch-size 16 --train-iters 100 \
        --lr 1e-5 --bf16 --save ckpt --save-interval 100

It is the loop of pretraining with another loss, or other data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspeed_llm.training.pretrain import start_verb

if TYPE_CHECKING:
    from mindspeed_llm.training.checkpointing.load import Saved
    from mindspeed_llm.training.checkpointing.start import Start
    from mindspeed_llm.training.objective import Objective
    from mindspeed_llm.training.setup import Run

VERB = "posttrain"


class Posttraining:
    """Tuning as a kind of training (:class:`mindspeed_llm.training.pretrain.Kind`)."""

    def objective(self, run: Run, start: Start, saved: Saved | None) -> tuple[Objective, list[str]]:
        """The loss of ``--stage``."""
        from mindspeed_llm.training.step import NEXT_TOKEN

        if run.cfg.posttrain.stage == "sft":
            return NEXT_TOKEN, ["sft: the loss of the answers' tokens, mean over a global batch"]
        return _preferences(run, start, saved)

    def finish(self, run: Run) -> None:
        """Say what can be done with the result."""
        from mindspeed_llm.posttrain.next_steps import show

        show(run)


def _preferences(run: Run, start: Start, saved: Saved | None) -> tuple[Objective, list[str]]:
    from mindspeed_llm.posttrain.dpo import Preferences
    from mindspeed_llm.posttrain.preference import PreferenceLoss
    from mindspeed_llm.posttrain.reference import build_reference

    flags = run.cfg.posttrain
    loss = PreferenceLoss(
        flags.dpo_loss_type, flags.dpo_beta, flags.dpo_label_smoothing, flags.pref_ftx
    )
    reference, origin = build_reference(run, start, saved)
    weight = 1 if run.model.shape.experts is None else 2 * run.batch.seq_length
    said = f"dpo: {flags.dpo_loss_type} loss, beta {flags.dpo_beta:g}, reference {origin}"
    return Preferences(loss, reference, weight), [said]


def main(argv: list[str]) -> int:
    """Parse, start the processes if asked to, tune."""
    return start_verb(VERB, argv, Posttraining())
