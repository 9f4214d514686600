"""What does not go together: flags among themselves, with the process count, with the shape."""

from __future__ import annotations

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.flags import Config, parse, validate

BASE = "--mock-data --train-iters 10 --lr 1e-3 --seq-length 32"
SHAPE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 64"


def config(words: str = "", base: str = BASE) -> Config:
    return parse("pretrain", f"{base} {SHAPE} {words}".split())


BY_SAMPLES = "--mock-data --train-samples 100 --lr 1e-3 --seq-length 32"


@pytest.mark.parametrize(
    ("base", "words", "expected"),
    [
        (BASE, "--train-samples 5", "--train-iters and --train-samples exclude"),
        ("--mock-data --lr 1 --seq-length 32", "", "--train-iters or --train-samples is required"),
        (BASE, "--lr-decay-samples 5", "--lr-decay-samples goes with --train-samples"),
        (BASE, "--lr-warmup-samples 5", "--lr-warmup-samples goes with --train-samples"),
        (BASE, "--rampup-batch-size 2 2 8 --global-batch-size 4", "--rampup-batch-size goes with"),
        (BY_SAMPLES, "--lr-decay-iters 5", "--lr-decay-iters goes with --train-iters"),
        (BY_SAMPLES, "--lr-warmup-iters 5", "--lr-warmup-iters goes with --train-iters"),
        (BY_SAMPLES, "--rampup-batch-size 2 2 8", "needs --global-batch-size"),
        (BY_SAMPLES, "--rampup-batch-size 2 4 8 --global-batch-size 8", "does not reach"),
        (BY_SAMPLES, "--rampup-batch-size 0 4 8 --global-batch-size 8", "at least 1"),
        (BASE, "--min-lr 1", "--min-lr 1 is above --lr"),
        (BASE, "--lr-warmup-init 1", "--lr-warmup-init 1 is above --lr"),
        (BASE, "--lr-warmup-fraction 0.1 --lr-warmup-iters 2", "exclude each other"),
        (BASE, "--lr-warmup-iters 10", "not shorter than the decay of 10"),
        (BASE, "--lr-warmup-iters 5 --lr-decay-iters 4", "not shorter than the decay of 4"),
        (BASE, "--lr-decay-style WSD", "WSD needs --lr-wsd-decay-iters"),
        (BY_SAMPLES, "--lr-decay-style WSD", "WSD needs --lr-wsd-decay-samples"),
        (BASE, "--lr-decay-style WSD --lr-wsd-decay-iters 11", "longer than the decay"),
        (
            BASE,
            "--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler",
            "exclude each other",
        ),
        (BASE, "--start-weight-decay 0.1", "needs --weight-decay-incr-style"),
        (BASE, "--weight-decay-incr-style linear", "needs --start-weight-decay"),
        (
            BASE,
            "--weight-decay-incr-style linear --start-weight-decay 1 --end-weight-decay 0",
            "it can only grow",
        ),
        (BASE, "--bf16 --fp16", "--bf16 and --fp16 exclude"),
        (BASE, "--recompute-granularity full", "full needs --recompute-method"),
        (
            BASE,
            "--recompute-granularity full --recompute-method block",
            "full needs --recompute-num-layers",
        ),
        (
            BASE,
            "--recompute-granularity selective --recompute-method block",
            "--recompute-method needs --recompute-granularity full",
        ),
        (BASE, "--recompute-num-layers 2", "needs --recompute-granularity full"),
        (BASE, "--recompute-modules mlp", "needs --recompute-granularity selective"),
        (
            BASE,
            "--recompute-activations --recompute-granularity full --recompute-method block "
            "--recompute-num-layers 1",
            "means selective",
        ),
        (BASE, "--distribute-saved-activations", "needs --recompute-granularity full"),
        (
            BASE,
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
            "--distribute-saved-activations --tensor-model-parallel-size 2 --sequence-parallel",
            "exclude each other",
        ),
        (BASE, "--overlap-param-gather --overlap-grad-reduce", "needs --use-distributed-optimizer"),
        (
            BASE,
            "--overlap-param-gather --use-distributed-optimizer",
            "needs --overlap-grad-reduce",
        ),
        (BASE, "--num-layers-per-virtual-pipeline-stage 2", "needs --pipeline-model-parallel-size"),
        (
            BASE,
            "--num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2 "
            "--no-overlap-p2p-communication",
            "needs more than 2 pipeline stages",
        ),
        (
            BASE,
            "--num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2 "
            "--num-layer-list 3,1",
            "exclude each other",
        ),
        (BASE, "--save ckpt", "--save needs --save-interval"),
        (BASE, "--save-interval 5", "--save-interval needs --save"),
        (
            BASE,
            "--save c --save-interval 4 --save-retain-interval 6",
            "not a multiple of --save-interval 4",
        ),
        (BASE, "--auto-resume", "--auto-resume needs --save"),
        (BASE, "--enable-hf2mg-convert", "--enable-hf2mg-convert needs --load"),
        (BASE, "--data-path x", "--data-path and --mock-data exclude"),
        ("--lr 1 --train-iters 1 --seq-length 4", "", "--data-path is required"),
        (BASE, "--split 1,2,3,4", "is not up to three shares"),
        (BASE, "--split 0,0,0", "is not up to three shares"),
        (BASE, "--split a,b", "is not up to three shares"),
        (BASE, "--split=-1,2,0", "is not up to three shares"),
        (BASE, "--tokenizer-type PretrainedFromHF", "--tokenizer-name-or-path is required"),
        (BASE, "--tokenizer-type NullTokenizer", "needs --vocab-size"),
        (BASE, "--num-query-groups 2", "--num-query-groups needs --group-query-attention"),
        (BASE, "--ckpt-step 3", "--ckpt-step needs --load"),
        (BASE, "--low-freq-factor 4 --high-freq-factor 1", "must be above --low-freq-factor"),
    ],
)
def test_flags_that_do_not_go_together(base, words, expected):
    with pytest.raises(UserError, match=expected):
        config(words, base)


@pytest.mark.parametrize(
    ("words", "world", "expected"),
    [
        ("--tensor-model-parallel-size 2", 3, "3 processes do not divide by tensor x pipeline"),
        ("--pipeline-model-parallel-size 3", 3, r"4 layers do not divide over 3 .*1,1,2"),
        (
            "--pipeline-model-parallel-size 2 --num-layer-list 3,2",
            2,
            "adds up to 5, the model has 4",
        ),
        ("--pipeline-model-parallel-size 2 --num-layer-list 4", 2, "has 1 entries for 2"),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            2,
            "do not divide into virtual stages of 3",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 "
            "--global-batch-size 3",
            2,
            "interleaved schedule runs micro-batches in groups of 2",
        ),
        ("--global-batch-size 3", 2, "--global-batch-size 3 does not divide by"),
        ("--micro-batch-size 4 --global-batch-size 6", 1, "--global-batch-size 6 does not divide"),
        ("--hidden-size 62", 1, "--hidden-size 62 does not divide by --num-attention-heads"),
        (
            "--group-query-attention --num-query-groups 3",
            1,
            "--num-attention-heads 4 does not divide by --num-query-groups 3",
        ),
        ("--seq-length 65", 1, "--seq-length 65 is above --max-position-embeddings 64"),
        ("--padded-vocab-size 131 --tensor-model-parallel-size 2", 2, "--padded-vocab-size 131"),
        ("--padded-vocab-size 8 --vocab-size 9", 1, "--padded-vocab-size 8 is below"),
        ("--ffn-hidden-size 63 --tensor-model-parallel-size 2", 2, "--ffn-hidden-size 63"),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3 "
            "--pipeline-model-parallel-size 2",
            2,
            "--recompute-num-layers 3 is more than the 2 layers",
        ),
    ],
)
def test_shape_and_processes_that_do_not_fit(words, world, expected):
    with pytest.raises(UserError, match=expected):
        validate(config(words), world)


@pytest.mark.parametrize("length", [7, 13])
def test_train_09_sequence_that_does_not_divide_is_refused_at_start(length):
    """TRAIN-09: fixed lengths that do not divide by TP under sequence parallelism."""
    words = f"--tensor-model-parallel-size 2 --sequence-parallel --seq-length {length}"
    with pytest.raises(UserError, match=f"--seq-length {length} does not divide"):
        validate(config(words), 2)
    validate(config(words.replace(f"--seq-length {length}", "--seq-length 64")), 2)
    validate(config(words.replace("--sequence-parallel", "")), 2)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes", "fits"),
    [
        (30, 4, None, False),
        (7, 2, None, False),
        (30, 4, "8,8,8,6", True),
        (30, 4, "8,8,8,7", False),
        (30, 3, None, True),
    ],
)
def test_conv_06_layers_that_do_not_divide_are_refused(layers, stages, sizes, fits):
    """CONV-06: the sum of the stages equals the layer count, or the run does not start."""
    words = f"--num-layers {layers} --pipeline-model-parallel-size {stages}"
    built = config(words + (f" --num-layer-list {sizes}" if sizes else ""))
    if fits:
        validate(built, stages)
    else:
        with pytest.raises(UserError, match="--num-layer-list"):
            validate(built, stages)


def test_all_faults_are_listed_together():
    with pytest.raises(UserError) as error:
        config("--bf16 --fp16 --min-lr 1 --save x")
    assert "these do not go together" in str(error.value)
    assert len(str(error.value).splitlines()) == 4


def test_sequence_parallel_on_one_rank_is_off_and_says_so(capsys):
    built = config("--sequence-parallel")
    assert not built.parallel.sequence_parallel
    assert "--sequence-parallel is off" in capsys.readouterr().out


def test_form_of_a_model_from_flags_is_said(capsys):
    config()
    assert "a model from flags alone has RMSNorm" in capsys.readouterr().out
    config("--load somewhere")
    form = "--normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear"
    config(form)
    assert capsys.readouterr().out == ""


def test_only_the_interleaved_schedule_overlaps_its_messages():
    words = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
    interleaved = config(words + " --global-batch-size 4")
    assert interleaved.parallel.overlap_p2p_comm and interleaved.parallel.align_param_gather
    assert validate(interleaved, 2).virtual_pipeline_model_parallel_size == 2
    plain = config("--pipeline-model-parallel-size 2")
    assert not plain.parallel.overlap_p2p_comm and not plain.parallel.align_param_gather
    assert validate(plain, 2).virtual_pipeline_model_parallel_size is None


def test_heads_need_not_divide_over_tensor_parallel_ranks():
    """SmolLM2-135M has 9 heads in 3 groups, and is trained at TP=2."""
    words = "--num-attention-heads 9 --num-query-groups 3 --group-query-attention"
    validate(config(f"{words} --hidden-size 576 --tensor-model-parallel-size 2"), 2)


def test_derived_batch_numbers():
    derived = validate(config("--micro-batch-size 2 --global-batch-size 24"), 4)
    assert (derived.data_parallel_size, derived.num_microbatches) == (4, 3)
    assert validate(config("--micro-batch-size 2"), 4).global_batch_size == 8


def test_shape_may_still_be_unknown():
    built = parse("pretrain", f"{BASE} --pipeline-model-parallel-size 3".split())
    assert validate(built, 3).virtual_pipeline_model_parallel_size is None
    with pytest.raises(UserError, match="4 layers do not divide over 3"):
        validate(built.replace(num_layers=4), 3)


def test_implied_values():
    built = config("--bf16 --recompute-activations")
    assert built.training.recompute_granularity == "selective"
    assert built.training.accumulate_allreduce_grads_in_fp32
    assert not config("").training.accumulate_allreduce_grads_in_fp32
    assert config("--weight-decay 0.3").optimizer.end_weight_decay == 0.3
    assert not config("--fp16").training.check_for_nan_in_loss_and_grad
    assert config("--fp16 --loss-scale 128").training.check_for_nan_in_loss_and_grad
    assert config("--rope-scaling-type llama3").model.use_rope_scaling


@pytest.mark.parametrize(
    ("tool", "words", "expected"),
    [
        (
            "preprocess",
            "--input a --output-prefix b --tokenizer-type NullTokenizer",
            "cannot tokenize text",
        ),
        ("inference", "--task greedy --temperature 0.5", "contradict each other"),
        ("inference", "--task greedy do_sample", "takes one of"),
        ("inference", "--bf16 --fp16", "exclude each other"),
    ],
)
def test_other_tools(tool, words, expected):
    with pytest.raises(UserError, match=expected):
        parse(tool, words.split())


def test_joining_data_sets_needs_no_tokenizer():
    parse("preprocess", ["--input", "a", "--output-prefix", "b", "--merge-group-keys", "text"])


@pytest.mark.parametrize(
    "words, fault",
    [
        ("--reset-position-ids", "--reset-position-ids alone does not keep"),
        (
            "--is-instruction-dataset --neat-pack",
            "would see each other; add --reset-attention-mask",
        ),
        ("--no-shuffle", "--no-shuffle needs --is-instruction-dataset"),
        ("--is-instruction-dataset --eod-mask-loss", "says itself which tokens are trained"),
        (
            "--is-instruction-dataset --no-shuffle --full-shuffle-instruction-dataset",
            "exclude each other",
        ),
        ("--is-pairwise-dataset", "is for posttrain_gpt.py --stage dpo"),
    ],
)
def test_pack_01_paired_flags_of_the_data(words: str, fault: str) -> None:
    """PACK-01: one of a pair without the other is refused."""
    argv = f"--seq-length 8 --lr 1 --train-iters 1 --data-path x {words}"
    with pytest.raises(UserError, match=fault):
        parse("pretrain", argv.split())
