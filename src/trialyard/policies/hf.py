"""A local Hugging Face causal model as a policy, token-exact and batched.

Calls from the event loop queue up for one worker thread, which decodes all requests in
flight together: they join between two steps and leave when they are done. New weights
take effect between two steps: requests under way end on the version they began with,
later ones use the new one (`hf_lanes`); a model that cannot be held twice runs out
first. No completion ever mixes versions, and no cached key or value outlives its
weights.
"""

import asyncio
import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trialyard.core.clock import Clock, SystemClock
from trialyard.core.errors import ContextOverflow, PolicyError
from trialyard.core.policy import Completion, Message, Sampling, VersionSpan
from trialyard.policies.hf_conversation import Conversation, load_conversation
from trialyard.policies.hf_directory import Model, TransformersModel, load_model, load_weights
from trialyard.policies.hf_lanes import Lane, Request
from trialyard.policies.hf_rows import ForwardRows, FusedLlama, LlamaRows, Rows

GATHER_ROWS = 64
"""So many waiting requests start at once, however long `gather_s` is."""
JOIN_STEPS = 4
"""New requests wait for up to this many steps, so that their prompts are read together."""


@dataclass(slots=True)
class Switch:
    """New weights that wait for the next step."""

    weights: bytes
    version: int
    done: "asyncio.Future[None]"


class HFPolicy:
    """Implements `TrainablePolicy` for a model directory.

    `max_rows` bounds the requests decoded together. `version` names the weights in the
    directory. Torch's thread count is process-wide; one thread is fastest for tiny models.
    """

    def __init__(
        self,
        directory: Path,
        *,
        version: int = 0,
        max_rows: int = 256,
        num_threads: int = 1,
        gather_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """With `gather_s`, requests wait up to so long to be decoded together.

        A step costs nearly the same for one row and for a hundred, so where thousands of
        rollouts share two cores with their boxes, waiting saves what small batches waste.
        """
        self._clock = clock or SystemClock()
        self.conversation: Conversation = load_conversation(directory)
        self._model: Model = load_model(directory)
        self._drains = isinstance(self._model, TransformersModel)
        self._make_rows = self._rows_of_model()
        self._version = version
        self._max_rows = max_rows
        self._num_threads = num_threads
        self._gather_s = gather_s
        self._oldest_s = 0.0
        self._waiting: deque[Request] = deque()
        self._switches: deque[Switch] = deque()
        self._lanes: list[Lane] = []
        self._wake = threading.Condition()
        self._closed = False
        self.num_sampled_tokens = 0
        self.busy_s = 0.0
        self._thread = threading.Thread(target=self._run, name="hf-policy", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        return self._version

    @property
    def max_positions(self) -> int:
        """Length of the context window in tokens."""
        return self._model.max_positions

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        started_s = self._clock.monotonic_s()
        prompt_ids = self.conversation.prompt_ids(messages)
        room = self.max_positions - len(prompt_ids)
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(prompt_ids)} tokens, the context window"
                f" {self.max_positions}; shorten the conversation"
            )
        request = Request(
            prompt_ids=prompt_ids,
            max_tokens=min(sampling.max_tokens, room),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            future=asyncio.get_running_loop().create_future(),
        )
        self._submit(request)
        await request.future
        return Completion(
            text=self.conversation.text(request.output_ids),
            finish="stop" if request.stopped else "length",
            prompt_ids=tuple(prompt_ids),
            output_ids=tuple(request.output_ids),
            logprobs=tuple(request.logprobs),
            versions=(VersionSpan(request.version, len(request.output_ids)),),
            duration_s=self._clock.monotonic_s() - started_s,
        )

    async def load(self, weights: bytes, version: int) -> None:
        done = asyncio.get_running_loop().create_future()
        self._submit(Switch(weights, version, done))
        await done

    async def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _submit(self, item: Request | Switch) -> None:
        with self._wake:
            if self._closed:
                raise PolicyError("the policy is closed; make a new one")
            if isinstance(item, Request):
                if not self._waiting:
                    self._oldest_s = self._clock.monotonic_s()
                self._waiting.append(item)
            else:
                self._switches.append(item)
            self._wake.notify()

    def _rows_of_model(self) -> Callable[[], Rows]:
        if isinstance(self._model, TransformersModel):
            model = self._model.eval()
            return lambda: ForwardRows(model)
        fused = FusedLlama(self._model)
        return lambda: LlamaRows(fused)

    def _run(self) -> None:
        """Worker thread: one iteration is one decoding step of every lane."""
        torch.set_num_threads(self._num_threads)
        since_join = 0
        with torch.inference_mode():
            while self._await_work():
                begun_s = self._clock.monotonic_s()
                self._switch()
                since_join += 1
                if (since_join >= JOIN_STEPS or not self._lanes) and self._gathering_s() <= 0:
                    since_join = 0
                    self._join()
                finished = [request for lane in self._lanes for request in self._advance(lane)]
                self._lanes = [lane for lane in self._lanes if lane.requests]
                self.busy_s += self._clock.monotonic_s() - begun_s
                _deliver(finished)
        abandoned = [request for lane in self._lanes for request in lane.requests]
        _fail([*abandoned, *self._waiting], PolicyError("the policy was closed"))
        for switch in self._switches:
            _settle(switch.done, PolicyError("the policy was closed"))

    def _await_work(self) -> bool:
        with self._wake:
            while not (self._closed or self._lanes or self._switches):
                left_s = self._gathering_s()
                if self._waiting and left_s <= 0:
                    break
                self._wake.wait(left_s if self._waiting else None)
            return not self._closed

    def _gathering_s(self) -> float:
        """How much longer the waiting requests wait for company."""
        if len(self._waiting) >= GATHER_ROWS:
            return 0.0
        return self._oldest_s + self._gather_s - self._clock.monotonic_s()

    def _switch(self) -> None:
        while self._switches and not (self._drains and self._lanes):
            switch = self._switches.popleft()
            error: Exception | None = None
            try:
                load_weights(self._model, switch.weights, origin=f"weights {switch.version}")
                self._make_rows = self._rows_of_model()
                self._version = switch.version
            except Exception as caught:  # noqa: BLE001 - it is the caller's to handle
                error = caught
            _settle(switch.done, error)

    def _join(self) -> None:
        """Let waiting requests into the lane of the current version."""
        if self._switches:
            return
        room = self._max_rows - sum(len(lane.requests) for lane in self._lanes)
        joining = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        joining = [request for request in joining if not request.future.cancelled()]
        if not joining:
            return
        if not self._lanes or self._lanes[-1].version != self._version:
            lane = Lane(self._make_rows(), self._version, self.conversation.stop_ids)
            self._lanes.append(lane)
        try:
            self._lanes[-1].add(joining)
        except Exception as error:  # noqa: BLE001 - a worker must outlive one bad batch
            self._abandon(self._lanes[-1], error, joining)

    def _advance(self, lane: Lane) -> list[Request]:
        count = len(lane.requests)
        try:
            finished = lane.advance()
        except Exception as error:  # noqa: BLE001 - a worker must outlive one bad batch
            self._abandon(lane, error)
            return []
        self.num_sampled_tokens += count
        return finished

    def _abandon(self, lane: Lane, error: Exception, joining: Sequence[Request] = ()) -> None:
        """Fail every request of a lane whose decoding broke."""
        failure = PolicyError(f"decoding failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        _fail([*lane.requests, *joining], failure)
        lane.requests = []


def _fail(requests: Sequence[Request], error: Exception) -> None:
    for request in requests:
        request.error = error
    _deliver(requests)


def _deliver(requests: Sequence[Request]) -> None:
    """Hand finished requests to their event loops, one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Request]] = {}
    for request in requests:
        loops.setdefault(request.future.get_loop(), []).append(request)
    for loop, finished in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_resolve, finished)


def _resolve(requests: Sequence[Request]) -> None:
    for request in requests:
        if request.future.done():
            continue
        if request.error is None:
            request.future.set_result(request)
        else:
            request.future.set_exception(request.error)


def _settle(future: "asyncio.Future[None]", error: Exception | None) -> None:
    def resolve() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        future.get_loop().call_soon_threadsafe(resolve)
