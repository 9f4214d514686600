"""Generation: batches of unequal prompts over a model on any number of ranks.

Every rank calls the same method with the same requests. One rank (the first of the last pipeline
stage) chooses each token and tells the others, so all of them return the same completions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.inference.cache import Step
from mindspeed_llm.inference.sampling import Sampling, choose, log_probabilities

if TYPE_CHECKING:
    from mindspeed_llm.models.gpt import GPTModel

STOP = "stop"
LENGTH = "length"


@dataclass(frozen=True)
class Request:
    """A prompt as token ids, and how to go on from it."""

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class NewToken:
    """A token as it comes.

    Attributes:
        request: index of its request.
        log_probability: under the model itself, whatever the sampling; None unless asked for.
        finish: "stop" after an end token, "length" at the limit, None before.
    """

    request: int
    token: int
    log_probability: float | None
    finish: str | None


@dataclass
class Completion:
    """What followed one prompt; an end token is the last of ``tokens``."""

    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float | None] = field(default_factory=list)
    finish: str | None = None

    def add(self, new: NewToken) -> None:
        """Take in the next token."""
        self.tokens.append(new.token)
        self.log_probabilities.append(new.log_probability)
        self.finish = new.finish


class Engine:
    """A model ready to generate.

    Args:
        chunks: this rank's model chunks.
        end_tokens: ids that end an answer.
        use_kv_cache: keep keys and values of earlier tokens; without, or with a model whose
            layers the decoder does not know (:attr:`obstacles`), each step runs Megatron's
            forward over all tokens.
        max_batch: prompts that run together; more wait for their turn.
        score: give each token's log-probability.
    """

    def __init__(
        self,
        chunks: list[GPTModel],
        end_tokens: Iterable[int] = (),
        use_kv_cache: bool = True,
        max_batch: int = 32,
        score: bool = False,
    ) -> None:
        from mindspeed_llm.inference.decoder import obstacles
        from mindspeed_llm.inference.stages import CachedForward, FullForward, Stages

        for chunk in chunks:
            chunk.eval()
        self.shape = chunks[0].shape
        self.end_tokens = frozenset(end_tokens)
        self.max_batch = max_batch
        self.score = score
        self.obstacles = sorted({text for chunk in chunks for text in obstacles(chunk)})
        self.cached = use_kv_cache and not self.obstacles
        forward = CachedForward(chunks) if self.cached else FullForward(chunks)
        self._stages = Stages(chunks, forward)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer all requests; see :meth:`stream`."""
        completions = [Completion() for _ in requests]
        for new in self.stream(requests):
            completions[new.request].add(new)
        return completions

    def stream(self, requests: Sequence[Request]) -> Iterator[NewToken]:
        """Yield tokens as they are chosen, those of one step in the order of their requests.

        Raises:
            UserError: a prompt is empty, too long for the model, or holds ids it has not.
        """
        for request in requests:
            self._check(request)
        for start in range(0, len(requests), self.max_batch):
            yield from self._run_batch(requests, range(start, len(requests))[: self.max_batch])

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """fp32 logits ``[len(tokens), vocabulary]`` of every position, by Megatron's forward.

        For checks: nothing of the decoder is used. On the ranks of the last pipeline stage;
        other ranks get an empty tensor.
        """
        ids = torch.tensor([list(tokens)], device=self._stages.device)
        out = self._stages.all_logits(ids)
        return torch.empty(0) if out is None else out[0, :, : self.shape.vocab_size].float()

    def _check(self, request: Request) -> None:
        limit = self.shape.max_position_embeddings
        if not request.prompt:
            raise UserError("a prompt is empty; it needs at least one token")
        if len(request.prompt) >= limit:
            raise UserError(
                f"a prompt has {len(request.prompt)} tokens, and the model's "
                f"{limit} positions leave no room for an answer; shorten the prompt"
            )
        if not 0 <= min(request.prompt) <= max(request.prompt) < self.shape.vocab_size:
            raise UserError(
                f"a prompt holds token id {max(request.prompt)}, the model's vocabulary has "
                f"{self.shape.vocab_size}: the tokenizer is not the model's"
            )

    @torch.inference_mode()
    def _run_batch(self, requests: Sequence[Request], indices: Sequence[int]) -> Iterator[NewToken]:
        stages = self._stages
        rows = [_Row(index, requests[index], self._limit(requests[index])) for index in indices]
        stages.forward.start(len(rows), max(row.limit for row in rows))
        fresh = True
        while rows:
            everything = fresh or stages.forward.needs_all_tokens
            tokens, step = self._inputs(rows, everything)
            chosen = self._choose(rows, stages.run(tokens, step))
            fresh = False
            left = []
            for number, (row, token, score) in enumerate(zip(rows, *chosen, strict=True)):
                row.tokens.append(token)
                finish = self._finish(row)
                if finish is None:
                    left.append(number)
                yield NewToken(row.index, token, score, finish)
            if 0 < len(left) < len(rows):
                stages.forward.keep(torch.tensor(left, device=stages.device))
            rows = [rows[number] for number in left]

    def _limit(self, request: Request) -> int:
        """Tokens of prompt and answer together."""
        wanted = len(request.prompt) + request.max_new_tokens
        return min(wanted, self.shape.max_position_embeddings)

    def _finish(self, row: _Row) -> str | None:
        if row.tokens[-1] in self.end_tokens:
            return STOP
        return LENGTH if len(row.tokens) >= row.limit else None

    def _inputs(self, rows: list[_Row], everything: bool) -> tuple[Tensor, Step]:
        """Right-padded ``[b, s]`` tokens of a step: all of each row, or the newest."""
        device = self._stages.device
        lengths = tuple(len(row.tokens) for row in rows)
        if not everything:
            newest = torch.tensor([[row.tokens[-1]] for row in rows], device=device)
            return newest, Step(lengths, 1, device)
        width = max(lengths)
        padded = [row.tokens + [0] * (width - len(row.tokens)) for row in rows]
        return torch.tensor(padded, device=device), Step(lengths, width, device)

    def _choose(
        self, rows: list[_Row], logits: Tensor | None
    ) -> tuple[list[int], list[float | None]]:
        """Each row's next token and its log-probability, the same on every rank."""
        choice = torch.zeros(3, len(rows), dtype=torch.float64, device=self._stages.device)
        if self._stages.chooses:
            assert logits is not None
            # Rows that only pad the vocabulary can never be chosen.
            logits = logits[:, : self.shape.vocab_size]
            best, tokens = logits.max(-1)
            for number, row in enumerate(rows):
                if not row.request.sampling.greedy:
                    tokens[number] = choose(logits[number], row.request.sampling, row.generator)
            choice[0], choice[1] = tokens, best
            if self.score:
                choice[2] = log_probabilities(logits, tokens)
        chosen, highest, scores = self._stages.agree(choice).tolist()
        if not all(map(math.isfinite, highest)):
            raise UserError(
                "the model's logits are not finite numbers: its weights are damaged, or fp16 is "
                "too narrow for it (use --bf16 or fp32)"
            )
        return [int(token) for token in chosen], scores if self.score else [None] * len(rows)


class _Row:
    """A request while it runs."""

    def __init__(self, index: int, request: Request, limit: int) -> None:
        self.index = index
        self.request = request
        self.limit = limit
        self.tokens = list(request.prompt)
        self.generator = request.sampling.generator()
