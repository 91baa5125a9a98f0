"""One experiment: its phases in order, each done once, also across a crash.

before_sft evaluation -> supervised warm start -> after_sft evaluation -> reinforcement
learning -> after_rl evaluation -> summary and report.
"""

from dataclasses import dataclass
from typing import Any

from trialyard.core.ids import derive_random, derive_seed
from trialyard.core.learner import TrainingSequence
from trialyard.core.policy import Sampling
from trialyard.core.trajectory import Group
from trialyard.rollout.group import run_group
from trialyard.rollout.rollout import RolloutRequest
from trialyard.run.collector import Batch, Collector
from trialyard.run.credit import group_credit, random_reward, verdict_reward
from trialyard.run.durable import Durable, train_group
from trialyard.run.evaluate import evaluate
from trialyard.run.events import read_events
from trialyard.run.journal import StepJournal
from trialyard.run.loop import rl_loop
from trialyard.run.summary import summarise
from trialyard.run.yard import Yard

INITIAL_VERSION, SFT_VERSION = 0, 1


@dataclass
class Experiment:
    """Runs the phases of one run on its yard. Interrupt it anywhere; `run` again goes on."""

    yard: Yard

    def __post_init__(self) -> None:
        self.durable = Durable(self.yard)

    async def run(self) -> dict[str, Any]:
        """All phases that are not done yet; returns the summary."""
        config = self.yard.config
        checkpoint = await self.durable.restore()
        if checkpoint is None:
            await self._evaluate("before_sft", 0)
            await self._warm_start()
        step = checkpoint.step if checkpoint else 0
        if step == 0:
            await self._evaluate("after_sft", 0)
        if step < config.rl.steps:
            await self._reinforce(step)
        if config.rl.steps:
            await self._evaluate("after_rl", config.rl.steps)
        summary = summarise(config, list(read_events(self.yard.directory.events_file)))
        self.yard.directory.write_summary(summary)
        self.yard.events.emit("summary", **summary)
        return summary

    async def _warm_start(self) -> None:
        yard, config = self.yard, self.yard.config
        yard.events.emit("phase", name="sft", state="start", steps=config.sft.steps)
        random = derive_random(config.seed, "sft")
        order: list[TrainingSequence] = []
        for step in range(1, config.sft.steps + 1):
            if len(order) < config.sft.batch:
                fresh = list(yard.demonstrations)
                random.shuffle(fresh)
                order += fresh
            batch, order = order[: config.sft.batch], order[config.sft.batch :]
            report = await yard.learner.sft_step(batch)
            yard.events.emit("sft_step", step=step, loss=report.loss)
        weights = await yard.learner.weights()
        await self.durable.checkpoint(0, SFT_VERSION)
        await self.durable.call(yard.weights.publish, weights, version=SFT_VERSION, step=0)
        await yard.policy.load(weights, SFT_VERSION)
        yard.events.emit("phase", name="sft", state="end")

    async def _reinforce(self, done: int) -> None:
        yard, config = self.yard, self.yard.config
        yard.events.emit("phase", name="rl", state="start", steps=config.rl.steps, done=done)
        restored, skip = await self.durable.unconsumed()
        collector = Collector(
            self._start_group,
            batch_size=config.rl.tasks_per_step,
            max_staleness=config.rl.max_staleness,
            first_step=done,
            restored=restored,
            skip=skip,
        )
        reward_of = random_reward(config.seed) if config.rl.reward == "random" else verdict_reward
        await rl_loop(
            collector,
            yard.learner,
            yard.policy,
            _Steps(self.durable, StepJournal(yard), self),
            group_credit(reward_of, config.rl.advantage),
            steps=range(done + 1, config.rl.steps + 1),
        )
        yard.events.emit("phase", name="rl", state="end")

    async def _start_group(self, index: int) -> Group:
        config = self.yard.config
        request = RolloutRequest(
            run=config.name,
            group=train_group(index),
            member=0,
            task=self.yard.train_tasks[index],
            sampling=Sampling(temperature=config.rollout.temperature),
            seed=derive_seed(config.seed, "train", index),
        )
        group = await run_group(self.yard.roller, request, config.rl.group_size)
        await self.durable.keep(group.trajectories)
        return group

    async def _evaluate(self, label: str, step: int) -> None:
        yard, config = self.yard, self.yard.config
        events = read_events(yard.directory.events_file)
        if any(e["kind"] == "evaluation" and e.get("label") == label for e in events):
            return
        yard.events.emit("phase", name=f"evaluation {label}", state="start", steps=0)
        started_s = yard.clock.monotonic_s()
        rates = await evaluate(
            yard.roller,
            yard.held_out,
            run=config.name,
            label=label,
            seed=config.seed,
            samples=config.evaluation.samples,
            keep=self.durable.keep,
        )
        wall_s = yard.clock.monotonic_s() - started_s
        yard.events.emit("evaluation", label=label, step=step, wall_s=wall_s, **rates.to_json())
        yard.events.emit("phase", name=f"evaluation {label}", state="end")

    async def evaluate_on_schedule(self, step: int) -> None:
        """During learning: every `evaluation.every` steps."""
        every = self.yard.config.evaluation.every
        if every and step % every == 0 and step < self.yard.config.rl.steps:
            await self._evaluate(f"step {step}", step)


@dataclass
class _Steps:
    """The loop's journal: durable first, then told, then evaluated on schedule."""

    durable: Durable
    journal: StepJournal
    experiment: Experiment

    async def commit(self, step: int, version: int, batch: Batch, weights: bytes) -> None:
        await self.durable.commit(step, version, batch, weights)

    async def report(self, step: int, version: int, batch: Batch, work: Any) -> None:
        self.journal.record(step, version, batch, work)
        await self.experiment.evaluate_on_schedule(step)
