"""``trialyard rollout``: one policy on one task in a real sandbox, graded and stored."""

import argparse
import asyncio
from pathlib import Path

from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.core.policy import Sampling
from trialyard.core.trajectory import Trajectory

EXAMPLES = """\
  trialyard rollout tasks/mbpp/601 --policy reference
  trialyard rollout tasks/mbpp/601 --policy openai --base-url http://127.0.0.1:8000/v1 --model M
  trialyard rollout tasks/mbpp/601 --policy hf --model runs/quickstart/model --samples 4
"""
EXIT_UNGRADED = 3


def register(commands: Commands) -> None:
    parser = add_command(
        commands, "rollout", "let a policy try a task", examples=EXAMPLES, handler=rollout
    )
    parser.add_argument("task", type=Path, metavar="TASK", help="a task directory")
    parser.add_argument(
        "--policy", default="reference", help="reference, noop, random, openai or hf"
    )
    parser.add_argument("--model", default="", help="model name (openai) or directory (hf)")
    parser.add_argument("--base-url", default="", help="server of the openai policy, up to /v1")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="rollouts of the task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/rollouts"), help="where trajectories are stored"
    )
    add_json(parser)


def rollout(arguments: argparse.Namespace) -> int:
    from trialyard.run.single import PolicyChoice, roll_out

    choice = PolicyChoice(arguments.policy, arguments.model, arguments.base_url)
    sampling = Sampling(temperature=arguments.temperature)
    trajectories = asyncio.run(
        roll_out(
            arguments.task,
            choice,
            sampling,
            samples=arguments.samples,
            seed=arguments.seed,
            out=arguments.out,
        )
    )
    for trajectory in trajectories:
        if arguments.json:
            print_json(describe(trajectory, arguments.out))
        else:
            _print(trajectory)
    ungraded = any(t.verdict.status == "ungraded" for t in trajectories)
    return EXIT_UNGRADED if ungraded else 0


def describe(trajectory: Trajectory, out: Path) -> dict[str, object]:
    """JSON form: identity, outcome and where it is stored."""
    return {
        "trajectory": trajectory.id,
        "store": str(out),
        "task": trajectory.task_id,
        "reward": trajectory.reward,
        "stop": trajectory.stop.value,
        "turns": len(trajectory.turns),
        "attempt": trajectory.attempt,
        "faults": list(trajectory.faults),
        "wall_s": trajectory.wall_s,
        "verdict": trajectory.verdict.to_json(),
    }


def _print(trajectory: Trajectory) -> None:
    for number, turn in enumerate(trajectory.turns, 1):
        print(f"--- turn {number}: policy ({turn.policy_s:.2f} s)\n{printable(turn.output)}")
        print(f"--- turn {number}: box ({turn.sandbox_s:.2f} s)\n{printable(turn.observation)}")
    verdict = trajectory.verdict
    print(
        f"=== {trajectory.task_id}: reward {trajectory.reward}, passed {verdict.passed}, "
        f"stop {trajectory.stop.value}, fault {verdict.fault}; stored as {trajectory.id}"
    )


def printable(text: str) -> str:
    """Untrusted text for a terminal: control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
