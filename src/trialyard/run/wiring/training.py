"""From a configuration to the parts of a training run."""

import shutil
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Literal

from trialyard.core.clock import SystemClock
from trialyard.core.errors import ConfigError, NotFoundError
from trialyard.core.events import EventSink
from trialyard.core.ids import new_id
from trialyard.core.learner import TrainingSequence
from trialyard.core.policy import Message
from trialyard.core.sandbox import SandboxPool
from trialyard.core.trajectory import Demonstration, Trajectory
from trialyard.learning.process import ProcessLearner
from trialyard.learning.settings import RlSettings, SftSettings
from trialyard.policies.hf_conversation import demonstration_sequence
from trialyard.policies.hf_process import ProcessPolicy
from trialyard.policies.hf_tiny import create_tiny_model
from trialyard.rollout.ablation import FeedbackBank, SwappedFeedback
from trialyard.rollout.rollout import Roller
from trialyard.run.config import RunConfig
from trialyard.run.directory import RunDirectory
from trialyard.run.durable import Durable
from trialyard.run.evaluate import SolveRates, evaluate
from trialyard.run.events import EventFile, Events
from trialyard.run.experiment import Experiment
from trialyard.run.sources import TrainSequence, generate_demonstrations, load_splits
from trialyard.run.wiring.boxes import open_grader, open_pool, tool_for
from trialyard.run.yard import Yard
from trialyard.storage.blobs import DirectoryBlobs
from trialyard.storage.ledger import SqlLedger
from trialyard.tasks.generators import list_vocabulary
from trialyard.trajectories.store import TrajectoryStore
from trialyard.weights.versions import WeightVersions

GATHER_S = 0.25
"""Rollouts in training wait so long for company at the sampler: throughput before latency."""


@asynccontextmanager
async def open_yard(
    directory: RunDirectory, config: RunConfig, sink: EventSink
) -> AsyncIterator[Yard]:
    """Build every part of a run; tear all down in the opposite order."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        storage = stack.enter_context(ThreadPoolExecutor(1, "storage"))
        ledger = stack.enter_context(SqlLedger(directory.ledger_file))
        blobs = DirectoryBlobs(directory.blobs)
        trajectories = stack.enter_context(closing(TrajectoryStore(directory.trajectories, ledger)))
        file = EventFile(directory.events_file, clock)
        stack.callback(file.close)
        pool = await stack.enter_async_context(
            open_pool(
                max_boxes=config.sandbox.max_boxes,
                warm=config.sandbox.warm,
                log_directory=directory.boxes,
            )
        )
        _make_model(directory, config)
        learner = _learner(directory, config)
        stack.push_async_callback(learner.close)
        policy = ProcessPolicy(directory.model, gather_s=GATHER_S)
        stack.push_async_callback(policy.close)
        train_tasks, held_out = load_splits(config.tasks, config.seed)
        yield Yard(
            config=config,
            directory=directory,
            clock=clock,
            events=Events(file, sink),
            train_tasks=TrainSequence(train_tasks, config.seed),
            held_out=held_out,
            demonstrations=_demonstrations(config, policy),
            policy=policy,
            learner=learner,
            pool=pool,
            roller=_roller(config, policy, pool),
            trajectories=trajectories,
            ledger=ledger,
            blobs=blobs,
            weights=WeightVersions(blobs, ledger),
            storage=storage,
        )


def _make_model(directory: RunDirectory, config: RunConfig) -> None:
    """The model directory of a new run: made on the spot or copied; whole or not at all."""
    if directory.model.exists():
        return
    partial = directory.root / ".model.partial"
    shutil.rmtree(partial, ignore_errors=True)
    if config.policy.kind == "hf":
        source = Path(config.policy.path)
        if not (source / "config.json").is_file():
            raise ConfigError(f"policy.path {source}: no config.json there; name a model directory")
        shutil.copytree(source, partial)
    else:
        create_tiny_model(
            partial,
            list_vocabulary.vocabulary(),
            list_vocabulary.PIECE.pattern,
            config.seed,
            spaced=sorted(list_vocabulary.SPACED),
            d_model=config.policy.d_model,
            layers=config.policy.layers,
            heads=config.policy.heads,
            ff=config.policy.ff,
            max_positions=config.policy.context,
        )
    partial.rename(directory.model)


def _learner(directory: RunDirectory, config: RunConfig) -> ProcessLearner:
    rl = config.rl
    return ProcessLearner(
        directory.model,
        sft=SftSettings(steps=config.sft.steps),
        rl=RlSettings(
            steps=rl.steps,
            minibatch=rl.minibatch,
            epochs=rl.epochs,
            learning_rate=rl.learning_rate,
            final_learning_rate=rl.final_learning_rate,
            warmup_steps=rl.warmup_steps,
            clip_low=rl.clip_low,
            clip_high=rl.clip_high,
        ),
        seed=config.seed,
    )


def _demonstrations(config: RunConfig, policy: ProcessPolicy) -> list[TrainingSequence]:
    if not config.sft.steps:
        return []
    shown = generate_demonstrations(config.tasks.generator, config.seed, config.sft.demonstrations)
    return [_sequence(policy, demonstration) for demonstration in shown]


def _sequence(policy: ProcessPolicy, demonstration: Demonstration) -> TrainingSequence:
    messages: list[Message] = []
    for context, output in demonstration.turns:
        messages += [Message("user", context), Message("assistant", output)]
    return demonstration_sequence(policy.conversation, messages)


def _roller(config: RunConfig, policy: ProcessPolicy, pool: SandboxPool) -> Roller:
    make_tool = tool_for
    if config.rollout.feedback == "swapped":
        bank = FeedbackBank()
        make_tool = lambda task: SwappedFeedback(tool_for(task), bank)  # noqa: E731
    return Roller(
        policy=policy,
        pool=pool,
        grader=open_grader(pool, cached=True),
        tool_for=make_tool,
        clock=SystemClock(),
        max_attempts=config.rollout.max_attempts,
    )


async def run_experiment(root: Path, sink: EventSink) -> dict[str, Any]:
    """Run, or go on with, the experiment in a run directory; returns its summary."""
    directory, config = RunDirectory.open(root)
    async with open_yard(directory, config, sink) as yard:
        return await Experiment(yard).run()


async def evaluate_run(
    root: Path, sink: EventSink, *, samples: int, feedback: Literal["own", "swapped"]
) -> SolveRates:
    """Held-out solve rates of the last checkpoint of a run; nothing of the run changes."""
    directory, config = RunDirectory.open(root)
    rollout = config.rollout.model_copy(update={"feedback": feedback})
    config = config.model_copy(update={"rollout": rollout})
    async with open_yard(directory, config, sink) as yard:
        if await Durable(yard).restore() is None:
            raise NotFoundError(f"{root} has no checkpoint yet; let 'trialyard resume' run first")
        return await evaluate(
            yard.roller,
            yard.held_out,
            run=f"{config.name}-{new_id('evaluation')}",
            label=feedback,
            seed=config.seed,
            samples=samples,
            keep=_forget,
        )


async def _forget(trajectories: Sequence[Trajectory]) -> None:
    """An evaluation apart from the run keeps nothing in it."""
